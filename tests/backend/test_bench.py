"""The benchmark's parts do what they claim; what they measure is not tested, for time is no property of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.bench import Result, table
from backend.bench.replaying import measure_replay
from backend.bench.reporting import measure_reports
from backend.bench.starting import measure_start
from backend.bench.stock import Job, Request, batches_of, time_stock
from backend.errors import WorkFailed
from tests.vllm.checkpoints import make_checkpoint


def test_a_budget_has_a_direction() -> None:
    assert Result("a", 4.9, "s", 5.0).met is True
    assert Result("a", 5.1, "s", 5.0).met is False
    assert Result("a", 5.1, "times faster", 5.0, "at least").met is True
    assert Result("a", 5.1, "s").met is None


def test_calls_hold_equal_lengths_and_kinds() -> None:
    requests = [Request([0] * length, length, greedy) for length in (5, 6) for greedy in (True, False)] * 5
    calls = list(batches_of(requests, 4))
    assert sorted(len(call) for call in calls) == [1, 1, 1, 1, 4, 4, 4, 4]
    assert all(len({(len(one.ids), one.greedy) for one in call}) == 1 for call in calls)
    assert [len(call) for call in batches_of(requests, 1)] == [1] * 20


def test_made_up_pivots_are_reported() -> None:
    large, pool = measure_reports(2000)
    assert (large.name, large.goal) == ("report over 2,000 pivots", None)
    assert large.note.endswith("eligible, 1,000 problems")
    assert (pool.goal, pool.value > 0) == (2.0, True)


def test_the_dashboard_starts() -> None:
    seconds, memory = measure_start()
    assert seconds.value > 0
    assert 50 < memory.value < 2000


def test_a_missing_or_broken_dashboard_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match="is not there"):
        measure_start(tmp_path / "app.py")
    (tmp_path / "app.py").write_text("raise ValueError('no page')", encoding="utf-8")
    with pytest.raises(WorkFailed, match=r"the page shown first failed \(.*no page"):
        measure_start(tmp_path / "app.py")


def test_a_replay_is_measured_against_the_same_work(tmp_path: Path) -> None:
    model = str(make_checkpoint(tmp_path / "tiny"))
    found = {result.name: result for result in measure_replay(model, 1, 2, lambda _sentence: None)}
    replay = found["replay of one token"]
    assert replay.note.startswith("30 continuations")
    assert found["replay against generate, one continuation a call"].note.startswith("30 calls")
    assert found["replay against generate, calls of 8"].note.startswith("4 calls")
    assert all(result.goal is None for result in found.values() if "generate" in result.name), "a short replay"
    document = {
        "model": "m",
        "machine": {"cores": 2, "processor": "p", "threads": 2},
        "results": [
            {"name": r.name, "value": r.value, "unit": r.unit, "goal": r.goal, "direction": r.direction, "note": r.note}
            | {"met": r.met}
            for r in found.values()
        ],
    }
    assert len(table(document).splitlines()) == 2 + len(found)


def test_stock_generate_that_fails_is_a_sentence(tmp_path: Path) -> None:
    job = Job(str(tmp_path), "bfloat16", 1, 0.7, 0.95, [Request([1], 1, True)], [1])
    with pytest.raises(WorkFailed, match="stock transformers failed"):
        time_stock(job)
