"""Running out of memory halves the calls, and nothing else changes."""

from __future__ import annotations

import pytest

from backend.engines.base import Quiet
from backend.engines.halving import halving
from backend.errors import OutOfMemory
from backend.replay import ReplaySettings, replay
from tests.backend.play import MIXED, Counting, campaign_settings, comparable, sampled, scripted

SETTINGS = ReplaySettings.of(campaign_settings())


def test_calls_are_halved_until_they_fit_and_the_limit_is_kept() -> None:
    said: list[str] = []
    engine = Counting({"memory_requests": 7, "preemptions": {"refeed": 1}})
    cuts = sampled(engine, MIXED)
    found = replay(halving(engine, said.append), cuts, SETTINGS, Quiet())
    # 24 requests, then 12, then 6; the passes after start with 6.
    assert [len(requests) for _, requests, _ in engine.asked] == [24, 12, *[6] * 12]
    assert said == [
        "Out of memory with 24 requests at once; going on with 12.",
        "Out of memory with 12 requests at once; going on with 6.",
    ]
    whole = replay(scripted_with(cuts), cuts, SETTINGS, Quiet())
    for pass_ in ("exact", "replica"):
        assert [comparable(one) for one in found[pass_]] == [comparable(one) for one in whole[pass_]], pass_
    assert {one.preemptions for one in found["refeed"]} == {4}


def scripted_with(cuts: list) -> Counting:
    """An engine without faults that holds the cuts' rollouts."""
    engine = Counting()
    again = sampled(engine, MIXED)
    assert [cut.rollout for cut in again] == [cut.rollout for cut in cuts]
    return engine


def test_one_request_that_does_not_fit_is_an_error() -> None:
    class Tiny(Counting):
        def _need_memory(self, requests: int) -> None:
            super()._need_memory(requests + 1)

    engine = Tiny({"memory_requests": 1})
    with pytest.raises(OutOfMemory):
        sampled(halving(engine, print), MIXED)  # type: ignore[arg-type]
    assert engine.holds([f"{MIXED.problem}/0"]) == [False]


def test_everything_else_is_the_engines() -> None:
    engine = scripted()
    wrapped = halving(engine, print)
    cuts = sampled(wrapped, MIXED)  # type: ignore[arg-type]
    assert wrapped.info() == engine.info()
    assert wrapped.holds([cuts[0].handle]) == [True]
    wrapped.release([cuts[0].handle])
    assert engine.holds([cuts[0].handle]) == [False]
