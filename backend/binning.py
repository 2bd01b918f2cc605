"""Flips by position and by margin, and the problems that campaigns disagree on: counts of one side or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from backend.comparing import Side
from backend.credit import Credits, Flips, Ints, Mask, flip_counts, flipped
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

PASSES = ("refeed", "replica")
POSITION_BINS = 10
MARGIN_EDGES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Nats; the last bin is open."""


@dataclass(frozen=True, slots=True)
class Bin:
    """A range of positions or margins, [low, high)."""

    low: float
    high: float | None
    """None: open."""

    def holds(self, values: Floats | Ints) -> Mask:
        """bool[n]; False for NaN."""
        inside: Mask = values >= self.low
        return inside if self.high is None else inside & (values < self.high)


@dataclass(frozen=True, slots=True)
class BinFlips:
    """One campaign's flips in one bin."""

    pivots: int
    eligible: int
    refeed: Flips | None
    """None where the pass was not measured."""
    replica: Flips | None
    refeed_ci95: Interval | None
    replica_ci95: Interval | None


def position_bins(sides: Sequence[Side], bins: int = POSITION_BINS) -> list[Bin]:
    """Deciles of the pivots' positions, the same for all sides; each side weighs alike, however many pivots it has.

    Equal positions are never parted, so there can be fewer.
    """
    positions = [np.sort(side.position) for side in sides if len(side.position)]
    if not positions:
        return []
    pooled = np.concatenate(positions)
    weights = np.concatenate([np.full(len(own), 1 / len(own)) for own in positions])
    order = np.argsort(pooled, kind="stable")
    pooled, behind = pooled[order], np.cumsum(weights[order]) / len(positions)
    cuts = pooled[np.searchsorted(behind, np.arange(1, bins) / bins - 1e-12)]
    edges = np.unique([pooled[0], *(cuts + 1), pooled[-1] + 1])
    return [Bin(int(low), int(high)) for low, high in pairwise(edges)]


def margin_bins(sides: Sequence[Side]) -> list[Bin]:
    """The fixed ranges of margins that hold a pivot of any side."""
    bins = [Bin(low, high) for low, high in zip(MARGIN_EDGES, [*MARGIN_EDGES[1:], None], strict=True)]
    return [one for one in bins if any(np.any(one.holds(side.margin)) for side in sides)]


def binned_flips(
    side: Side, values: Floats | Ints, bins: Sequence[Bin], settings: Bootstrap = STANDARD
) -> list[BinFlips]:
    """Flips in each bin of `values`, [n], with intervals over the campaign's own finished problems."""
    members = [one.holds(values) for one in bins]
    questions: dict[tuple[int, str], Statistic] = {}
    for index, inside in enumerate(members):
        out_of = side.by_problem(side.credits.eligible & inside)[side.finished]
        for name in PASSES:
            if name in side.credits.passes:
                flips = side.by_problem(flipped(side.credits, name) & side.credits.eligible & inside)[side.finished]
                questions[index, name] = counts_statistic(flips, out_of)
    intervals = dict(zip(questions, percentile_intervals(list(questions.values()), settings), strict=True))
    found = []
    for index, inside in enumerate(members):
        part = _part(side.credits, inside)
        refeed, replica = (flip_counts(part, name) if name in part.passes else None for name in PASSES)
        refeed_ci95, replica_ci95 = (intervals.get((index, name)) for name in PASSES)
        eligible = int(np.count_nonzero(part.eligible))
        found.append(BinFlips(len(part), eligible, refeed, replica, refeed_ci95, replica_ci95))
    return found


def _part(credits: Credits, mask: Mask) -> Credits:
    return Credits(credits.k, credits.cluster[mask], {name: values[mask] for name, values in credits.passes.items()})


def disagreement(sides: Sequence[Side]) -> pd.DataFrame:
    """Problems that at least two campaigns finished, those they disagree on most first.

    Columns: problem (its number), `gap` (largest difference of two campaigns' share of right rollouts), `flip_gap`
    (the same of their refeed flip rates); fractions, NaN where fewer than two campaigns have the rate.
    """
    if not sides:
        return pd.DataFrame({"problem": [], "gap": [], "flip_gap": []})
    right = np.array([_where(side, _rate(side.right, side.graded)) for side in sides])
    flips = np.array([_where(side, _flip_rate(side)) for side in sides])
    shared = np.flatnonzero(np.sum([side.finished for side in sides], axis=0) >= min(2, len(sides)))
    frame = pd.DataFrame({"problem": shared, "gap": _spread(right[:, shared]), "flip_gap": _spread(flips[:, shared])})
    ranked = frame.sort_values(["gap", "flip_gap", "problem"], ascending=[False, False, True], na_position="last")
    return ranked.reset_index(drop=True)


def _where(side: Side, values: Floats) -> Floats:
    return np.where(side.finished, values, np.nan)


def _flip_rate(side: Side) -> Floats:
    if "refeed" not in side.credits.passes:
        return np.full(len(side.finished), np.nan)
    flips = side.by_problem(flipped(side.credits, "refeed") & side.credits.eligible)
    return _rate(flips, side.eligible_by_problem)


def _rate(numerator: Ints, denominator: Ints) -> Floats:
    return divide(numerator.astype(np.float64), denominator.astype(np.float64))


def _spread(values: Floats) -> Floats:
    known = np.count_nonzero(~np.isnan(values), axis=0) >= 2
    spread = np.full(values.shape[1], np.nan)
    held = values[:, known]
    spread[known] = np.nanmax(held, axis=0) - np.nanmin(held, axis=0)
    return spread
