"""Exactness on real weights: what is resumed, verified and rebuilt equals what was decoded, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.engines.base import ContinuationRequest, Point, Quiet, RolloutRequest, Sampling
from backend.engines.transformers_engine import TransformersEngine
from backend.errors import Cancelled, UserError
from backend.problems import messages, plain_prompt
from backend.records import TopK, Trace

QUESTION = "Mia has 12 apples and buys 7 more. How many apples does Mia have now?"
GREEDY = Sampling(0.0, 1.0, 24)
SAMPLED = Sampling(0.7, 0.95, 24)

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def engine(request: pytest.FixtureRequest, weights: Path) -> Iterator[TransformersEngine]:
    running = TransformersEngine(weights, request.param, name="smollm2-135m", sha256=None, options={})
    yield running
    running.close()


@pytest.fixture(scope="module")
def prompt(engine: TransformersEngine) -> list[int]:
    return engine.prompt_ids(messages(QUESTION), plain_prompt(QUESTION))


@pytest.fixture(scope="module")
def traces(engine: TransformersEngine, prompt: list[int]) -> list[Trace]:
    """A greedy rollout and seven sampled ones."""
    requests = [RolloutRequest(f"r{i}", prompt, 100 + i, SAMPLED if i else GREEDY) for i in range(8)]
    return engine.rollouts(requests, Quiet())


def first_divergence(one: list[TopK], other: list[TopK]) -> str:
    for i, (a, b) in enumerate(zip(one, other, strict=True)):
        if a != b:
            gaps = [abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True)]
            return f"at generated token {i}: {a.ids} and {b.ids}, largest difference {max(gaps):.3g}"
    return "none"


def test_rollouts_record_five_alternatives_a_token(traces: list[Trace]) -> None:
    for trace in traces:
        assert len(trace.ids) == len(trace.logprobs) == len(trace.top)
        assert all(len(top.ids) == 5 for top in trace.top)
        for token, logprob, top in zip(trace.ids, trace.logprobs, trace.top, strict=True):
            if token in top.ids:
                assert logprob == top.logprobs[top.ids.index(token)]


def test_greedy_takes_the_most_probable_token(traces: list[Trace]) -> None:
    greedy = traces[0]
    assert [max(top.logprobs) for top in greedy.top] == greedy.logprobs


def test_verification_finds_the_record_again_at_every_position(
    engine: TransformersEngine, prompt: list[int], traces: list[Trace]
) -> None:
    for trace in traces[:3]:
        points = [Point(trace.handle, len(prompt) + i) for i in range(len(trace.ids))]
        found = engine.verify(points[:-1], Quiet())
        assert [one.cached for one in found] == [point.position - 1 for point in points[:-1]]
        tops = [one.top for one in found]
        assert tops == trace.top[:-1], first_divergence(trace.top[:-1], tops)


def test_the_state_at_a_pivot_is_the_state_at_capture(
    engine: TransformersEngine, prompt: list[int], traces: list[Trace]
) -> None:
    """A continuation that is forced down the recorded path writes the same KV as the rollout did."""
    trace = traces[1]
    before = [(keys.clone(), values.clone()) for keys, values in engine._states[trace.handle].layers]
    (verdict,) = engine.rebuild([trace], Quiet())
    assert verdict.equal is True, f"first difference at position {verdict.first_divergence}"
    assert verdict.provenance == "rebuilt, verified"
    after = engine._states[trace.handle].layers
    for layer, (kept, rebuilt) in enumerate(zip(before, after, strict=True)):
        for kind, one, other in zip(("keys", "values"), kept, rebuilt, strict=True):
            assert torch.equal(one, other), f"layer {layer}, {kind}: {(one - other).abs().max():.3g}"


def test_a_resumed_greedy_continuation_is_the_rest_of_the_rollout(
    engine: TransformersEngine, prompt: list[int], traces: list[Trace]
) -> None:
    trace = traces[0]
    cuts = [0, 1, 5, len(trace.ids) // 2, len(trace.ids) - 2]
    requests = [
        ContinuationRequest(trace.handle, len(prompt) + i, trace.ids[i], 1, Sampling(0.0, 1.0, len(trace.ids) - i - 1))
        for i in cuts
    ]
    batch = engine.continuations(requests, "exact", Quiet())
    for i, found in zip(cuts, batch.continuations, strict=True):
        assert found is not None
        assert found.ids == trace.ids[i + 1 :], f"cut at generated token {i}"
        assert found.logprobs == trace.logprobs[i + 1 :], f"cut at generated token {i}"
        assert found.expected_cached == found.cached == len(prompt) + i


def test_the_beginning_of_a_rollout_resumes_like_the_whole(
    engine: TransformersEngine, prompt: list[int], traces: list[Trace]
) -> None:
    """At the last position that a state rebuilt from the first half can be cut at."""
    whole, half = traces[0], len(traces[0].ids) // 2
    part = replace(whole, handle="half", ids=whole.ids[:half], logprobs=whole.logprobs[:half], top=whole.top[:half])
    (verdict,) = engine.rebuild([part], Quiet())
    assert verdict.provenance == "rebuilt, verified"
    position, rest = len(prompt) + half - 1, Sampling(0.0, 1.0, len(whole.ids) - half)
    request = ContinuationRequest("half", position, whole.ids[half - 1], 1, rest)
    (found,) = engine.continuations([request], "exact", Quiet()).continuations
    assert found is not None
    assert (found.ids, found.logprobs) == (whole.ids[half:], whole.logprobs[half:])
    assert engine.verify([Point("half", position)], Quiet())[0].top == whole.top[half - 1]
    engine.release(["half"])


def test_a_continuation_does_not_depend_on_its_company(
    engine: TransformersEngine, prompt: list[int], traces: list[Trace]
) -> None:
    position = len(prompt) + 4
    requests = [
        ContinuationRequest(traces[2].handle, position, token, seed, SAMPLED)
        for token in (traces[2].ids[4], traces[2].top[4].ids[-1])
        for seed in range(7)
    ]
    others = [ContinuationRequest(traces[5].handle, len(prompt) + 9, traces[5].ids[9], 3, SAMPLED)] * 5
    together = engine.continuations([*requests, *others], "exact", Quiet()).continuations[: len(requests)]
    again = engine.continuations(requests, "exact", Quiet()).continuations
    assert list(again) == list(together)
    alone = engine.continuations(requests[3:4], "exact", Quiet(), serial=True).continuations[0]
    assert alone == together[3]


def test_refeed_is_cold_and_draws_with_the_same_noise(
    engine: TransformersEngine, prompt: list[int], traces: list[Trace]
) -> None:
    position = len(prompt) + 4
    requests = [
        ContinuationRequest(traces[2].handle, position, traces[2].ids[4], seed, Sampling(0.7, 0.95, 8))
        for seed in range(8)
    ]
    batch = engine.continuations(requests, "refeed", Quiet())
    assert [one.cached for one in batch.continuations if one] == [0] * 8
    assert [one.expected_cached for one in batch.continuations if one] == [0] * 8
    exact = engine.continuations(requests, "exact", Quiet())
    first = [(a.ids[0], b.ids[0]) for a, b in zip(exact.continuations, batch.continuations, strict=True) if a and b]
    # Numerics may move a draw now and then; noise of its own would move most.
    assert sum(a == b for a, b in first) >= 6


def test_sampling_follows_the_seed(engine: TransformersEngine, prompt: list[int]) -> None:
    hot = Sampling(1.5, 1.0, 12)
    seeds = (1, 2, 1)
    one, two, three = engine.rollouts([RolloutRequest(f"s{i}", prompt, s, hot) for i, s in enumerate(seeds)], Quiet())
    assert one.ids == three.ids
    assert one.ids != two.ids


def test_unknown_handles_and_positions_are_refused(engine: TransformersEngine, prompt: list[int]) -> None:
    with pytest.raises(UserError, match="keeps no state of rollout nobody"):
        engine.verify([Point("nobody", 3)], Quiet())
    with pytest.raises(UserError, match="lies outside rollout r0"):
        engine.verify([Point("r0", 10_000)], Quiet())


def test_a_call_can_be_cancelled(engine: TransformersEngine, prompt: list[int]) -> None:
    class Stop:
        steps = 0

        def tick(self, tokens: int) -> None:
            self.steps += 1
            if self.steps > 3:
                raise Cancelled("enough")

    stop = Stop()
    with pytest.raises(Cancelled):
        engine.rollouts([RolloutRequest("c", prompt, 1, SAMPLED)], stop)
    assert stop.steps == 4
    assert engine.holds(["c"]) == [False]


def test_released_and_least_recently_used_states_go(engine: TransformersEngine, prompt: list[int]) -> None:
    engine.rollouts([RolloutRequest("gone", prompt, 1, Sampling(0.7, 0.95, 2))], Quiet())
    assert engine.holds(["gone"]) == [True]
    engine.release(["gone", "never there"])
    assert engine.holds(["gone"]) == [False]


def test_unknown_options_are_refused(weights: Path) -> None:
    with pytest.raises(UserError, match=r"engine_options\.thread"):
        TransformersEngine(weights, "float32", name="x", sha256=None, options={"thread": 2})
