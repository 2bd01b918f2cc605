"""What a campaign's run needs, and the sentences where it cannot be had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.engines.wire import EngineSpec
from backend.errors import UserError
from backend.launching import claimed, problems_of, refuse_other_settings, spec_of
from backend.runs import RunFolder
from tests.backend.play import campaign_settings


def test_problems_lie_beside_the_campaign_file_or_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: Path, answer: str) -> None:
        folder.mkdir(exist_ok=True)
        rows = [{"question": f"q{n}", "answer": answer} for n in range(3)]
        (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    write(tmp_path / "here", "1")
    write(tmp_path / "beside", "2")
    monkeypatch.chdir(tmp_path / "here")
    settings = campaign_settings()
    assert [problem.gold for problem in problems_of(settings)] == ["1"] * 3
    assert [problem.gold for problem in problems_of(settings, tmp_path / "beside")] == ["2"] * 3
    assert [problem.gold for problem in problems_of(settings, tmp_path)] == ["1"] * 3


def test_a_set_that_is_too_short_is_refused() -> None:
    settings = campaign_settings(problems={"set": "arithmetic", "first": 5, "count": 10_000})
    with pytest.raises(UserError, match=r"count is 10000, but arithmetic has only \d+ problems from index 5 on"):
        problems_of(settings)


def test_a_screen_may_look_further_than_the_set_goes() -> None:
    wanted = {"set": "arithmetic", "count": 3, "screen": True, "scan_limit": 10_000}
    assert len(problems_of(campaign_settings(problems=wanted))) >= 600


def test_the_engine_that_is_asked_for(tmp_path: Path) -> None:
    options = {"delay": 0.5}
    spec = spec_of(campaign_settings(engine_options=options, batch_invariant=True))
    assert spec == EngineSpec("scripted", "toy", "toy", "float32", None, True, options)
    with pytest.raises(UserError, match="model 'none' is unknown"):
        spec_of(campaign_settings(engine="transformers", model="none"))
    with pytest.raises(UserError, match=r"holds no config\.json"):
        spec_of(campaign_settings(engine="vllm", model=str(tmp_path)))


def test_other_settings_are_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    refuse_other_settings(campaign_settings(), folder)
    with claimed(campaign_settings(), folder):
        pass
    refuse_other_settings(campaign_settings(), folder)
    with pytest.raises(UserError, match=r"was started with k: 2, not 3; seed: 0, not 5: give"):
        refuse_other_settings(campaign_settings(k=3, seed=5), folder)
