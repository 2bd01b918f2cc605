"""How sure a clustered ratio is: t statistics, the sign-flip test, the cluster bootstrap, the equivalence test.

The unit of observation is the problem: pivots of one problem share its prompt and cannot be treated as independent.
Every result is None where it is undefined, namely over fewer than two clusters or when all clusters agree exactly.
Sums of floats go through `math.fsum`, which rounds once, so that no result depends on the order of the clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special
from threadpoolctl import threadpool_limits

from backend.credit import ClusteredRatio, Ints

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int16] | npt.NDArray[np.int32]
Interval = tuple[float, float]

EXACT_CLUSTERS = 20
"""Up to this many clusters with a difference, the sign-flip test goes through all 2^G patterns."""
_ROWS = 256
"""Draws made at a time: bounds the memory without changing the draws."""
_KEPT_COUNTS = 10_000_000
"""Clusters times draws up to which resamples are kept, at two bytes each: a report's questions, and the next report of
as many problems, share them."""


@dataclass(frozen=True)
class Bootstrap:
    """Settings of everything that is drawn at random."""

    draws: int = 10_000
    """Resamples of an interval, or sign patterns of a test that cannot go through all of them."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.draws < 1 or self.seed < 0:
            raise ValueError(f"{self.draws} draws from seed {self.seed}: at least 1 draw and a seed of at least 0")


STANDARD = Bootstrap()
"""The settings that a report uses unless it is told otherwise."""


@dataclass(frozen=True)
class Statistic:
    """A statistic of G clusters that can be resampled: totals of C integer columns, then a function of the totals."""

    rows: Ints
    """int64[G, C]: what each cluster adds to the C totals."""
    value: Callable[[Floats], Floats]
    """Totals float64[B, C] to values float64[B], NaN where a value is undefined."""
    mirror: Callable[[Ints], Ints]
    """The rows, int64[G, C], of the opposite question; `value` of them is −value. See `percentile_intervals`."""


@dataclass(frozen=True)
class Bias:
    """The mean difference of two passes with the equivalence test (two one-sided t tests at 5 %)."""

    mean: float | None
    """Mean of Â_refeed − Â_exact over the eligible pivots."""
    ci95: Interval | None
    """mean ± t(0.975, G−1) · CR1 standard error."""
    margin: float
    """The difference that would not matter, > 0."""
    p: float | None
    """Larger p of the tests against −margin and +margin."""
    equivalent: bool | None
    """p < 0.05: the difference is shown to be smaller than the margin. False is not a proof of a difference."""


def mean_equal_weight(parts: ClusteredRatio) -> float | None:
    """Mean of the clusters' own ratios; None over no clusters."""
    return math.fsum(_own_ratios(parts)) / len(parts) if len(parts) else None


def t_equal_weight(parts: ClusteredRatio) -> float | None:
    """t of the clusters' own ratios against 0: mean over sd/√G, G−1 degrees of freedom."""
    mean = mean_equal_weight(parts)
    if mean is None or not _testable(parts):
        return None
    deviations = math.fsum((own - mean) ** 2 for own in _own_ratios(parts))
    groups = len(parts)
    return mean / math.sqrt(deviations / (groups - 1) / groups)


def t_cr1(parts: ClusteredRatio) -> float | None:
    """t of the pivot-weighted ratio with the CR1 cluster-robust standard error."""
    estimate, error = parts.estimate, cr1_error(parts)
    return None if estimate is None or error is None else estimate / error


def cr1_error(parts: ClusteredRatio) -> float | None:
    """CR1 standard error of the pivot-weighted ratio: √(G/(G−1) · Σ residual²) / Σ denominator."""
    estimate = parts.estimate
    if estimate is None or not _testable(parts):
        return None
    residuals = parts.numerator - estimate * parts.denominator
    groups = len(parts)
    return math.sqrt(groups / (groups - 1) * math.fsum(residuals**2)) / int(parts.denominator.sum())


def t_jackknife(parts: ClusteredRatio) -> float | None:
    """t of the pivot-weighted ratio with the CV3 standard error: leave-one-cluster-out, centred on the full ratio."""
    estimate = parts.estimate
    if estimate is None or not _testable(parts):
        return None
    left = (parts.numerator.sum() - parts.numerator) / (parts.denominator.sum() - parts.denominator)
    groups = len(parts)
    return estimate / math.sqrt((groups - 1) / groups * math.fsum((left - estimate) ** 2))


