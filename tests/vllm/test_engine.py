"""The contract on the real vLLM, with one tiny engine for the module."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backend.engines.base import ContinuationRequest, Point, Quiet, RolloutRequest, Sampling
from backend.engines.vllm_options import CPU_ROWS, MIN_ROWS
from backend.errors import Cancelled, UserError
from backend.records import Trace

if TYPE_CHECKING:
    from backend.engines.vllm_engine import VllmEngine

ROOT = Path(__file__).resolve().parents[2]
SAMPLING = Sampling(temperature=0.7, top_p=0.95, max_tokens=120)
QUESTION = "Mia has 12 apples and buys 7 more. How many apples does Mia have now?"


@pytest.fixture(scope="module")
def engine(start: Callable[..., VllmEngine]) -> VllmEngine:
    return start()


@pytest.fixture(scope="module")
def traces(engine: VllmEngine) -> list[Trace]:
    """Six rollouts of one prompt."""
    prompt = engine.prompt_ids([{"role": "user", "content": QUESTION}], QUESTION)
    return engine.rollouts([RolloutRequest(f"r{i}", prompt, 1000 + i, SAMPLING) for i in range(6)], Quiet())


def requests_at(trace: Trace, step: int, sampling: Sampling = SAMPLING) -> list[ContinuationRequest]:
    """Both arms at every `step`-th generated position but the last; the alternative is the best other token."""
    start, requests = len(trace.prompt_ids), []
    for index in range(0, len(trace.ids) - 1, step):
        other = next(token for token in trace.top[index].ids if token not in {trace.ids[index], 0, 1, 2})
        for arm, token in enumerate((trace.ids[index], other)):
            requests.append(ContinuationRequest(trace.handle, start + index, token, 7 * index + arm, sampling))
    return requests


def test_rollouts_record_five_raw_logprobs_a_token(engine: VllmEngine, traces: list[Trace]) -> None:
    ends = engine.info().eos_ids
    for trace in traces:
        assert len(trace.ids) == len(trace.logprobs) == len(trace.top)
        assert (trace.finish_reason == "stop") == (trace.ids[-1] in ends)
        assert len(trace.ids) == SAMPLING.max_tokens or trace.finish_reason == "stop"
        assert not set(trace.ids[:-1]) & set(ends)
        for token, logprob, top in zip(trace.ids, trace.logprobs, trace.top, strict=True):
            assert len(set(top.ids)) == 5
            assert top.logprobs == sorted(top.logprobs, reverse=True)
            assert logprob <= top.logprobs[0] <= 0
            if token in top.ids:
                assert top.logprobs[top.ids.index(token)] == logprob
    assert len({tuple(trace.ids) for trace in traces}) == len(traces)


def test_greedy_takes_the_lowest_id_among_equals(engine: VllmEngine, traces: list[Trace]) -> None:
    greedy = Sampling(temperature=0.0, top_p=1.0, max_tokens=120)
    (trace,) = engine.rollouts([RolloutRequest("greedy", traces[0].prompt_ids, 5, greedy)], Quiet())
    for token, top in zip(trace.ids, trace.top, strict=True):
        best = [t for t, value in zip(top.ids, top.logprobs, strict=True) if value == top.logprobs[0]]
        assert token == min(best)
    engine.release(["greedy"])


def test_exact_hits_are_the_full_blocks_and_refeed_hits_none(engine: VllmEngine, traces: list[Trace]) -> None:
    block = engine.info().block_size
    assert block == 32
    short = replace(SAMPLING, max_tokens=2)
    requests = [request for trace in traces[:3] for request in requests_at(trace, 3, short)]
    exact = engine.continuations(requests, "exact", Quiet())
    start = len(traces[0].prompt_ids)
    for request, continuation in zip(requests, exact.continuations, strict=True):
        # Inside the block where the prompt ends, resuming starts from the prompt's own full blocks.
        full = max(request.position // block * block, (start - 1) // block * block)
        assert continuation is not None
        assert (request.position, continuation.cached) == (request.position, full)
        assert continuation.expected_cached == full
    assert exact.preemptions == 0
    refeed = engine.continuations(requests, "refeed", Quiet())
    assert {(c.expected_cached, c.cached) for c in refeed.continuations if c} == {(0, 0)}


def test_verification_equals_the_record_at_every_position(engine: VllmEngine, traces: list[Trace]) -> None:
    places = [(trace, index) for trace in traces for index in range(len(trace.ids))]
    points = [Point(trace.handle, len(trace.prompt_ids) + index) for trace, index in places]
    for (trace, index), found in zip(places, engine.verify(points, Quiet()), strict=True):
        assert found.top == trace.top[index], (trace.handle, index)
        assert found.cached == found.expected_cached


@pytest.mark.parametrize("together", [1, 2, 5])
def test_verification_does_not_depend_on_how_many_are_asked(
    engine: VllmEngine, traces: list[Trace], together: int
) -> None:
    trace = traces[0]
    for first in range(0, 40, 2 * together):
        points = [Point(trace.handle, len(trace.prompt_ids) + first + i) for i in range(together)]
        found = engine.verify(points, Quiet())
        assert [one.top for one in found] == trace.top[first : first + together]


def test_forced_tails_reproduce_the_rollout(engine: VllmEngine, traces: list[Trace]) -> None:
    """A greedy rollout resumed anywhere with its own token goes on as it did, with the same logprobs."""
    greedy = Sampling(temperature=0.0, top_p=1.0, max_tokens=60)
    (trace,) = engine.rollouts([RolloutRequest("greedy", traces[0].prompt_ids, 5, greedy)], Quiet())
    start, end = len(trace.prompt_ids), len(trace.prompt_ids) + len(trace.ids)
    requests = [
        ContinuationRequest(
            "greedy", position, trace.ids[position - start], 0, replace(greedy, max_tokens=end - 1 - position)
        )
        for position in range(start, end - 1)
    ]
    batch = engine.continuations(requests, "exact", Quiet())
    for request, continuation in zip(requests, batch.continuations, strict=True):
        after = request.position + 1 - start
        assert continuation is not None
        assert continuation.ids == trace.ids[after:], request.position
        assert continuation.logprobs == trace.logprobs[after:], request.position
    engine.release(["greedy"])


def test_recorded_tokens_come_out_as_they_were_before_anything_is_drawn(
    engine: VllmEngine, traces: list[Trace]
) -> None:
    """In a crowd and alone, within the prompt's last block and behind it."""
    requests = requests_at(traces[0], 1, replace(SAMPLING, max_tokens=2))
    crowd = engine.continuations(requests, "exact", Quiet()).continuations
    tails = [one.tail_difference for one in crowd if one]
    assert set(tails) == {0.0, None}
    # None where a block ends at the position, and for the alternative arm nothing but the arm is forced.
    assert tails.count(0.0) > len(requests) * 3 // 4
    for request, one in list(zip(requests, crowd, strict=True))[:12]:
        assert engine.continuations([request], "exact", Quiet()).continuations == [one], request.position
    assert {
        one.tail_difference for one in engine.continuations(requests[:8], "refeed", Quiet()).continuations if one
    } == {None}
    state = engine._states._kept[traces[0].handle]
    state.logprobs[2] -= 0.25
    try:
        found = engine.continuations(requests[:14], "exact", Quiet()).continuations
        assert {one.tail_difference for one in found if one} == {0.25, 0.0, None}
    finally:
        state.logprobs[2] += 0.25


