"""How far two campaigns differ, over the problems they share.

Pure functions on arrays. The unit of observation is the problem: a difference is resampled by whole problems that both
campaigns finished, each problem keeping its pivots of both, since what one campaign finds hard the other does too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal

import numpy as np

from backend.credit import Credits, Ints, Mask, flipped
from backend.inference import (
    STANDARD,
    Bootstrap,
    Floats,
    Interval,
    Statistic,
    divide,
    percentile_intervals,
)

HALF = Fraction(1, 2)
"""The threshold on |Â| at which selections are compared unless another is asked for."""


@dataclass(frozen=True)
class Side:
    """One campaign as a comparison takes it: n complete pivots of P problems, numbered alike on every side."""

    credits: Credits
    """Its clusters are problem numbers in 0 … P−1."""
    rollout: Ints
    """int64[n]: rollout index within the problem."""
    position: Ints
    """int64[n]: index in prompt + generated ids."""
    margin: Floats
    """float64[n]: raw logprob margin in nats; NaN where unknown."""
    finished: Mask
    """bool[P]: the problems that the campaign finished."""
    right: Ints
    """int64[P]: right rollouts of each problem."""
    graded: Ints
    """int64[P]: rollouts of each problem that could be graded."""
    diverged: Mapping[str, Ints] = field(default_factory=dict)
    """By pass, int64[n]: whether the greedy probe diverged from exact's, −1 where unknown."""
    bit_exact: Mapping[str, Ints] = field(default_factory=dict)
    """By pass, int64[n]: whether the probe's first logprob is equal to the last bit, −1 where unknown."""

    def by_problem(self, values: Ints | Mask) -> Ints:
        """int64[P]: the sum of a column over each problem's pivots."""
        totals = np.zeros(len(self.finished), dtype=np.int64)
        np.add.at(totals, self.credits.cluster, np.asarray(values, dtype=np.int64))
        return totals

    def selects(self, name: str, threshold: Fraction = HALF) -> Mask:
        """bool[n]: |Â| of pass `name` reaches the threshold, decided between integers."""
        sizes: Ints = abs(self.credits.passes[name])
        reached: Mask = sizes * threshold.denominator >= threshold.numerator * self.credits.k
        return reached

    @cached_property
    def eligible_by_problem(self) -> Ints:
        """int64[P]."""
        return self.by_problem(self.credits.eligible)


Kind = Literal["points", "decimal"]
Columns = Callable[[Side], "Sequence[Ints] | None"]
"""What each problem adds to the totals of a quantity, int64[P] each; None where a pass was not measured."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that two campaigns can differ in."""

    key: str
    label: str
    kind: Kind
    """`points`: percentage points; `decimal`: a plain number."""
    columns: Columns
    value: Callable[[Floats], Floats]
    """Totals float64[B, C] to values float64[B]; NaN where undefined."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two campaigns differ in one quantity over the problems they share."""

    key: str
    label: str
    kind: Kind
    first: float | None
    """The first campaign's value over the shared problems; None where undefined."""
    second: float | None
    difference: float | None
    """second − first."""
    ci95: Interval | None
    """95 % percentile interval by resampling shared problems; None under two of them, or where nothing varies."""

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.ci95 is not None and not self.ci95[0] <= 0 <= self.ci95[1]


def _has(side: Side, *names: str) -> bool:
    return side.credits.passes.keys() >= set(names)


def _flips(*names: str, among: Callable[[Side], Mask] = lambda side: side.credits.eligible) -> Columns:
    """Flips of the first pass, less those of the second where there is one, and what they are out of."""

    def columns(side: Side) -> Sequence[Ints] | None:
        if not _has(side, *names):
            return None
        out_of = among(side)
        counts = [side.by_problem(flipped(side.credits, name) & out_of) for name in names]
        return [counts[0] - counts[1] if len(counts) == 2 else counts[0], side.by_problem(out_of)]

    return columns


def _reversals(side: Side) -> Sequence[Ints] | None:
    if not _has(side, "refeed"):
        return None
    exact, refeed = side.credits.passes["exact"], side.credits.passes["refeed"]
    return [side.by_problem(np.sign(exact) * np.sign(refeed) == -1), side.eligible_by_problem]


def _bias(side: Side) -> Sequence[Ints] | None:
    if not _has(side, "refeed"):
        return None
    moved = np.where(side.credits.eligible, side.credits.passes["refeed"] - side.credits.passes["exact"], 0)
    return [side.by_problem(moved), side.credits.k * side.eligible_by_problem]


def _agreement(*names: str) -> Columns:
    """Both and either of each pass's selection with exact's."""

    def columns(side: Side) -> Sequence[Ints] | None:
        if not _has(side, *names):
            return None
        exact = side.selects("exact")
        chosen = [side.selects(name) for name in names]
        return [side.by_problem(part) for one in chosen for part in (one & exact, one | exact)]

    return columns


