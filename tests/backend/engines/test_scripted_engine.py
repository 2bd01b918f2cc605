"""The scripted engine keeps the contract's promises, and breaks exactly what it is told to."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.engines.base import ContinuationRequest, Point, Quiet, RolloutRequest, Sampling
from backend.engines.scripted_engine import ScriptedEngine
from backend.engines.scripted_model import END, SPECIAL_IDS
from backend.errors import Cancelled, OutOfMemory, UserError
from backend.pivots import margin
from backend.records import Trace
from tests.backend.play import MIXED, PROBLEMS, scripted

GREEDY = Sampling(0.0, 1.0, 100)
SAMPLED = Sampling(0.7, 0.95, 100)


def sample(
    engine: ScriptedEngine, question: str = MIXED.question, *, sampling: Sampling = SAMPLED, seed: int = 1
) -> Trace:
    prompt = engine.prompt_ids([{"role": "user", "content": question}], question)
    return engine.rollouts([RolloutRequest("a", prompt, seed, sampling)], Quiet())[0]


def request(trace: Trace, index: int, *, seed: int = 9, sampling: Sampling = SAMPLED) -> ContinuationRequest:
    """Continue after the trace's own token at a generated index."""
    return ContinuationRequest("a", len(trace.prompt_ids) + index, trace.ids[index], seed, sampling)


def text(engine: ScriptedEngine, trace: Trace) -> str:
    return b"".join(engine.token_bytes(trace.ids)).decode()


def test_a_rollout_is_worked_text_that_ends_in_an_answer() -> None:
    engine = scripted()
    trace = sample(engine, sampling=GREEDY)
    written = text(engine, trace)
    assert written.startswith("Plan: →"), written
    assert "\nAnswer: " in written, written
    assert trace.ids[-1] == END
    assert trace.finish_reason == "stop"


def test_problems_are_always_sometimes_and_never_right() -> None:
    engine = scripted()
    accuracies = set()
    for problem in PROBLEMS[:20]:
        texts = [text(engine, sample(engine, problem.question, seed=seed)) for seed in range(8)]
        right = sum(f"Answer: {problem.gold}<" in written.replace("\n<", "<") for written in texts)
        accuracies.add("none" if right == 0 else "all" if right == 8 else "some")
    assert accuracies == {"none", "some", "all"}


def test_top_k_holds_what_real_ones_do() -> None:
    engine = scripted()
    traces = [sample(engine, problem.question, seed=seed) for seed, problem in enumerate(PROBLEMS[:20])]
    tops = [top for trace in traces for top in trace.top]
    assert all(len(top.ids) == len(top.logprobs) == 5 for top in tops)
    assert any(0.0 in top.logprobs and -math.inf in top.logprobs for top in tops)
    assert any(margin(top.logprobs) == 0.0 for top in tops), "no tie"
    assert any(top.logprobs != sorted(top.logprobs, reverse=True) for top in tops), "all sorted"
    low = [sum((margin(top.logprobs) or 9) < 1 for top in trace.top) for trace in traces]
    assert min(low) >= 1
    assert max(low) <= 12
    for trace in traces:
        for token, logprob, top in zip(trace.ids, trace.logprobs, trace.top, strict=True):
            assert top.logprobs[top.ids.index(token)] == logprob


def test_a_seed_alone_decides_the_sample() -> None:
    one, other = scripted(), scripted()
    assert sample(one, seed=3) == sample(other, seed=3)
    assert len({tuple(sample(one, seed=seed).ids) for seed in range(20)}) > 5


