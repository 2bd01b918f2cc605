"""The estimate of the time left, on a clock that the test turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend import tracking
from backend.engines.base import Quiet
from backend.records import ProblemState
from backend.runs import RunFolder
from backend.tracking import Tracker
from tests.backend.play import campaign_settings

ROLLOUTS, PASS = 10.0, 4.0
"""Seconds that a problem takes in each phase."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tracking, "time", clock)
    return clock


def tracker(tmp_path: Path, *, screen: bool = False, count: int = 10) -> Tracker:
    problems = {"file": "sums.jsonl", "count": count, "screen": screen}
    folder = RunFolder(tmp_path / "run")
    settings = campaign_settings(problems=problems)
    with folder.claim(settings):
        pass
    return Tracker(settings, folder, Quiet(), None)


def left(tracker: Tracker) -> float | None:
    tracker.write()
    return tracker.progress.seconds_left


def test_the_estimate_is_exact_when_every_problem_costs_the_same(tmp_path: Path, clock: Clock) -> None:
    one = tracker(tmp_path)
    whole = 10 * (ROLLOUTS + 3 * PASS)
    began = clock.now
    states: list[ProblemState] = []
    passes = ("exact", "replica", "refeed")
    for _ in range(10):
        one.begin("rollouts", 1, passes)
        clock.now += ROLLOUTS
        for index, pass_ in enumerate(passes):
            one.begin(pass_, 1, passes[index + 1 :])
            if not states and pass_ == "exact":
                assert left(one) is None, "nothing is known before the first pass has ended"
            else:
                assert left(one) == pytest.approx(whole - (clock.now - began))
            clock.now += PASS / 2
            if states:
                assert left(one) == pytest.approx(whole - (clock.now - began))
                assert one.progress.fraction == pytest.approx((clock.now - began) / whole)
            clock.now += PASS / 2
        one.rest()
        states.append("done")
        one.count(states)
        assert left(one) == pytest.approx(whole - (clock.now - began))
    assert left(one) == 0


def test_a_screen_is_expected_to_keep_what_it_kept_so_far(tmp_path: Path, clock: Clock) -> None:
    one = tracker(tmp_path, screen=True)
    states: list[ProblemState] = []
    for _ in range(3):
        for state in ("screened_out", "done"):
            one.begin("rollouts", 1, ("exact", "replica", "refeed"))
            clock.now += ROLLOUTS
            if state == "done":
                for pass_ in ("exact", "replica", "refeed"):
                    one.begin(pass_, 1)
                    clock.now += PASS
            one.rest()
            states.append(state)  # type: ignore[arg-type]
    one.count(states)
    # 7 more to keep, every second one is kept: 14 to look at.
    assert left(one) == pytest.approx(14 * ROLLOUTS + 7 * 3 * PASS)


def test_time_between_phases_is_expected_to_go_on(tmp_path: Path, clock: Clock) -> None:
    one = tracker(tmp_path)
    for phase in ("rollouts", "exact", "replica", "refeed"):
        one.begin(phase, 1)
        clock.now += 10
    one.rest()
    clock.now += 10
    one.count(["done"])
    assert left(one) == pytest.approx(9 * 50)


def test_throughput_is_over_the_time_in_the_engine(tmp_path: Path, clock: Clock) -> None:
    one = tracker(tmp_path)
    one.begin("rollouts", 1)
    one.tick(30)
    clock.now += 10
    one.rest()
    clock.now += 50
    one.write()
    assert (one.progress.tokens, one.progress.tokens_per_second, one.progress.seconds) == (30, 3.0, 60.0)