def sign_flip_p(parts: ClusteredRatio, settings: Bootstrap = STANDARD) -> float | None:
    """Two-sided p of the sign-flip test on the equal-weight mean: how often random signs give as large a mean.

    Clusters whose own ratio is 0 count the same under either sign and drop out. Over up to `EXACT_CLUSTERS` others all
    patterns are compared in integers; over more, `settings.draws` random ones, with p = (1 + b) / (1 + B).
    """
    if not _testable(parts):
        return None
    moved = parts.numerator != 0
    numerators, denominators = parts.numerator[moved].tolist(), parts.denominator[moved].tolist()
    common = math.lcm(*denominators)
    scaled = [n * (common // d) for n, d in zip(numerators, denominators, strict=True)]
    sizes, observed = sorted(abs(value) for value in scaled), abs(sum(scaled))
    if len(sizes) <= EXACT_CLUSTERS:
        return _share_of_patterns(sizes, observed)
    return _share_of_draws(np.array([size / common for size in sizes]), observed / common, settings)


def bias(parts: ClusteredRatio, margin: float = 0.02) -> Bias:
    """Mean difference with its clustered interval and the equivalence test against ±margin (same unit as Â)."""
    if not 0 < margin < math.inf:
        raise ValueError(f"the margin is {margin}; it must be a number above 0")
    mean, error = parts.estimate, cr1_error(parts)
    if mean is None or error is None:
        return Bias(mean, None, margin, None, None)
    freedom = len(parts) - 1
    reach = float(special.stdtrit(freedom, 0.975)) * error
    p = float(special.stdtr(freedom, (abs(mean) - margin) / error))
    return Bias(mean, (mean - reach, mean + reach), margin, p, p < 0.05)


def none_bound(events: int, groups: int) -> float | None:
    """Where none of G clusters has an event: the 95 % upper bound of the share of clusters that have any, one-sided.

    Clopper and Pearson's, 1 − 0.05^(1/G). A resample of nothing is nothing, so the bootstrap has no interval there;
    but nothing seen in few problems is not nothing. None where there was an event, or no cluster.
    """
    return None if events or not groups else float(special.betaincinv(1, groups, 0.95))


def ratio_statistic(parts: ClusteredRatio, scale: float = 1.0) -> Statistic:
    """A clustered ratio, times `scale` (100 for percentage points), as something to resample."""
    return counts_statistic(parts.numerator, parts.denominator, scale)


def counts_statistic(numerator: Ints, denominator: Ints, scale: float = 1.0) -> Statistic:
    """scale · Σ numerator / Σ denominator of int64[G] columns, where a denominator may be 0."""
    return Statistic(
        np.column_stack([numerator, denominator]),
        lambda totals: scale * divide(totals[:, 0], totals[:, 1]),
        lambda rows: rows * np.array([-1, 1]),
    )


def divide(numerator: Floats, denominator: Floats) -> Floats:
    """Elementwise ratio, NaN where the denominator is 0."""
    undefined = np.full(np.shape(numerator), np.nan)
    return np.divide(numerator, denominator, out=undefined, where=denominator != 0)


def percentile_intervals(statistics: Sequence[Statistic], settings: Bootstrap = STANDARD) -> list[Interval | None]:
    """95 % percentile interval of each statistic by resampling whole clusters, its ratio recomputed in every resample.

    Statistics over equally many clusters share their resamples. Resamples where a statistic is undefined are left out;
    the interval is None over fewer than two clusters or when every resample gives the same value.

    The clusters are first put in an order that depends on their numbers alone, so that neither the order of the rows
    nor the names of the problems move an interval. The order also treats a question and its opposite alike (replica
    minus refeed for refeed minus replica), so that swapping the passes mirrors the interval exactly.
    """
    intervals: list[Interval | None] = [None] * len(statistics)
    for groups in sorted({len(statistic.rows) for statistic in statistics} - {0, 1}):
        members = [i for i, statistic in enumerate(statistics) if len(statistic.rows) == groups]
        oriented = [_canonical(statistics[i]) for i in members]
        draws = _resampled_values([statistics[i] for i in members], [rows for rows, _ in oriented], settings)
        for i, (_, signs), values in zip(members, oriented, draws, strict=True):
            intervals[i] = _middle(np.concatenate([sign * values for sign in signs]))
    return intervals


def _own_ratios(parts: ClusteredRatio) -> Floats:
    own: Floats = parts.numerator / parts.denominator
    return own


def _testable(parts: ClusteredRatio) -> bool:
    return len(parts) >= 2 and parts.has_spread


def _share_of_patterns(sizes: list[int], observed: int) -> float:
    # The other half of the patterns has all signs turned and the same size of sum, so the first sign stays put.
    # Python's integers take over where the common denominator is too large for 64 bits.
    sums = np.array(sizes[:1], dtype=np.int64 if sum(sizes) < 2**62 else object)
    for size in sizes[1:]:
        sums = np.concatenate([sums + size, sums - size])
    return int(np.count_nonzero(np.abs(sums) >= observed)) / len(sums)


def _share_of_draws(sizes: Floats, observed: float, settings: Bootstrap) -> float:
    rng = np.random.default_rng(settings.seed)
    # A sum that equals the observed one exactly may come out a rounding error below it; it counts as reaching it.
    bar = observed - 1e-12 * float(sizes.sum())
    reached = 0
    for rows in _batches(settings.draws):
        words = rng.integers(0, 2**64, size=(rows, -(-len(sizes) // 64)), dtype=np.uint64)
        positive = np.unpackbits(words.view(np.uint8), axis=1, count=len(sizes)).astype(np.float64)
        sums = 2 * (positive @ sizes) - sizes.sum()
        reached += int(np.count_nonzero(np.abs(sums) >= bar))
    return (1 + reached) / (1 + settings.draws)


def _canonical(statistic: Statistic) -> tuple[Ints, tuple[int, ...]]:
    """The rows in an order of their own, of the question or its opposite (whichever sorts first), and the sign to undo.

    Rows that are their own opposite make a distribution symmetric about 0: both signs, so that the interval is too.
    """
    given, opposite = _sorted_rows(statistic.rows), _sorted_rows(statistic.mirror(statistic.rows))
    differing = np.flatnonzero(given != opposite)
    if not differing.size:
        return given, (1, -1)
    first = differing[0]
    return (given, (1,)) if given.flat[first] < opposite.flat[first] else (opposite, (-1,))


def _sorted_rows(rows: Ints) -> Ints:
    ordered: Ints = rows[np.lexsort(rows.T[::-1])]
    return ordered


def _resampled_values(statistics: list[Statistic], rows: list[Ints], settings: Bootstrap) -> list[Floats]:
    side_by_side = np.concatenate(rows, axis=1)
    # Totals are integers, hence exact whatever order the matrix product adds them in, if no partial sum outgrows the
    # type: below 2^24 in float32, which is twice as fast, far below 2^53 in float64.
    groups, largest = len(side_by_side), int(np.abs(side_by_side).max())
    parts = np.asfortranarray(side_by_side, dtype=np.float32 if groups * largest < 2**24 else np.float64)
    # One thread: over products as small as these, several wait for each other longer than they compute.
    with threadpool_limits(1, "blas"):
        totals = np.concatenate([weights.astype(parts.dtype) @ parts for weights in _resamples(groups, settings)])
    ends = np.cumsum([block.shape[1] for block in rows])[:-1]
    blocks = np.split(totals.astype(np.float64), ends, axis=1)
    return [statistic.value(block) for statistic, block in zip(statistics, blocks, strict=True)]


def _resamples(groups: int, settings: Bootstrap) -> Sequence[Counts] | Iterator[Counts]:
    """How often each resample takes each cluster, [b, G] at a time; kept where they are small."""
    small = groups * settings.draws <= _KEPT_COUNTS
    return _kept_resamples(groups, settings) if small else _drawn_resamples(groups, settings)


@lru_cache(maxsize=4)
def _kept_resamples(groups: int, settings: Bootstrap) -> Sequence[Counts]:
    return tuple(_drawn_resamples(groups, settings))


def _drawn_resamples(groups: int, settings: Bootstrap) -> Iterator[Counts]:
    rng = np.random.default_rng(settings.seed)
    for rows in _batches(settings.draws):
        picks = rng.integers(groups, size=(rows, groups)) + np.arange(rows)[:, None] * groups
        counts = np.bincount(picks.ravel(), minlength=rows * groups).reshape(rows, groups)
        # A cluster is taken as often as there are clusters at most, and then 16 bits hold it.
        yield counts.astype(np.int16) if groups < 2**15 else counts.astype(np.int32)


def _batches(draws: int) -> Iterator[int]:
    return (min(_ROWS, draws - done) for done in range(0, draws, _ROWS))


def _middle(values: Floats) -> Interval | None:
    # Order statistics counted from both ends, not interpolated: the interval of −x is minus that of x, bit for bit.
    defined = np.sort(values[~np.isnan(values)])
    if not defined.size or defined[0] == defined[-1]:
        return None
    tail = defined.size // 40
    # Adding 0.0 turns −0.0, which nobody wants to read, into 0.0.
    return float(defined[tail]) + 0.0, float(defined[-1 - tail]) + 0.0