def test_the_one_token_behind_a_prompts_full_blocks_is_prefilled_again(engine: VllmEngine, traces: list[Trace]) -> None:
    """And not decoded beside the others, however little there is to prefill."""
    prompt = (traces[0].prompt_ids * 2)[:65]
    one = engine.rollouts([RolloutRequest("odd", prompt, 5, SAMPLING)], Quiet())[0]
    requests = requests_at(one, 1, replace(SAMPLING, max_tokens=2))[:40]
    found = engine.continuations(requests, "exact", Quiet()).continuations
    assert [(c.cached, c.tail_difference) for c in found if c] == [
        (64, None if request.position == 65 and request.token != one.ids[0] else 0.0) for request in requests
    ]
    points = [Point("odd", request.position) for request in requests]
    assert [seen.top for seen in engine.verify(points, Quiet())] == [one.top[p.position - 65] for p in points]
    engine.release(["odd"])


def test_the_replica_is_the_same_bit_for_bit_alone_or_shuffled(engine: VllmEngine, traces: list[Trace]) -> None:
    requests = [request for trace in traces for request in requests_at(trace, 17)]
    exact = engine.continuations(requests, "exact", Quiet()).continuations
    assert engine.continuations(requests, "exact", Quiet()).continuations == exact
    assert engine.continuations(requests[::-1], "exact", Quiet()).continuations == exact[::-1]
    assert engine.continuations(requests[:2], "exact", Quiet(), serial=True).continuations == exact[:2]


