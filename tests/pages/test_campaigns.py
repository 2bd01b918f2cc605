"""The campaigns page: never blank, a form that writes the command line's file, errors as sentences."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from backend import dashboard
from backend.campaign_form import engine_options, free_name, small_campaign
from backend.errors import UserError
from backend.ingest import Campaign
from backend.runs import RunFolder
from backend.settings import parse_settings, to_toml
from tests.backend.play import PROBLEMS, campaign_settings
from tests.backend.trees import campaign, record

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppTest]:
    """The application on the campaigns page, over a new store."""
    monkeypatch.setenv("PIVOTSCOPE_STORE", str(tmp_path / "store.duckdb"))
    monkeypatch.setattr("backend.opening.BUNDLED", tmp_path / "nothing-ships")
    yield AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    dashboard.jobs().close()
    st.cache_resource.clear()


def shown(app: AppTest) -> AppTest:
    app.switch_page("pages/campaigns.py").run()
    assert not app.exception
    return app


def texts(app: AppTest) -> str:
    """All that the page says in running text."""
    kinds = (app.markdown, app.caption, app.info, app.error, app.success, app.code)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def badges(app: AppTest) -> list[str]:
    return [element.value for element in app.markdown if "-badge[" in element.value]


def until(app: AppTest, condition: Callable[[], Any]) -> None:
    """Draw the page anew until something holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, texts(app)
        time.sleep(0.1)
        app.run()


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A small scripted campaign's file."""
    path = tmp_path / "sums.jsonl"
    rows = [{"problem": one.problem, "question": one.question, "answer": one.gold} for one in PROBLEMS]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return to_toml(campaign_settings(problems={"file": str(path), "count": 2}))


def paste(app: AppTest, text: str) -> AppTest:
    app.session_state["campaigns-start"] = True
    app.session_state["campaign-form.way"] = "Campaign file"
    app.run()
    return app.text_area(key="campaign-form.text").set_value(text).run()


def test_an_empty_store_says_what_to_do_and_one_button_does_it(app: AppTest) -> None:
    shown(app)
    assert app.info[0].proto.title == "No campaign yet"
    assert app.button(key="campaigns-small").label == "Start a small campaign"
    made = small_campaign(set())
    assert (made.name, made.problems.set, made.problems.count, made.rollouts, made.k) == (
        "smollm2-arithmetic",
        "arithmetic",
        6,
        4,
        4,
    )


def test_the_form_writes_the_file_that_the_command_line_reads(app: AppTest) -> None:
    shown(app)
    app.session_state["campaigns-start"] = True
    app.run()
    assert parse_settings(app.code[0].value, "the page") == small_campaign(set())
    app.number_input(key="campaign-form.k").set_value(1)
    app.number_input(key="campaign-form.temperature").set_value(0.0)
    app.toggle(key="campaign-form.screen").set_value(True)
    app.selectbox(key="campaign-form.set").set_value("file").run()
    assert app.error[0].value == "Problems\\: name the JSONL file."
    app.text_input(key="campaign-form.file").set_value("sums.jsonl")
    app.text_area(key="campaign-form.options").set_value("threads = 2").run()
    made = parse_settings(app.code[0].value, "the page")
    assert (made.k, made.temperature, made.engine_options) == (1, 0.0, {"threads": 2})
    assert made.problems.model_dump() == {
        "set": None,
        "file": "sums.jsonl",
        "first": 0,
        "count": 6,
        "screen": True,
        "scan_limit": 60,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name = ", "The text: not valid TOML, invalid value (at end of document)."),
        ('name = "a"\nmodel = "b"', "The text: key `engine` is missing."),
        (
            'name = "a"\nmodel = "b"\nengine = "vllm"\nrolouts = 3',
            "The text: unknown key `rolouts`; did you mean `rollouts`?",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(app: AppTest, text: str, sentence: str) -> None:
    paste(shown(app), text)
    assert [error.value.replace("\\", "") for error in app.error] == [sentence]
    assert "campaign-form.start" not in {button.key for button in app.button}


def test_a_campaign_is_started_watched_and_removed(app: AppTest, small: str) -> None:
    paste(shown(app), small)
    app.button(key="campaign-form.start").click().run()
    queued = "Campaign small was put in the queue; see below."
    assert app.success[0].value == queued
    assert app.run().success[0].value == queued, "a page may be drawn again at any time"
    until(app, lambda: any("done" in badge for badge in badges(app)))
    made = parse_settings(small, "the test")
    assert "2 of 2 problems · 4 rollouts" in texts(app)
    assert "Models loaded since the dashboard started: 1." in texts(app)

    app.session_state[f"details-{made.campaign}"] = True
    app.run()
    assert [str(value) for value in app.dataframe[0].value["what"]][-2:] == ["rollouts", "start"]
    app.session_state[f"view-{made.campaign}"] = "Problems"
    app.run()
    assert list(app.dataframe[0].value["state"]) == ["done", "done"]
    app.session_state[f"view-{made.campaign}"] = "Settings"
    app.run()
    assert any(parse_settings(block.value, "the page") == made for block in app.code)

    paste(app, small.replace("rollouts = 2", "rollouts = 3"))
    app.button(key="campaign-form.start").click().run()
    assert app.error[0].value.startswith("Campaign 'small' was started with rollouts\\: 2, not 3")

    app.button(key=f"remove-now-{made.campaign}").click().run()
    removed = ":green[:material/check: Campaign small is removed.]"
    assert removed in [caption.value for caption in app.caption]
    assert removed in [caption.value for caption in app.run().caption], "a page may be drawn again at any time"
    assert dashboard.store().campaigns() == []
    assert app.info[0].proto.title == "No campaign yet"


def test_every_kind_of_campaign_is_listed_with_its_faults(app: AppTest, tmp_path: Path) -> None:
    shown(app)
    store = dashboard.store()
    store.ensure_campaign(campaign("imported", name="<b>theirs</b>", origin="import", state="imported"))
    store.ensure_campaign(campaign("bundled", name="ours", origin="bundled", state="done"))
    made = campaign_settings(name="torn")
    folder = RunFolder.of(store.path, made.campaign)
    with folder.claim(made):
        folder.write(record("sum-001", state="failed", error="the prompt is too long", rollouts=[]))
        (folder.shards / "x.parquet").write_bytes(b"PAR1 and no more")
        folder.log("warning", message="a wave ran out of memory")
    store.ensure_campaign(Campaign.of(made))
    until(app, lambda: "interrupted" in "".join(badges(app)) and folder.quarantined() and not folder.waiting())
    words = [badge.partition(":material/")[2].split(": ")[1].rstrip("]") for badge in badges(app)]
    assert words == ["interrupted", "imported", "bundled"]
    assert {button.key for button in app.button} >= {f"resume-{made.campaign}", "remove-now-imported"}
    assert f"resume-{'imported'}" not in {button.key for button in app.button}

    app.session_state[f"details-{made.campaign}"] = True
    app.session_state[f"view-{made.campaign}"] = "Set aside (1)"
    app.run()
    assert "x.parquet" in str(app.table[0].value)
    app.session_state[f"view-{made.campaign}"] = "Problems"
    app.run()
    assert list(app.dataframe[0].value["error"]) == ["the prompt is too long"]


def test_names_that_are_free() -> None:
    assert free_name("a", set()) == "a"
    assert free_name("a", {"a", "a-2"}) == "a-3"


def test_engine_options_are_toml() -> None:
    assert engine_options('backend = "X"\nn = 2') == {"backend": "X", "n": 2}
    with pytest.raises(UserError, match="engine options: not valid TOML"):
        engine_options("backend: X")
