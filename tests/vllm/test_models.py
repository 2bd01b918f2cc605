"""Other architectures, types and sizes than `test_engine` has, and a cache too small for its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from backend.engines.base import ContinuationRequest, Point, Quiet, RolloutRequest, Sampling
from backend.records import Trace

if TYPE_CHECKING:
    from backend.engines.vllm_engine import VllmEngine

SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_tokens=80)


def sample(engine: VllmEngine, count: int, sampling: Sampling = SAMPLING) -> list[Trace]:
    prompt = engine.prompt_ids([{"role": "user", "content": "There are 4 boxes with 6 marbles in each."}], "")
    return engine.rollouts([RolloutRequest(f"r{i}", prompt, 50 + i, sampling) for i in range(count)], Quiet())


@pytest.mark.parametrize(
    ("architecture", "dtype", "hidden"),
    [
        ("qwen2", "bfloat16", 128),
        ("qwen3", "bfloat16", 128),
        ("phi3", "bfloat16", 128),
        # From 512 on, a step of one row rounds unlike a step of many.
        ("llama", "bfloat16", 512),
        ("llama", "float32", 512),
    ],
)
def test_resuming_is_exact(start: Callable[..., VllmEngine], architecture: str, dtype: str, hidden: int) -> None:
    engine = start(architecture, dtype, hidden)
    assert engine.info().dtype == dtype
    traces = sample(engine, 3)
    places = [(trace, index) for trace in traces for index in range(0, len(trace.ids), 3)]
    points = [Point(trace.handle, len(trace.prompt_ids) + index) for trace, index in places]
    for (trace, index), found in zip(places, engine.verify(points, Quiet()), strict=True):
        assert found.top == trace.top[index], (trace.handle, index)
        assert found.cached == found.expected_cached
    # One at a time as well: the steps have companions.
    for point, (trace, index) in list(zip(points, places, strict=True))[-3:]:
        assert engine.verify([point], Quiet())[0].top == trace.top[index]
    assert [verdict.provenance for verdict in engine.rebuild(traces, Quiet())] == ["rebuilt, verified"] * 3
    requests = [
        ContinuationRequest(trace.handle, len(trace.prompt_ids) + 20, trace.ids[20], seed, SAMPLING)
        for trace in traces
        if len(trace.ids) > 21
        for seed in range(2)
    ]
    exact = engine.continuations(requests, "exact", Quiet())
    assert engine.continuations(requests, "exact", Quiet()).continuations == exact.continuations
    assert {c.cached for c in engine.continuations(requests, "refeed", Quiet()).continuations if c} == {0}


def test_a_cache_that_is_too_small_shows_in_the_readings(start: Callable[..., VllmEngine]) -> None:
    """Forty sequences of up to 8 blocks, and 59 blocks of 32 tokens: vLLM preempts, evicts, and the readings say so."""
    engine = start("llama", "float32", 128, kv_cache_memory_bytes=60 * 65_536, max_model_len=512)
    long = Sampling(temperature=0.7, top_p=0.95, max_tokens=200)
    assert engine.capacity() == 0
    traces = sample(engine, 40, long)
    requests = [
        ContinuationRequest(trace.handle, len(trace.prompt_ids) + 3, trace.ids[3], 9, long)
        for trace in traces
        if len(trace.ids) > 4
    ]
    batch = engine.continuations(requests, "refeed", Quiet())
    assert batch.preemptions is not None
    assert batch.preemptions > 0
    # A preempted request goes on drawing where it was.
    calm = [engine.continuations([request], "refeed", Quiet()) for request in requests[:4]]
    assert [one.preemptions for one in calm] == [0] * 4
    crowded = [c.ids for c in batch.continuations if c]
    assert [c.ids for one in calm for c in one.continuations if c] == crowded[:4]
    late = [Point(trace.handle, len(trace.prompt_ids) + len(trace.ids) - 1) for trace in traces]
    found = engine.verify(late, Quiet())
    assert any(one.cached != one.expected_cached for one in found)
    # What was evicted stays lost: the prefill that took its place is never taken for it.
    for before, after in zip(found, engine.verify(late, Quiet()), strict=True):
        assert before.cached == before.expected_cached or after.cached != after.expected_cached


def test_a_pass_that_writes_more_than_the_cache_holds_loses_no_state(start: Callable[..., VllmEngine]) -> None:
    """Kept states and the rows that run at once fit, what a pass writes does not."""
    engine = start("llama", "float32", 128, kv_cache_memory_bytes=140 * 65_536, max_model_len=512, max_num_seqs=8)
    traces = [trace for trace in sample(engine, 8) if len(trace.ids) > 40]
    assert len(traces) > 3
    requests = [
        ContinuationRequest(trace.handle, len(trace.prompt_ids) + 36, trace.ids[36], seed, SAMPLING)
        for trace in traces
        for seed in range(10)
    ]
    first = engine.continuations(requests, "exact", Quiet())
    backwards = engine.continuations(requests[::-1], "exact", Quiet())
    assert backwards.continuations[::-1] == first.continuations
    assert [c and c.cached for c in first.continuations] == [c and c.expected_cached for c in first.continuations]
    assert (first.preemptions, backwards.preemptions) == (0, 0)
    written = sum(len(c.ids) for c in first.continuations if c)
    assert written > engine.capacity()