def test_seeds_hold_in_mixed_batches_and_differ_from_each_other(engine: VllmEngine, traces: list[Trace]) -> None:
    trace = traces[0]
    position, token = len(trace.prompt_ids) + 9, trace.ids[9]
    requests = [ContinuationRequest(trace.handle, position, token, seed, SAMPLING) for seed in (1, 2, 1, 3)]
    greedy = ContinuationRequest(trace.handle, position, token, 1, replace(SAMPLING, temperature=0.0))
    hot = ContinuationRequest(trace.handle, position, token, 1, replace(SAMPLING, temperature=1.5, top_p=1.0))
    one, two, again, three, coldest, hottest = engine.continuations(
        [*requests, greedy, hot], "exact", Quiet()
    ).continuations
    assert one == again
    assert len({tuple(c.ids) for c in (one, two, three, coldest, hottest) if c}) == 5
    (alone,) = engine.continuations(requests[:1], "exact", Quiet()).continuations
    assert alone == one


def test_exact_and_refeed_draw_with_the_same_noise(engine: VllmEngine, traces: list[Trace]) -> None:
    """Exact forces up to a block of tokens first and refeed none; at this size their logits agree (nearly) to the bit.

    On processors whose prefill kernels round otherwise a few continuations may part; with other noise nearly all would.
    """
    requests = [request for trace in traces for request in requests_at(trace, 7)]
    exact = engine.continuations(requests, "exact", Quiet()).continuations
    refeed = engine.continuations(requests, "refeed", Quiet()).continuations
    same = [a is not None and b is not None and a.ids == b.ids for a, b in zip(exact, refeed, strict=True)]
    assert sum(same) >= 0.9 * len(same), f"{same.index(False)} differs first"


