"""Small problems, settings and rollouts for tests that play the scripted model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from backend.engines.base import ContinuationRequest, Control, Quiet, RolloutRequest, Sampling
from backend.engines.scripted_engine import ScriptedEngine
from backend.measure import Cut
from backend.pivots import pivots_of
from backend.problems import messages, plain_prompt
from backend.records import Measurement, Pass, Problem, ProblemRecord, Rollout, Source, Trace
from backend.replay import ReplaySettings, graded_rollout, replay, rollout_seed
from backend.settings import CampaignSettings, make_settings
from backend.texts import Texts

TIMES = frozenset({"seconds", "started"})
"""The fields in which two runs of the same thing may differ."""


def addition(number: int) -> Problem:
    """A problem whose answer the scripted model knows; how often it gives it depends on the number."""
    return Problem(f"sum-{number:03d}", f"What is {number + 3} + {2 * number + 5}?", str(3 * number + 8), "test")


PROBLEMS = [addition(number) for number in range(60)]
MIXED = addition(13)
"""A problem that the model gets right about every second time."""


def campaign_settings(**changed: Any) -> CampaignSettings:
    """Settings of a small scripted campaign."""
    data: dict[str, Any] = {
        "name": "small",
        "model": "toy",
        "engine": "scripted",
        "dtype": "float32",
        "problems": {"file": "sums.jsonl", "count": 3},
        "rollouts": 2,
        "k": 2,
        "max_pivots_per_rollout": 2,
        "max_rollout_tokens": 100,
        "max_continuation_tokens": 60,
    }
    return make_settings(data | changed, "test")


def scripted(options: Mapping[str, Any] | None = None, *, batch_invariant: bool = False) -> ScriptedEngine:
    return ScriptedEngine("toy", "float32", options, batch_invariant=batch_invariant)


def as_rollout(problem: Problem, rollout: int, trace: Trace, engine: ScriptedEngine) -> Rollout:
    """A trace as the record it becomes."""
    texts = Texts(engine)
    texts.learn(trace.ids)
    return graded_rollout(rollout, rollout_seed(problem.problem, rollout), trace, texts, problem.gold)


def sampled(
    engine: ScriptedEngine, problem: Problem, rollouts: int = 2, *, pivots: int = 2, temperature: float = 0.7
) -> list[Cut]:
    """Sample rollouts and give the cuts at their first pivots."""
    prompt = engine.prompt_ids(messages(problem.question), plain_prompt(problem.question))
    sampling = Sampling(temperature, 0.95, 100)
    requests = [
        RolloutRequest(f"{problem.problem}/{index}", prompt, rollout_seed(problem.problem, index), sampling)
        for index in range(rollouts)
    ]
    info, cuts = engine.info(), []
    for index, trace in enumerate(engine.rollouts(requests, Quiet())):
        rollout = as_rollout(problem, index, trace, engine)
        found = pivots_of(
            rollout, margin_below=1.0, max_pivots=pivots, special_ids=info.special_ids, eos_ids=info.eos_ids
        )
        cuts += [Cut(problem.problem, problem.gold, trace.handle, rollout, pivot, "live") for pivot in found]
    return cuts


def measured(
    options: Mapping[str, Any] | None = None,
    *,
    batch_invariant: bool = False,
    passes: tuple[Pass, ...] = ("exact", "replica", "refeed"),
    k: int = 2,
) -> dict[Pass, list[Measurement]]:
    """Measure the cuts of the mixed problem with an engine that has these faults."""
    engine = scripted(options, batch_invariant=batch_invariant)
    settings = ReplaySettings(k, Sampling(0.7, 0.95, 60), passes=passes)
    return replay(engine, sampled(engine, MIXED), settings, Quiet())


class Counting(ScriptedEngine):
    """A scripted engine that writes down its calls."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__("toy", "float32", options)
        self.asked: list[tuple[Source, list[ContinuationRequest], bool]] = []
        self.sampled: list[str] = []

    def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
        self.sampled += [request.handle for request in requests]
        return super().rollouts(requests, control)

    def continuations(
        self, requests: Sequence[ContinuationRequest], source: Source, control: Control, *, serial: bool = False
    ) -> Any:
        self.asked.append((source, list(requests), serial))
        return super().continuations(requests, source, control, serial=serial)


def comparable(record: ProblemRecord | Measurement) -> Any:
    """A record as plain data without the times, for two runs that must agree in everything else."""
    return _without_times(asdict(record))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMES}
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    return value