def test_a_greedy_rollout_is_reproduced_from_every_position() -> None:
    engine = scripted()
    trace = sample(engine, sampling=GREEDY)
    requests = [request(trace, index, sampling=GREEDY) for index in range(len(trace.ids) - 1)]
    for source in ("exact", "refeed"):
        batch = engine.continuations(requests, source, Quiet())
        for index, one in enumerate(batch.continuations):
            assert one is not None
            assert (one.ids, one.logprobs) == (trace.ids[index + 1 :], trace.logprobs[index + 1 :]), (source, index)
            expected = len(trace.prompt_ids) + index if source == "exact" else 0
            assert (one.expected_cached, one.cached) == (expected, expected)
    points = [Point("a", len(trace.prompt_ids) + index) for index in range(len(trace.ids))]
    assert [one.top for one in engine.verify(points, Quiet())] == trace.top


def test_serial_gives_what_a_batch_gives() -> None:
    engine = scripted()
    trace = sample(engine)
    requests = [request(trace, 9, seed=seed) for seed in range(6)]
    together = engine.continuations(requests, "exact", Quiet())
    assert engine.continuations(requests, "exact", Quiet(), serial=True) == together


def test_states_are_kept_rebuilt_and_released() -> None:
    engine = scripted()
    trace = sample(engine)
    engine.release(["a", "unknown"])
    assert engine.holds(["a"]) == [False]
    with pytest.raises(UserError, match="no state is kept under the handle `a`"):
        engine.continuations([request(trace, 9)], "exact", Quiet())
    (verdict,) = engine.rebuild([trace], Quiet())
    assert (verdict.equal, verdict.max_difference, verdict.first_divergence) == (True, 0.0, None)
    assert verdict.provenance == "rebuilt, verified"
    assert engine.holds(["a"]) == [True]
    assert engine.rebuild([replace(trace, top=[])], Quiet())[0].provenance is None


def test_a_rebuild_can_be_off() -> None:
    engine = scripted({"noise": {"rebuild": 0.1}})
    trace = sample(engine)
    (verdict,) = engine.rebuild([trace], Quiet())
    assert verdict.equal is False
    assert verdict.max_difference is not None
    assert 0 < verdict.max_difference <= 0.2
    assert verdict.provenance == f"rebuilt, off by {verdict.max_difference:.3g}"
    assert verdict.first_divergence is not None
    index = verdict.first_divergence - len(trace.prompt_ids)
    (resumed,) = engine.verify([Point("a", verdict.first_divergence)], Quiet())
    assert resumed.top != trace.top[index]


def test_noise_hits_one_source_or_one_repetition() -> None:
    def passes(options: dict[str, Any]) -> list[Any]:
        engine = scripted(options)
        trace = sample(engine)
        requests = [request(trace, 9, seed=seed) for seed in range(6)]
        return [
            engine.continuations(requests, source, Quiet()).continuations for source in ("exact", "exact", "refeed")
        ]

    def logprobs(continuations: Any) -> list[list[float]]:
        return [one.logprobs for one in continuations]

    clean = [logprobs(one) for one in passes({})]
    assert clean[0] == clean[1] == clean[2]
    noisy = [logprobs(one) for one in passes({"noise": {"refeed": 0.3}})]
    assert noisy[0] == noisy[1] == clean[0]
    assert noisy[2] != clean[2]
    second = [logprobs(one) for one in passes({"noise": {"exact:2": 0.3}})]
    assert second[0] == second[2] == clean[0]
    assert second[1] != clean[1]


def test_noise_keeps_logprobs_below_zero_and_certainty_certain() -> None:
    engine = scripted({"noise": {"exact": 3.0}})
    trace = sample(engine)
    batch = engine.continuations([request(trace, 3, seed=seed) for seed in range(50)], "exact", Quiet())
    every = [value for one in batch.continuations if one is not None for value in one.logprobs]
    assert max(every) == 0.0
    assert all(math.isfinite(value) for value in every)


def test_readings_break_one_by_one() -> None:
    def readings(options: dict[str, Any], source: Any) -> tuple[Any, ...]:
        engine = scripted(options)
        batch = engine.continuations([request(sample(engine), 9)], source, Quiet())
        (one,) = batch.continuations
        return (one.expected_cached - one.cached, batch.preemptions) if one is not None else (None, batch.preemptions)

    assert readings({}, "exact") == readings({}, "refeed") == (0, 0)
    assert readings({"fewer_cached": {"exact": 4}}, "exact") == (4, 0)
    assert readings({"warm": {"refeed": 16}}, "refeed") == (-16, 0)
    assert readings({"preemptions": {"exact": 2}}, "exact") == (0, 2)
    assert readings({"dropped": {"exact": 1}}, "exact") == (None, 0)


