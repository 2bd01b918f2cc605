"""The passes over pivots: what is asked of the engine, in which order, with which seeds.

Every pass computes its continuations anew, in one engine call over all the pivots given, and draws them with the same
seeds, so that passes differ by numerics alone. Grading happens in a thread while the engine is at the next pass.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

import numpy as np

from backend.engines.base import Batch, ContinuationRequest, Control, Engine, Point, Sampling, Verification
from backend.errors import UserError
from backend.grading import grade
from backend.measure import Cut, Meter, PassOutput, Wanted
from backend.records import (
    ARMS,
    PROBE,
    PROBE_TOKENS,
    SOURCE_OF_PASS,
    STANDARD_PASSES,
    Arm,
    Measurement,
    Pass,
    Rollout,
    Trace,
)
from backend.settings import CampaignSettings
from backend.texts import Texts

VERIFIED_PASSES = ("exact", "replica")
"""Passes with which each pivot's resumed distribution is compared with the rollout's record."""

PROBE_SAMPLING = Sampling(temperature=0.0, top_p=1.0, max_tokens=PROBE_TOKENS)

OnPass = Callable[[Pass, list[Measurement]], None]


def rollout_seed(problem: str, rollout: int, base: int = 0) -> int:
    """31-bit seed of a rollout; `base` is the campaign's seed."""
    return _seed(f"{problem}|{rollout}", base)


def continuation_seed(problem: str, rollout: int, position: int, arm: Arm, i: int, base: int = 0) -> int:
    """31-bit seed of an arm's i-th continuation (−1: its probe), the same in every pass."""
    return _seed(f"{problem}|{rollout}|{position}|{arm}|{i}", base)


def _seed(key: str, base: int) -> int:
    return ((zlib.crc32(key.encode()) & 0x7FFFFFFF) + base) % 2**31


def graded_rollout(rollout: int, seed: int, trace: Trace, texts: Texts, gold: str | None) -> Rollout:
    """What the engine sampled as it is stored, graded against `gold`; `texts` must know the trace's ids."""
    found = grade(texts.text(trace.ids), gold)
    return Rollout(
        rollout,
        seed,
        trace.prompt_ids,
        trace.ids,
        trace.logprobs,
        [top.ids for top in trace.top],
        [top.logprobs for top in trace.top],
        trace.finish_reason,
        found.answer,
        found.correct,
    )


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How pivots are measured."""

    k: int
    """Continuations an arm."""
    sampling: Sampling
    """Of the continuations; temperature 0 with k = 1 is the greedy estimator."""
    seed: int = 0
    """Added to every derived seed modulo 2³¹."""
    passes: tuple[Pass, ...] = STANDARD_PASSES
    run: str = "campaign"
    """`Measurement.run`: `campaign`, or the id of a replay made on demand."""

    @classmethod
    def of(cls, settings: CampaignSettings, run: str = "campaign") -> ReplaySettings:
        """The replay part of a campaign's settings."""
        sampling = Sampling(settings.temperature, settings.top_p, settings.max_continuation_tokens)
        return cls(settings.k, sampling, settings.seed, settings.passes, run)

    def ordered_passes(self) -> list[Pass]:
        """Exact first, then whatever resumes kept state: a cold prefill may push that state out of a cache."""
        rank = {"exact": 0, "refeed": 2, "refeed_replica": 2}
        return sorted(self.passes, key=lambda pass_: rank.get(pass_, 1))


def replay(
    engine: Engine,
    cuts: Sequence[Cut],
    settings: ReplaySettings,
    control: Control,
    on_pass: OnPass | None = None,
    on_start: Callable[[Pass], None] | None = None,
    texts: Texts | None = None,
) -> dict[Pass, list[Measurement]]:
    """Measure every cut in every pass; the lists are aligned with `cuts`.

    `on_start` is told each pass before its engine calls, `on_pass` each pass's measurements as soon as they are graded,
    always in the caller's thread and in the order of the passes; it must not call the engine, which may be at work.
    `texts`, if given, learns every id before its pass is handed over. Raises `UserError` for a cut whose state the
    engine does not hold.
    """
    _refuse_unheld(engine, cuts)
    wanted = [request for cut in cuts for request in wanted_of(cut, settings)]
    texts = texts or Texts(engine)
    texts.learn(chain.from_iterable(_known_ids(cut) for cut in cuts))
    meter = Meter(cuts, wanted, settings.k, settings.run, texts)
    delivery = _Delivery(control, on_pass)
    with ThreadPoolExecutor(1, thread_name_prefix="grading") as grading:
        for pass_ in settings.ordered_passes():
            if on_start is not None:
                on_start(pass_)
            output = _run_pass(engine, pass_, cuts, wanted, delivery)
            texts.learn(chain.from_iterable(one.ids for one in output.continuations if one is not None))
            delivery.expect(pass_, grading.submit(meter.measure, output))
        delivery.finish()
    return {pass_: delivery.measured[pass_] for pass_ in settings.passes}


