"""The checks of the method's preconditions, as pure functions over instrument readings.

A check says pass only about what was looked at: anything unread is `unknown`, and so is a check over no rows at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from backend.records import PROBE, SOURCE_OF_PASS, ContinuationRecord, Measurement

Status = Literal["pass", "fail", "unknown"]

SAME = "same"
"""`Reading.channel` of an output that is identical to exact's."""

CHANNELS = ("tokens", "logprobs", "probe", "credit", "outputs")
"""Where an output can differ from exact's, looked at in this order; `outputs`: the hashes differ and nothing finer is
kept."""

_RESUMED = frozenset(pass_ for pass_, source in SOURCE_OF_PASS.items() if source == "exact")
_REFED = frozenset(pass_ for pass_, source in SOURCE_OF_PASS.items() if source == "refeed")


@dataclass(frozen=True, slots=True)
class Check:
    """The verdict on one precondition."""

    name: str
    status: Status
    detail: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The instrument readings of one pass over one pivot, or of `rows` pivots where they are all the same.

    The last four fields compare the pass with `exact` on the same pivot and run; for exact itself they are None.
    """

    pass_: str
    complete: bool
    """Whether both arms have all their continuations."""
    cache_misses: int | None
    warm_requests: int | None
    preemptions: int | None
    logprobs_equal: bool | None
    logprobs_max_difference: float | None
    """Nats."""
    engine: str | None
    """Hash of the engine facts."""
    batch_invariant: bool | None
    same_seeds: bool | None
    channel: str | None
    """First of `CHANNELS` on which the outputs differ, `same` where none does, None where it could not be looked at."""
    rows: int = 1


def readings_of(measurements: Sequence[Measurement], batch_invariant: bool | None) -> list[Reading]:
    """Readings of one pivot's measurements, those of each run compared with the exact pass of the same run."""
    exact = {one.run: one for one in measurements if one.pass_ == "exact"}
    return [_reading(one, exact.get(one.run), batch_invariant) for one in measurements]


def _reading(one: Measurement, exact: Measurement | None, batch_invariant: bool | None) -> Reading:
    same_seeds, found = None, None
    if exact is not None and one.pass_ != "exact":
        if one.seeds_sha256 is not None and exact.seeds_sha256 is not None:
            same_seeds = one.seeds_sha256 == exact.seeds_sha256
        found = channel(exact, one)
    return Reading(
        one.pass_,
        one.numerator is not None,
        one.cache_misses,
        one.warm_requests,
        one.preemptions,
        one.logprobs_equal,
        one.logprobs_max_difference,
        one.engine,
        batch_invariant,
        same_seeds,
        found,
    )


def channel(exact: Measurement, other: Measurement) -> str | None:
    """First of `CHANNELS` on which two measurements of a pivot differ; `same`, or None without hashes to compare."""
    if exact.output_sha256 is None or other.output_sha256 is None:
        return None
    if exact.output_sha256 == other.output_sha256 and exact.numerator == other.numerator:
        return SAME
    mine, theirs = (_by_request(one.continuations) for one in (exact, other))
    sampled = [key for key in mine if key in theirs and key[1] != PROBE]
    probes = [key for key in mine if key in theirs and key[1] == PROBE]
    if any(mine[key].ids != theirs[key].ids for key in sampled):
        return "tokens"
    if any(mine[key].logprobs != theirs[key].logprobs for key in sampled):
        return "logprobs"
    if other.probe_diverged or other.probe_delta or any(mine[key].logprobs != theirs[key].logprobs for key in probes):
        return "probe"
    return "credit" if exact.numerator != other.numerator else "outputs"


def _by_request(records: Iterable[ContinuationRecord]) -> dict[tuple[str, int], ContinuationRecord]:
    return {(record.arm, record.i): record for record in records}


def checks(readings: Sequence[Reading]) -> list[Check]:
    """All checks, in their fixed order."""
    return [make(readings) for make in _CHECKS]


def as_documents(found: Sequence[Check]) -> list[dict[str, str]]:
    """Checks as reports carry them."""
    return [{"name": one.name, "status": one.status, "detail": one.detail} for one in found]


def _rows(readings: Sequence[Reading]) -> Check:
    """Every pivot has every pass, complete."""
    counts: Counter[str] = Counter()
    for one in readings:
        counts[one.pass_] += one.rows
    total, incomplete = sum(counts.values()), _number(readings, lambda one: not one.complete)
    if not total:
        return Check("rows", "unknown", "There are no measurements.")
    if incomplete:
        return Check("rows", "fail", f"{incomplete} of {total} measurements lack a continuation and have no credit.")
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{pass_} {count}" for pass_, count in counts.items())
        return Check("rows", "fail", f"The passes do not cover the same pivots: {listed}.")
    return Check("rows", "pass", f"{total} measurements, complete, in {len(counts)} passes.")


