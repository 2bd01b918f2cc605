"""Selections: which pivots reach a threshold on |Â|, and how far two passes agree on them.

A threshold is an exact fraction: |value| ≥ τ·k is decided between integers, so that 0.3 at k = 10 means 3 of 10.
Sets are over all complete pivots of the pool, not only the eligible ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

import numpy as np

from backend.credit import Credits, Ints, ratio
from backend.errors import UserError
from backend.inference import (
    STANDARD,
    Bootstrap,
    Floats,
    Interval,
    Statistic,
    counts_statistic,
    divide,
    percentile_intervals,
)

PAIRS = {"refeed": ("refeed", "exact"), "replica": ("replica", "exact"), "refeed_replica": ("refeed", "replica")}
"""The comparisons of a selection and the two passes of each; the first one's size is the one reported."""
_GAP = "gap"


@dataclass(frozen=True)
class Overlap:
    """Two passes' selections at one threshold."""

    intersection: int
    union: int
    jaccard: float | None
    """intersection / union; None when both sets are empty, 0 when one is."""
    size: int
    """Pivots that the first pass of the pair selects."""
    chance: float | None
    """What two sets of these sizes would share if drawn at random: (ab/M)/(a+b−ab/M) over M pivots."""
    ci95: Interval | None
    """Bootstrap interval of `jaccard` over problems."""


@dataclass(frozen=True)
class Selection:
    """The selections of all passes at one threshold. A comparison is None where one of its passes is missing."""

    threshold: Fraction
    refeed: Overlap | None
    """Refeed against exact."""
    replica: Overlap | None
    """Replica against exact: the ceiling, itself one draw, which can lie under refeed's curve."""
    refeed_replica: Overlap | None
    """Refeed against replica."""
    exact_size: int
    gap_ci95: Interval | None
    """Bootstrap interval over problems of the ceiling's Jaccard − refeed's."""


def parse_threshold(text: str) -> Fraction:
    """A threshold on |Â| written as a decimal from 0 to 1, such as `0.3`. Raises UserError for anything else."""
    # A plain short decimal only: an exponent could ask for a fraction of a billion digits.
    if re.fullmatch(r"(\d{1,3}\.?|\d{0,3}\.\d{1,20})", text.strip(), re.ASCII) and Fraction(text.strip()) <= 1:
        return Fraction(text.strip())
    raise UserError(f"threshold {text[:40]!r} is not a decimal from 0 to 1, such as 0.3")


def attainable_thresholds(k: int) -> list[Fraction]:
    """1/k, 2/k … 1: between two neighbours the selection cannot change."""
    return [Fraction(step, k) for step in range(1, k + 1)]


def selections(
    credits: Credits, thresholds: Iterable[Fraction] = (), settings: Bootstrap = STANDARD
) -> list[Selection]:
    """One row for each attainable threshold and each further one in [0, 1], ascending, none twice.

    Raises ValueError for a threshold outside [0, 1].
    """
    every = sorted({*attainable_thresholds(credits.k), *thresholds})
    if every[0] < 0 or every[-1] > 1:
        raise ValueError("a threshold on |Â| must lie between 0 and 1")
    # The least |value| that reaches a threshold. Thresholds that share it share their sets, and so their intervals.
    levels = {threshold: math.ceil(threshold * credits.k) for threshold in every}
    measured = {pair: names for pair, names in PAIRS.items() if credits.passes.keys() >= set(names)}
    sizes = {name: abs(credits.passes[name]) for name in {"exact", *chain.from_iterable(measured.values())}}
    counts = {name: _reaching(credits, values) for name, values in sizes.items()}
    pairs = {
        # Both reach a level where the smaller does.
        pair: _Pair(counts[first], counts[second], _reaching(credits, np.minimum(sizes[first], sizes[second])))
        for pair, (first, second) in measured.items()
    }
    intervals = _intervals(pairs, sorted(set(levels.values())), settings)
    exact = counts["exact"].sum(axis=0)

    def overlap(pair: str, level: int) -> Overlap | None:
        return pairs[pair].overlap(level, len(credits), intervals[pair, level]) if pair in pairs else None

    return [
        Selection(
            threshold=threshold,
            refeed=overlap("refeed", level),
            replica=overlap("replica", level),
            refeed_replica=overlap("refeed_replica", level),
            exact_size=int(exact[level]),
            gap_ci95=intervals.get((_GAP, level)),
        )
        for threshold, level in levels.items()
    ]


@dataclass(frozen=True)
class _Pair:
    """Two passes' selections at all levels at once, by problem: int64[problems, k + 1], column c for |value| ≥ c."""

    first: Ints
    second: Ints
    both: Ints

    @property
    def either(self) -> Ints:
        return self.first + self.second - self.both

    def overlap(self, level: int, pivots: int, ci95: Interval | None) -> Overlap:
        a, b, both, either = (
            int(counts[:, level].sum()) for counts in (self.first, self.second, self.both, self.either)
        )
        return Overlap(both, either, ratio(both, either), a, ratio(a * b, (a + b) * pivots - a * b), ci95)


def _reaching(credits: Credits, sizes: Ints) -> Ints:
    """int64[problems, k + 1]: pivots of each problem whose size is at least 0, 1 … k."""
    width = credits.k + 1
    counts = np.bincount(credits.problem_index * width + sizes, minlength=credits.problems * width)
    return counts.reshape(credits.problems, width)[:, ::-1].cumsum(axis=1)[:, ::-1]


def _intervals(
    pairs: Mapping[str, _Pair], levels: list[int], settings: Bootstrap
) -> dict[tuple[str, int], Interval | None]:
    """Intervals by (pair, level), and by (_GAP, level) where there is a ceiling: one set of resamples for all."""
    questions = {
        (name, level): counts_statistic(pair.both[:, level], pair.either[:, level])
        for name, pair in pairs.items()
        for level in levels
    }
    if "replica" in pairs and "refeed" in pairs:
        questions |= {(_GAP, level): _gap(pairs["replica"], pairs["refeed"], level) for level in levels}
    return dict(zip(questions, percentile_intervals(list(questions.values()), settings), strict=True))


def _gap(ceiling: _Pair, curve: _Pair, level: int) -> Statistic:
    def value(totals: Floats) -> Floats:
        return divide(totals[:, 0], totals[:, 1]) - divide(totals[:, 2], totals[:, 3])

    columns = [counts[:, level] for counts in (ceiling.both, ceiling.either, curve.both, curve.either)]
    return Statistic(np.column_stack(columns), value, mirror=lambda rows: rows[:, [2, 3, 0, 1]])