def _probe(what: str) -> Columns:
    def columns(side: Side) -> Sequence[Ints] | None:
        found = getattr(side, what).get("refeed")
        if found is None or not np.any(found >= 0):
            return None
        return [side.by_problem(found == 1), side.by_problem(found >= 0)]

    return columns


def _ratio(scale: float) -> Callable[[Floats], Floats]:
    return lambda totals: scale * divide(totals[:, 0], totals[:, 1])


def _loss(totals: Floats) -> Floats:
    return divide(totals[:, 0], totals[:, 1]) - divide(totals[:, 2], totals[:, 3])


_PERCENT, _PLAIN = _ratio(100), _ratio(1)

QUANTITIES: tuple[Quantity, ...] = (
    Quantity("accuracy", "rollouts right", "points", lambda side: [side.right, side.graded], _PERCENT),
    Quantity(
        "eligible",
        "eligible, of all pivots",
        "points",
        lambda side: [side.eligible_by_problem, side.by_problem(np.ones(len(side.credits), dtype=np.bool_))],
        _PERCENT,
    ),
    Quantity(
        "size",
        "mean |Â| of exact",
        "decimal",
        lambda side: [
            side.by_problem(abs(side.credits.passes["exact"])),
            side.credits.k * side.by_problem(np.ones(len(side.credits), dtype=np.bool_)),
        ],
        _PLAIN,
    ),
    Quantity("refeed", "refeed flip rate", "points", _flips("refeed"), _PERCENT),
    Quantity("replica", "replica flip rate (floor)", "points", _flips("replica"), _PERCENT),
    Quantity("excess", "excess over the floor", "points", _flips("refeed", "replica"), _PERCENT),
    Quantity(
        "conditioned",
        "excess given exact ≠ 0",
        "points",
        _flips("refeed", "replica", among=lambda side: side.credits.passes["exact"] != 0),
        _PERCENT,
    ),
    Quantity("reversals", "refeed polarity reversals", "points", _reversals, _PERCENT),
    Quantity("bias", "bias, refeed − exact", "decimal", _bias, _PLAIN),
    Quantity("jaccard", "refeed–exact Jaccard, |Â| ≥ 0.5", "decimal", _agreement("refeed"), _PLAIN),
    Quantity("ceiling", "ceiling Jaccard, |Â| ≥ 0.5", "decimal", _agreement("replica"), _PLAIN),
    Quantity("loss", "ceiling − refeed, |Â| ≥ 0.5", "decimal", _agreement("replica", "refeed"), _loss),
    Quantity("divergence", "probe diverged under refeed", "points", _probe("diverged"), _PERCENT),
    Quantity("bit_exact", "probe bit-exact under refeed", "points", _probe("bit_exact"), _PERCENT),
)
"""All differences that are reported, in order."""


def shared_problems(first: Side, second: Side) -> Ints:
    """int64[G]: numbers of the problems that both campaigns finished."""
    return np.flatnonzero(first.finished & second.finished)


def differences(first: Side, second: Side, settings: Bootstrap = STANDARD) -> list[Difference]:
    """Second − first in every quantity over the shared problems, all intervals from one set of resamples."""
    shared = shared_problems(first, second)
    found: list[tuple[Quantity, list[float | None]]] = []
    statistics: list[Statistic | None] = []
    for quantity in QUANTITIES:
        parts = [quantity.columns(side) for side in (first, second)]
        rows = [None if part is None else np.column_stack([column[shared] for column in part]) for part in parts]
        found.append((quantity, [_value(quantity, part) for part in rows]))
        statistics.append(difference_statistic(quantity, rows[0], rows[1]))
    intervals = iter(percentile_intervals([one for one in statistics if one is not None], settings))
    return [
        _difference(quantity, values, None if statistic is None else next(intervals))
        for (quantity, values), statistic in zip(found, statistics, strict=True)
    ]


def difference_statistic(quantity: Quantity, first: Ints | None, second: Ints | None) -> Statistic | None:
    """A difference as something to resample, from int64[G, C] of each side; None where one was not measured."""
    if first is None or second is None:
        return None
    width = first.shape[1]

    def value(totals: Floats) -> Floats:
        return quantity.value(totals[:, width:]) - quantity.value(totals[:, :width])

    swapped = [*range(width, 2 * width), *range(width)]
    return Statistic(np.concatenate([first, second], axis=1), value, mirror=lambda rows: rows[:, swapped])


def _value(quantity: Quantity, rows: Ints | None) -> float | None:
    if rows is None:
        return None
    value = float(quantity.value(rows.sum(axis=0, keepdims=True).astype(np.float64))[0])
    return None if np.isnan(value) else value


def _difference(quantity: Quantity, values: list[float | None], ci95: Interval | None) -> Difference:
    first, second = values
    difference = None if first is None or second is None else second - first
    interval = ci95 if difference is not None else None
    return Difference(quantity.key, quantity.label, quantity.kind, first, second, difference, interval)