def _exact_cache_hits(readings: Sequence[Reading]) -> Check:
    return _judged(
        "exact_cache_hits",
        [one for one in readings if one.pass_ in _RESUMED],
        lambda one: None if one.cache_misses is None else one.cache_misses > 0,
        "resumed measurements",
        "had a request that did not find its expected tokens in kept state",
        "found all their expected tokens in kept state",
    )


def _exact_logprobs_bitwise(readings: Sequence[Reading]) -> Check:
    # Exact and replica have to be looked at; other resumed passes are, where an engine gives a reading.
    looked = [
        one
        for one in readings
        if one.pass_ in {"exact", "replica"} or (one.pass_ in _RESUMED and one.logprobs_equal is not None)
    ]
    worst = max((one.logprobs_max_difference or 0.0 for one in looked), default=0.0)
    return _judged(
        "exact_logprobs_bitwise",
        looked,
        lambda one: None if one.logprobs_equal is None else not one.logprobs_equal,
        "resumed measurements",
        f"found other next-token logprobs than the rollout recorded (by up to {worst:.3g} nats)",
        "found exactly the next-token logprobs that the rollout recorded",
    )


def _refeed_cold(readings: Sequence[Reading]) -> Check:
    return _judged(
        "refeed_cold",
        [one for one in readings if one.pass_ in _REFED],
        lambda one: None if one.warm_requests is None else one.warm_requests > 0,
        "re-fed measurements",
        "had a request that read cached tokens",
        "read no cached token",
    )


def _no_preemption(readings: Sequence[Reading]) -> Check:
    return _judged(
        "no_preemption",
        readings,
        lambda one: None if one.preemptions is None else one.preemptions > 0,
        "measurements",
        "were made in a call with preemptions",
        "were made without a preemption",
    )


def _same_seeds(readings: Sequence[Reading]) -> Check:
    return _judged(
        "same_seeds",
        [one for one in readings if one.pass_ != "exact"],
        lambda one: None if one.same_seeds is None else not one.same_seeds,
        "measurements",
        "used other seeds than the exact pass: their passes are not comparable",
        "used the exact pass's seeds",
    )


def _same_settings(readings: Sequence[Reading]) -> Check:
    engines: Counter[str] = Counter()
    for one in readings:
        if one.engine is not None:
            engines[one.engine] += one.rows
    if len(engines) > 1:
        listed = ", ".join(f"{engine} ({count})" for engine, count in engines.most_common(4))
        return Check(
            "same_settings", "fail", f"The measurements were made under {len(engines)} engine facts: {listed}."
        )
    return _judged(
        "same_settings",
        readings,
        lambda one: None if one.engine is None else False,
        "measurements",
        "",
        f"were made under the same engine facts ({next(iter(engines), '')})",
    )


def _batch_invariant_control(readings: Sequence[Reading]) -> Check:
    name = "batch_invariant_control"
    if not any(one.batch_invariant for one in readings):
        return Check(
            name, "unknown", "The engine did not run in batch-invariant mode, where all passes must be identical."
        )
    looked = [one for one in readings if one.pass_ != "exact" and one.batch_invariant]
    differing = [one for one in looked if one.channel not in {None, SAME}]
    counts: Counter[str] = Counter()
    for one in differing:
        counts[one.channel or ""] += one.rows
    first = next((one for one in CHANNELS if counts[one]), "")
    by_pass = ", ".join(
        f"{pass_} {sum(one.rows for one in group)}"
        for pass_, group in groupby(sorted(differing, key=lambda one: one.pass_), key=lambda one: one.pass_)
    )
    return _judged(
        name,
        looked,
        lambda one: None if one.channel is None else one.channel != SAME,
        "measurements in batch-invariant mode",
        f"differ from exact, first on {first} ({by_pass})",
        "are identical to exact on every channel",
    )


def _judged(
    name: str,
    looked: Sequence[Reading],
    broken: Callable[[Reading], bool | None],
    what: str,
    when_broken: str,
    when_whole: str,
) -> Check:
    """Fail where one is broken, else unknown where one could not be read, else pass."""
    total = sum(one.rows for one in looked)
    failed = _number(looked, lambda one: broken(one) is True)
    unread = _number(looked, lambda one: broken(one) is None)
    if not total:
        return Check(name, "unknown", f"There are no {what}.")
    if failed:
        return Check(name, "fail", f"{failed} of {total} {what} {when_broken}.")
    if unread:
        return Check(name, "unknown", f"{unread} of {total} {what} do not say.")
    return Check(name, "pass", f"{total} of {total} {what} {when_whole}.")


def _number(readings: Iterable[Reading], which: Callable[[Reading], bool]) -> int:
    return sum(one.rows for one in readings if which(one))


_CHECKS: tuple[Callable[[Sequence[Reading]], Check], ...] = (
    _rows,
    _exact_cache_hits,
    _exact_logprobs_bitwise,
    _refeed_cold,
    _no_preemption,
    _same_seeds,
    _same_settings,
    _batch_invariant_control,
)

CHECK_NAMES = tuple(make.__name__.removeprefix("_") for make in _CHECKS)