def test_a_siblings_blocks_are_never_used(engine: VllmEngine, traces: list[Trace]) -> None:
    """A rollout with the same ids, whose own blocks were never written, finds nothing."""
    trace = next(trace for trace in traces if len(trace.ids) > 64)
    kept, _ = engine._states.prefix(trace.handle, len(trace.prompt_ids))
    engine._states.keep("twin", replace(kept, salt=engine._states.salt("twin")))
    position = len(trace.prompt_ids) + 60
    request = ContinuationRequest("twin", position, trace.ids[60], 1, SAMPLING)
    (found,) = engine.continuations([request], "exact", Quiet()).continuations
    assert found is not None
    assert (found.expected_cached, found.cached) == (position // 32 * 32, 0)
    # Its own decoding brings them.
    assert engine.rebuild([replace(trace, handle="twin")], Quiet())[0].provenance == "rebuilt, verified"
    (found,) = engine.continuations([request], "exact", Quiet()).continuations
    assert found is not None
    assert found.cached == found.expected_cached
    engine.release(["twin"])


def test_rebuilding_says_where_a_record_differs(engine: VllmEngine, traces: list[Trace]) -> None:
    top = list(traces[1].top)
    top[4] = replace(top[4], logprobs=[top[4].logprobs[0] + 0.25, *top[4].logprobs[1:]])
    altered = replace(traces[1], handle="altered", top=top)
    bare = replace(traces[1], handle="bare", top=[], logprobs=[])
    good, off, unknown = engine.rebuild([replace(traces[1], handle="good"), altered, bare], Quiet())
    assert (good.equal, good.max_difference, good.first_divergence) == (True, 0.0, None)
    assert (off.equal, off.max_difference, off.first_divergence) == (False, 0.25, len(traces[1].prompt_ids) + 4)
    assert unknown.provenance is None
    engine.release(["good", "altered", "bare"])


def test_ids_after_an_end_of_sequence_can_be_rebuilt(engine: VllmEngine, traces: list[Trace]) -> None:
    """An imported transcript may go on after such an id; what is forced does not stop the request."""
    end = engine.info().eos_ids[0]
    trace = replace(
        traces[0], handle="ended", ids=[*traces[0].ids[:10], end, *traces[0].ids[10:40]], top=[], logprobs=[]
    )
    engine.rebuild([trace], Quiet())
    start = len(trace.prompt_ids)
    (found,) = engine.verify([Point("ended", start + 40)], Quiet())
    assert found.cached == found.expected_cached
    with pytest.raises(UserError, match=f"token {end} ends the sequence at or before position {start + 20}"):
        engine.continuations([ContinuationRequest("ended", start + 20, 50, 1, SAMPLING)], "exact", Quiet())
    engine.release(["ended"])


class CancelAfter:
    """Stops at the n-th step."""

    def __init__(self, steps: int) -> None:
        self.steps, self.tokens = steps, 0

    def tick(self, tokens: int) -> None:
        self.tokens += tokens
        self.steps -= 1
        if self.steps == 0:
            raise Cancelled("stopped")


def test_cancelling_aborts_what_runs_and_leaves_the_engine_whole(engine: VllmEngine, traces: list[Trace]) -> None:
    requests = requests_at(traces[2], 11)
    before = engine.continuations(requests, "exact", Quiet()).continuations
    control = CancelAfter(10)
    with pytest.raises(Cancelled):
        engine.continuations(requests, "exact", control)
    assert 0 < control.tokens <= 10 * len(requests)
    assert not engine._llm.llm_engine.has_unfinished_requests()
    assert engine.continuations(requests, "exact", Quiet()).continuations == before


def test_progress_counts_every_token(engine: VllmEngine, traces: list[Trace]) -> None:
    control = CancelAfter(10_000)
    again = engine.rollouts([RolloutRequest("count", traces[0].prompt_ids, 1000, SAMPLING)], control)
    assert again[0].ids == traces[0].ids
    assert control.tokens == len(again[0].ids)
    engine.release(["count"])


def test_handles_are_held_until_released(engine: VllmEngine, traces: list[Trace]) -> None:
    engine.rebuild([replace(traces[0], handle="short-lived")], Quiet())
    assert engine.holds(["short-lived", "never"]) == [True, False]
    engine.release(["short-lived", "never"])
    assert engine.holds(["short-lived"]) == [False]
    with pytest.raises(UserError, match="no state is kept under the handle `short-lived`"):
        engine.verify([Point("short-lived", 80)], Quiet())


def test_the_beginning_of_a_rollout_resumes_like_the_whole(engine: VllmEngine, traces: list[Trace]) -> None:
    whole, half = traces[0], len(traces[0].ids) // 2
    part = replace(whole, handle="half", ids=whole.ids[:half], logprobs=whole.logprobs[:half], top=whole.top[:half])
    assert [verdict.provenance for verdict in engine.rebuild([part], Quiet())] == ["rebuilt, verified"]
    points = [Point("half", len(whole.prompt_ids) + index) for index in (half // 2, half - 1)]
    found = engine.verify(points, Quiet())
    assert [one.top for one in found] == [whole.top[half // 2], whole.top[half - 1]]
    assert [one.cached for one in found] == [one.expected_cached for one in found]
    engine.release(["half"])


def test_requests_that_cannot_be_are_refused_in_a_sentence(engine: VllmEngine, traces: list[Trace]) -> None:
    trace, quiet = traces[0], Quiet()
    end = len(trace.prompt_ids) + len(trace.ids)
    with pytest.raises(UserError, match=f"position 3 of `r0` is not between {len(trace.prompt_ids)} and {end}"):
        engine.verify([Point("r0", 3)], quiet)
    with pytest.raises(UserError, match="token ids outside 0 … 511"):
        engine.continuations([ContinuationRequest("r0", end, 512, 1, SAMPLING)], "exact", quiet)
    with pytest.raises(UserError, match="a request has 1024 tokens, but sequences end at 1024"):
        engine.rollouts([RolloutRequest("long", [5] * 1024, 1, SAMPLING)], quiet)
    with pytest.raises(UserError, match="have the same handle"):
        engine.rollouts([RolloutRequest("twice", trace.prompt_ids, 1, SAMPLING)] * 2, quiet)
    with pytest.raises(UserError, match="no generated tokens"):
        engine.rebuild([Trace("none", trace.prompt_ids, [], [], [], "length")], quiet)


def test_facts_are_read_from_the_running_engine(engine: VllmEngine) -> None:
    info = engine.info()
    assert (info.engine, info.device, info.dtype, info.graphs) == ("vllm", "cpu", "bfloat16", False)
    assert (info.attention_backend, info.batch_invariant) == ("CPU_ATTN", False)
    assert info.max_num_seqs is not None
    assert MIN_ROWS <= info.max_num_seqs <= CPU_ROWS
    assert (info.architecture, info.context_length, info.eos_ids) == ("LlamaForCausalLM", 1024, [2])
    assert info.parameters is not None
    assert info.digest() == engine.info().digest()
    # 64 MiB of 1 KiB a token, less a block of vLLM's own and room for the rows that fill up small steps.
    assert engine.capacity() == (65536 - 32) - 8 * 288


def test_a_rollout_rebuilt_in_a_new_process_verifies(engine: VllmEngine, traces: list[Trace], tmp_path: Path) -> None:
    record = tmp_path / "traces.json"
    record.write_text(json.dumps([asdict(trace) for trace in traces[:3]]))
    model = engine._llm.llm_engine.vllm_config.model_config.model
    command = [sys.executable, "-m", "tests.vllm.rebuild_elsewhere", model, str(record)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    verdicts = json.loads(done.stdout.splitlines()[-1])
    assert verdicts["provenance"] == ["rebuilt, verified"] * 3
    requests = requests_at(traces[0], 29)
    live = engine.continuations(requests, "exact", Quiet()).continuations
    assert verdicts["continuations"] == [asdict(c) for c in live if c]


def test_only_refed_prompts_are_prefilled_beside_others(engine: VllmEngine, traces: list[Trace]) -> None:
    """More requests than a step has rows, some resumed inside the prompt: no step of an exact pass does both.

    The running ones rest for a step meanwhile, and go on where they were.
    """
    scheduler = engine._llm.llm_engine.engine_core.engine_core.scheduler
    schedule, seen, mixed, most = scheduler.schedule, set(), [], engine.info().max_num_seqs or 0
    steps: list[set[str]] = []

    def watched(*given: Any) -> Any:
        output = schedule(*given)
        rows = {name: tokens for name, tokens in output.num_scheduled_tokens.items() if "companion" not in name}
        assert len(output.num_scheduled_tokens) <= most
        mixed.append(any(tokens > 1 for tokens in rows.values()) and any(name in seen for name in rows))
        seen.update(rows)
        steps.append(set(rows))
        return output

    prompt = traces[0].prompt_ids
    many = [RolloutRequest(f"many{i}", prompt, i, replace(SAMPLING, max_tokens=4 + i % 5)) for i in range(100)]
    requests = [
        one
        for i, trace in enumerate([*traces] * 4)
        for one in requests_at(trace, 7, replace(SAMPLING, max_tokens=5 + i % 5))
    ]
    scheduler.schedule = watched
    try:
        engine.rollouts(many, Quiet())
        engine.continuations(requests, "exact", Quiet())
        assert len(requests) > most
        assert not any(mixed)
        assert any((before & after) - now for before, now, after in zip(steps, steps[1:], steps[2:], strict=False))
        engine.continuations(requests, "refeed", Quiet())
        assert any(mixed)
    finally:
        del scheduler.schedule
        engine.release([request.handle for request in many])
