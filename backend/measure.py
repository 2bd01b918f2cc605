"""From what one pass's engine calls gave to its measurements: grades, integers, hashes and instrument readings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from backend.engines.base import Continuation, ContinuationRequest, Verification
from backend.engines.comparison import difference
from backend.grading import Grade, grade
from backend.records import (
    ARMS,
    PROBE,
    SOURCE_OF_PASS,
    Arm,
    ContinuationRecord,
    Measurement,
    Pass,
    Pivot,
    Rollout,
    TopK,
)
from backend.texts import Texts


@dataclass(frozen=True, slots=True)
class Cut:
    """A pivot of a rollout whose state an engine holds."""

    problem: str
    gold: str | None
    """The right answer; without one, continuations are graded against the rollout's own."""
    handle: str
    rollout: Rollout
    pivot: Pivot
    provenance: str | None
    """How the state came to be: `live`, or the verdict of a rebuild."""
    alternative: int | None = None
    """Token to put in the actual one's place instead of the pivot's own alternative."""

    @property
    def tokens(self) -> tuple[int, int]:
        """The arms' token ids, the actual one first."""
        other = self.pivot.alternative if self.alternative is None else self.alternative
        if self.pivot.actual is None or other is None:
            raise ValueError("a pivot without both of its tokens cannot be cut")
        return self.pivot.actual, other

    @property
    def index(self) -> int:
        """The pivot's index among the generated tokens."""
        return self.pivot.position - len(self.rollout.prompt_ids)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One continuation that every pass asks for."""

    arm: Arm
    i: int
    """0 … k−1, or −1 for the arm's probe."""
    request: ContinuationRequest


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What the engine gave for one pass."""

    pass_: Pass
    started: str
    """UTC, ISO 8601."""
    seconds: float
    """Wall time of the call for continuations."""
    engine: str
    """Hash of the engine facts after the call."""
    preemptions: int | None
    continuations: Sequence[Continuation | None]
    """Aligned with what was wanted; None for a lost one."""
    verifications: Sequence[Verification] | None
    """Aligned with the cuts; None in a pass that does not look."""


class Meter:
    """Measures pass after pass over the same cuts; exact must come first, for the others' probes refer to it."""

    def __init__(self, cuts: Sequence[Cut], wanted: Sequence[Wanted], k: int, run: str, texts: Texts) -> None:
        self._cuts, self._wanted, self._k, self._run, self._texts = cuts, wanted, k, run, texts
        self._prefixes = [
            {
                arm: texts.written([*cut.rollout.ids[: cut.index], token])
                for arm, token in zip(ARMS, cut.tokens, strict=True)
            }
            for cut in cuts
        ]
        self._grades: dict[tuple[bytes, str | None], Grade] = {}
        self._exact: list[Measurement] | None = None

    def measure(self, output: PassOutput) -> list[Measurement]:
        """One measurement a cut."""
        width = len(ARMS) * (self._k + 1)
        measurements = []
        for index in range(len(self._cuts)):
            span = slice(index * width, (index + 1) * width)
            exact = self._exact[index] if self._exact is not None else None
            measurements.append(self._measure(index, self._wanted[span], output.continuations[span], output, exact))
        if output.pass_ == "exact":
            self._exact = measurements
        return measurements

    def _measure(
        self,
        index: int,
        wanted: Sequence[Wanted],
        continuations: Sequence[Continuation | None],
        output: PassOutput,
        exact: Measurement | None,
    ) -> Measurement:
        cut = self._cuts[index]
        verification = output.verifications[index] if output.verifications is not None else None
        records = [
            self._record(index, one, continuation)
            for one, continuation in zip(wanted, continuations, strict=True)
            if continuation is not None
        ]
        counts = _Counts.of(records, self._k)
        resumed = SOURCE_OF_PASS[output.pass_] == "exact"
        readings: list[Continuation | Verification | None] = [*continuations]
        if verification is not None:
            readings.append(verification)
        gaps = [one.tail_difference for one in continuations if one is not None]
        if verification is not None and cut.index < len(cut.rollout.topk_ids):
            recorded = TopK(cut.rollout.topk_ids[cut.index], cut.rollout.topk_logprobs[cut.index])
            gaps.append(difference(recorded, verification.top))
        gap = max((gap for gap in gaps if gap is not None), default=None)
        diverged, delta = compare_probes(exact.continuations, records) if exact is not None else (None, None)
        return Measurement(
            pass_=output.pass_,
            run=self._run,
            k=self._k,
            n_actual=counts.right["actual"] if counts.complete else None,
            n_alternative=counts.right["alternative"] if counts.complete else None,
            numerator=counts.right["actual"] - counts.right["alternative"] if counts.complete else None,
            truncated_actual=counts.truncated["actual"] if counts.complete else None,
            truncated_alternative=counts.truncated["alternative"] if counts.complete else None,
            provenance=cut.provenance,
            started=output.started,
            seconds=output.seconds,
            output_sha256=_output_hash(records),
            requests=len(readings),
            cache_misses=_count(_missed(reading) for reading in readings) if resumed else None,
            warm_requests=_count(_warm(reading) for reading in readings),
            preemptions=output.preemptions,
            logprobs_equal=None if gap is None else gap == 0,
            logprobs_max_difference=gap,
            seeds_sha256=_seeds_hash(wanted),
            engine=output.engine,
            probe_diverged=diverged,
            probe_delta=delta,
            continuations=records,
            alternative=cut.alternative,
        )

    def _record(self, index: int, wanted: Wanted, continuation: Continuation) -> ContinuationRecord:
        graded = Grade(None, None) if wanted.i == PROBE else self._grade(index, wanted.arm, continuation.ids)
        return ContinuationRecord(
            arm=wanted.arm,
            i=wanted.i,
            seed=wanted.request.seed,
            ids=continuation.ids,
            logprobs=continuation.logprobs,
            finish_reason=continuation.finish_reason,
            answer=graded.answer,
            correct=graded.correct,
            expected_cached=continuation.expected_cached,
            cached=continuation.cached,
        )

    def _grade(self, index: int, arm: Arm, ids: list[int]) -> Grade:
        cut = self._cuts[index]
        gold = cut.gold if cut.gold is not None else cut.rollout.answer
        graded = self._prefixes[index][arm] + self._texts.written(ids)
        # Passes mostly repeat each other's texts, and grading is a pure function of the text.
        if (graded, gold) not in self._grades:
            self._grades[graded, gold] = grade(graded.decode(errors="replace"), gold)
        return self._grades[graded, gold]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Right and truncated continuations an arm."""

    right: dict[Arm, int]
    truncated: dict[Arm, int]
    complete: bool
    """Whether both arms have all their continuations, graded."""

    @classmethod
    def of(cls, records: Sequence[ContinuationRecord], k: int) -> _Counts:
        sampled = [record for record in records if record.i != PROBE]
        right: dict[Arm, int] = dict.fromkeys(ARMS, 0)
        truncated: dict[Arm, int] = dict.fromkeys(ARMS, 0)
        for record in sampled:
            right[record.arm] += record.correct is True
            truncated[record.arm] += record.answer is None and record.finish_reason == "length"
        complete = len(sampled) == len(ARMS) * k and all(record.correct is not None for record in sampled)
        return cls(right, truncated, complete)


def compare_probes(
    exact: Sequence[ContinuationRecord], other: Sequence[ContinuationRecord]
) -> tuple[bool | None, float | None]:
    """Whether any token of either arm's probe differs, and the larger |first-token logprob difference| in nats."""
    mine, theirs = ({one.arm: one for one in records if one.i == PROBE} for records in (exact, other))
    if any(arm not in mine or arm not in theirs for arm in ARMS):
        return None, None
    diverged = any(mine[arm].ids != theirs[arm].ids for arm in ARMS)
    if any(not mine[arm].logprobs or not theirs[arm].logprobs for arm in ARMS):
        return diverged, None
    return diverged, max(abs(mine[arm].logprobs[0] - theirs[arm].logprobs[0]) for arm in ARMS)


def _missed(reading: Continuation | Verification | None) -> bool | None:
    if reading is None or reading.cached is None or reading.expected_cached is None:
        return None
    return reading.cached != reading.expected_cached


def _warm(reading: Continuation | Verification | None) -> bool | None:
    return None if reading is None or reading.cached is None else reading.cached > 0


def _count(readings: Iterable[bool | None]) -> int | None:
    """How many are true; None when none is and some could not be read."""
    known = list(readings)
    found = sum(reading is True for reading in known)
    return found if found or None not in known else None


def _output_hash(records: Sequence[ContinuationRecord]) -> str:
    """Hash of every token id and logprob, in the order of the requests."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(f"{record.arm}|{record.i}|{len(record.ids)}|{record.finish_reason}|".encode())
        digest.update(np.asarray(record.ids, "<i8").tobytes())
        digest.update(np.asarray(record.logprobs, "<f8").tobytes())
    return digest.hexdigest()


def _seeds_hash(wanted: Sequence[Wanted]) -> str:
    return hashlib.sha256("|".join(str(one.request.seed) for one in wanted).encode()).hexdigest()