def test_one_logprob_is_altered_at_verification() -> None:
    engine = scripted({"altered_logprob": 2})
    trace = sample(engine)
    points = [Point("a", len(trace.prompt_ids) + index) for index in range(4)]
    found = [one.top for one in engine.verify(points, Quiet())]
    assert [one == recorded for one, recorded in zip(found, trace.top, strict=False)] == [True, False, True, True]


def test_facts_change_after_a_call() -> None:
    engine = scripted({"facts_change": 1})
    before = engine.info().digest()
    trace = sample(engine)
    assert engine.info().digest() == before
    engine.continuations([request(trace, 9)], "exact", Quiet())
    assert engine.info().digest() != before


def test_work_can_fail() -> None:
    with pytest.raises(RuntimeError, match="the prompt contains 'What is 16'"):
        sample(scripted({"fail_on": "What is 16"}))
    engine = scripted({"memory_requests": 1})
    trace = sample(engine)
    with pytest.raises(OutOfMemory, match="memory for 1 requests, not 2"):
        engine.continuations([request(trace, 9), request(trace, 10)], "exact", Quiet())


def test_a_control_can_stop_it() -> None:
    class Stop:
        def tick(self, tokens: int) -> None:
            raise Cancelled("stop")

    engine = scripted()
    with pytest.raises(Cancelled):
        engine.rollouts([RolloutRequest("a", [1], 1, SAMPLED)], Stop())
    assert engine.holds(["a"]) == [False]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nois": {}}, "unknown option `nois` of the scripted engine; did you mean `noise`"),
        ({"xyz": 1}, "known ones are noise"),
        ({"noise": 1}, "`noise` is 1, but must be a table"),
        ({"noise": {"replica": 1}}, "`noise.replica` is not one of exact, refeed, rebuild"),
        ({"warm": {"exact:x": 1}}, "`warm.exact:x`"),
        ({"warm": {"exact": "1"}}, "`warm.exact` is '1', but must be a number"),
        ({"delay": "long"}, "`delay` is 'long', but must be of type float"),
        ({"memory_requests": True}, "must be of type int"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        scripted(options)


def test_a_position_outside_the_rollout_is_refused() -> None:
    engine = scripted()
    trace = sample(engine)
    for position in (len(trace.prompt_ids) - 1, len(trace.prompt_ids) + len(trace.ids) + 1):
        with pytest.raises(UserError, match="is not between"):
            engine.verify([Point("a", position)], Quiet())


def test_facts_state_what_is_known() -> None:
    info = scripted(batch_invariant=True).info()
    assert (info.engine, info.dtype, info.batch_invariant, info.block_size) == ("scripted", "float32", True, 1)
    assert (info.eos_ids, info.special_ids) == ([END], SPECIAL_IDS)


def test_a_call_is_held_while_a_file_says_so(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    engine = scripted({"hold": str(hold)})
    hold.write_text("exact 2", encoding="utf-8")
    trace = sample(engine)
    requests = [request(trace, 9)]
    first = engine.continuations(requests, "exact", Quiet())

    class LetGo:
        looks = 0

        def tick(self, tokens: int) -> None:
            self.looks += 1
            if self.looks == 3:
                hold.unlink()

    control = LetGo()
    assert engine.continuations(requests, "exact", control).continuations == first.continuations
    assert control.looks > 3

    class Stop:
        def tick(self, tokens: int) -> None:
            raise Cancelled("stop")

    hold.write_text("refeed 1", encoding="utf-8")
    with pytest.raises(Cancelled):
        engine.continuations(requests, "refeed", Stop())