def wanted_of(cut: Cut, settings: ReplaySettings) -> list[Wanted]:
    """The requests for one cut: for each arm its k continuations and then its probe."""
    tokens = dict(zip(ARMS, cut.tokens, strict=True))
    rollout, position = cut.rollout.rollout, cut.pivot.position
    wanted = []
    for arm in ARMS:
        for i in (*range(settings.k), PROBE):
            seed = continuation_seed(cut.problem, rollout, position, arm, i, settings.seed)
            sampling = PROBE_SAMPLING if i == PROBE else settings.sampling
            wanted.append(Wanted(arm, i, ContinuationRequest(cut.handle, position, tokens[arm], seed, sampling)))
    return wanted


def _run_pass(
    engine: Engine, pass_: Pass, cuts: Sequence[Cut], wanted: Sequence[Wanted], control: Control
) -> PassOutput:
    verifications: list[Verification] | None = None
    if pass_ in VERIFIED_PASSES and cuts:
        verifications = engine.verify([Point(cut.handle, cut.pivot.position) for cut in cuts], control)
    requests = [one.request for one in wanted]
    order = _shuffle(len(requests)) if pass_ == "shuffled" else np.arange(len(requests))
    started, clock = datetime.now(UTC), time.perf_counter()
    batch = Batch([], None)
    if requests:
        asked = [requests[index] for index in order.tolist()]
        batch = engine.continuations(asked, SOURCE_OF_PASS[pass_], control, serial=pass_ == "serial")
    seconds = time.perf_counter() - clock
    # A permutation's inverse brings the answers back into the order of the requests.
    continuations = [batch.continuations[index] for index in np.argsort(order).tolist()]
    return PassOutput(
        pass_,
        started.isoformat(timespec="milliseconds"),
        seconds,
        engine.info().digest(),
        batch.preemptions,
        continuations,
        verifications,
    )


def _shuffle(requests: int) -> np.ndarray:
    """A fixed random order of so many requests."""
    key = hashlib.sha256(f"shuffled|{requests}".encode()).digest()
    return np.random.default_rng(int.from_bytes(key[:8], "little")).permutation(requests)


def _refuse_unheld(engine: Engine, cuts: Sequence[Cut]) -> None:
    handles = list(dict.fromkeys(cut.handle for cut in cuts))
    for handle, held in zip(handles, engine.holds(handles), strict=True):
        if not held:
            raise UserError(f"the engine holds no state of rollout `{handle}`; sample it or rebuild it first")


def _known_ids(cut: Cut) -> list[int]:
    return [*cut.rollout.ids, *cut.tokens]


class _Delivery:
    """A control that hands graded passes over while the engine steps, so that nobody waits for the pass after."""

    def __init__(self, control: Control, on_pass: OnPass | None) -> None:
        self._control, self._on_pass = control, on_pass
        self._pending: list[tuple[Pass, Future[list[Measurement]]]] = []
        self.measured: dict[Pass, list[Measurement]] = {}

    def tick(self, tokens: int) -> None:
        self._control.tick(tokens)
        # An error of the grading is raised by `finish`, not in the middle of an engine's step.
        while self._pending and self._pending[0][1].done() and not self._pending[0][1].exception():
            self._deliver()

    def expect(self, pass_: Pass, measurements: Future[list[Measurement]]) -> None:
        self._pending.append((pass_, measurements))

    def finish(self) -> None:
        while self._pending:
            self._deliver()

    def _deliver(self) -> None:
        pass_, future = self._pending.pop(0)
        self.measured[pass_] = future.result()
        if self._on_pass is not None:
            self._on_pass(pass_, self.measured[pass_])
