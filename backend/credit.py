"""Credit and flips: integer counts over the complete pivots of one pool of campaigns.

Everything here is a pure function on integer arrays; a rate is divided out last, and one that is undefined is None.
How sure the rates are is asked in `backend.inference`, which pivots a threshold selects in `backend.selection`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ELIGIBLE_BY = ("exact", "replica", "refeed")
"""The passes that make a pivot eligible. Further passes are measured against the same pivots and never add to them."""


@dataclass(frozen=True)
class Credits:
    """The credits of n complete pivots, one row a pivot, from one campaign or several pooled ones.

    A row stands for one (campaign, problem, rollout, position): pooling concatenates rows and never merges them, and
    the order of the rows and the values of the cluster codes change no result. Raises ValueError where the arrays do
    not fit together.
    """

    k: int
    """Continuations an arm, ≥ 1, the same for every row and pass."""
    cluster: Ints
    """int64[n]: which problem a pivot belongs to. Pooled campaigns share the code of a problem they share."""
    passes: Mapping[str, Ints]
    """By pass name, int64[n]: n_actual − n_alternative, so that Â = value / k exactly. `exact` is always there."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k is {self.k}; it must be at least 1")
        if "exact" not in self.passes:
            raise ValueError(f"the pass exact is missing; the passes are {', '.join(self.passes) or 'none'}")
        for name, values in {"cluster": self.cluster, **self.passes}.items():
            if values.dtype != np.int64 or values.shape != (len(self.cluster),):
                raise ValueError(
                    f"{name} is {values.dtype}{list(values.shape)}; it must be int64[{len(self.cluster)}], "
                    "one whole number a pivot"
                )
        for name, values in self.passes.items():
            if values.size and not -self.k <= int(values.min()) <= int(values.max()) <= self.k:
                raise ValueError(f"{name} has values outside −{self.k} … {self.k}, which k={self.k} cannot give")

    def __len__(self) -> int:
        return len(self.cluster)

    @cached_property
    def _factorized(self) -> tuple[Ints, Ints]:
        # pandas hashes where numpy sorts: six times faster over a million pivots.
        codes, problems = pd.factorize(self.cluster)
        return codes.astype(np.int64, copy=False), np.asarray(problems, dtype=np.int64)

    @property
    def problem_index(self) -> Ints:
        """int64[n]: the cluster of each pivot as an index into `problem_codes`."""
        return self._factorized[0]

    @property
    def problem_codes(self) -> Ints:
        """int64[problems]: the distinct cluster codes, in order of appearance."""
        return self._factorized[1]

    @property
    def problems(self) -> int:
        """How many problems have a pivot."""
        return len(self.problem_codes)

    @cached_property
    def signs(self) -> Mapping[str, npt.NDArray[np.int8]]:
        """By pass name, int8[n]: −1, 0 or 1. A byte a pivot, for flips ask for them again and again."""
        return {
            name: (values > 0).astype(np.int8) - (values < 0).astype(np.int8) for name, values in self.passes.items()
        }

    @cached_property
    def eligible(self) -> Mask:
        """bool[n]: Â ≠ 0 in exact, replica or refeed, as far as these were measured."""
        return np.logical_or.reduce([self.signs[name] != 0 for name in ELIGIBLE_BY if name in self.passes])

    @cached_property
    def eligible_by_problem(self) -> Ints:
        """int64[problems]: eligible pivots of each problem."""
        return self.count_by_problem(self.eligible)

    @property
    def clusters(self) -> int:
        """How many problems have an eligible pivot."""
        return int(np.count_nonzero(self.eligible_by_problem))

    def count_by_problem(self, mask: Mask) -> Ints:
        """int64[problems]: how many pivots of `mask`, bool[n], each problem has."""
        return np.bincount(self.problem_index[mask], minlength=self.problems).astype(np.int64, copy=False)


@dataclass(frozen=True)
class Flips:
    """How often one pass gives another sign of Â than `exact`, over the eligible pivots."""

    flips: int
    zero_crossings: int
    """Flips with 0 on one side."""
    polarity_reversals: int
    """Flips between strictly opposite signs."""
    rate: float | None
    """flips / eligible; None without an eligible pivot."""


@dataclass(frozen=True)
class Conditioned:
    """The same comparison over pivots with Â_exact ≠ 0, where refeed cannot create its own eligibility."""

    n: int
    refeed_flips: int | None
    replica_flips: int | None
    excess_pp: float | None
    """100 · (refeed_flips − replica_flips) / n; None when n is 0 or a pass is missing."""


@dataclass(frozen=True)
class ClusteredRatio:
    """A ratio of totals, Σ numerator / Σ denominator, with the parts that each of G clusters adds to it."""

    numerator: Ints
    """int64[G]."""
    denominator: Ints
    """int64[G], each ≥ 1: a cluster that adds nothing is left out."""

    def __post_init__(self) -> None:
        if self.numerator.shape != self.denominator.shape or np.any(self.denominator < 1):
            raise ValueError("each cluster needs one numerator and one denominator of at least 1")

    def __len__(self) -> int:
        return len(self.denominator)

    @property
    def estimate(self) -> float | None:
        """The pivot-weighted ratio; None over no clusters."""
        return ratio(int(self.numerator.sum()), int(self.denominator.sum()))

    @property
    def has_spread(self) -> bool:
        """Whether two clusters differ in their own ratio: decided on reduced fractions, never on rounded ones."""
        divisor = np.gcd(self.numerator, self.denominator)
        reduced = np.column_stack([self.numerator // divisor, self.denominator // divisor])
        return bool(np.any(reduced != reduced[:1]))


def ratio(numerator: int, denominator: int) -> float | None:
    """numerator / denominator correctly rounded; None where the denominator is 0."""
    return numerator / denominator if denominator else None


def flipped(credits: Credits, name: str, against: str = "exact") -> Mask:
    """bool[n]: where the sign of Â in pass `name` differs from that in pass `against`. KeyError for an unknown pass."""
    different: Mask = credits.signs[name] != credits.signs[against]
    return different


def flip_counts(credits: Credits, name: str, against: str = "exact") -> Flips:
    """Flips of pass `name` over the eligible pivots; the denominator is the same for every pass.

    `against` is the pass to compare with: refeed_replica against refeed is the noise floor of refeed itself.
    """
    mine, other = credits.signs[name], credits.signs[against]
    flips = int(np.count_nonzero(flipped(credits, name, against) & credits.eligible))
    reversals = int(np.count_nonzero((mine * other == -1) & credits.eligible))
    eligible = int(np.count_nonzero(credits.eligible))
    return Flips(flips, flips - reversals, reversals, ratio(flips, eligible))


def flip_rate(credits: Credits, name: str, against: str = "exact") -> ClusteredRatio:
    """Flips of pass `name` / eligible, by problem."""
    return _by_eligible_problem(credits, credits.count_by_problem(flipped(credits, name, against) & credits.eligible))


def excess(credits: Credits) -> ClusteredRatio | None:
    """(refeed flips − replica flips) / eligible, by problem, as a fraction; None when either pass is missing."""
    if "replica" not in credits.passes or "refeed" not in credits.passes:
        return None
    refeed, replica = (
        credits.count_by_problem(flipped(credits, name) & credits.eligible) for name in ("refeed", "replica")
    )
    return _by_eligible_problem(credits, refeed - replica)


def excess_pp(credits: Credits) -> float | None:
    """Excess of refeed's flip rate over the floor, percentage points; None without eligible pivots or a floor."""
    parts = excess(credits)
    return None if parts is None else ratio(100 * int(parts.numerator.sum()), int(parts.denominator.sum()))


def difference(credits: Credits, name: str = "refeed", against: str = "exact") -> ClusteredRatio:
    """Σ (Â_name − Â_against) / eligible, by problem: numerators in units of 1/k, denominators k · eligible."""
    shift = np.zeros(credits.problems, dtype=np.int64)
    moved = (credits.passes[name] - credits.passes[against])[credits.eligible]
    np.add.at(shift, credits.problem_index[credits.eligible], moved)
    return _by_eligible_problem(credits, shift, scale=credits.k)


def conditioned_on_exact(credits: Credits) -> Conditioned:
    """Flips of refeed and replica over the pivots with Â_exact ≠ 0."""
    nonzero = credits.passes["exact"] != 0
    n = int(np.count_nonzero(nonzero))
    refeed, replica = (
        int(np.count_nonzero(flipped(credits, name) & nonzero)) if name in credits.passes else None
        for name in ("refeed", "replica")
    )
    pp = None if refeed is None or replica is None else ratio(100 * (refeed - replica), n)
    return Conditioned(n, refeed, replica, pp)


def problem_table(credits: Credits) -> dict[str, Ints]:
    """Columns of the per-problem table, int64[problems]: cluster, pivots, eligible and `<pass>_flips` for each pass."""
    every: Callable[[Mask], Ints] = credits.count_by_problem
    columns = {
        "cluster": credits.problem_codes,
        "pivots": every(np.ones(len(credits), dtype=np.bool_)),
        "eligible": credits.eligible_by_problem,
    }
    for name in credits.passes:
        if name != "exact":
            columns[f"{name}_flips"] = every(flipped(credits, name) & credits.eligible)
    return columns


@dataclass(frozen=True)
class Probe:
    """The greedy probes of one pass against those of `exact`; every field is None over no probes."""

    divergence: float | None
    """Share of pivots where any token differs in either arm."""
    bit_exact: float | None
    """Share of pivots with a delta of exactly 0."""
    p90_delta: float | None
    """sorted(delta)[⌊0.9·n⌋], nats."""


def probe_summary(diverged: Mask, delta: npt.NDArray[np.float64]) -> Probe:
    """Summarise n probes: `diverged` is bool[n], `delta` float64[n] ≥ 0 in nats. ValueError for a delta of NaN."""
    n = len(delta)
    if len(diverged) != n or np.any(np.isnan(delta)):
        raise ValueError("each probe needs one verdict and one delta that is a number")
    if n == 0:
        return Probe(None, None, None)
    rank = 9 * n // 10
    # Most probes of a good replica are bit-exact, and a partition is slow where most values are equal.
    moved = delta[delta > 0]
    below = n - len(moved)
    return Probe(
        divergence=ratio(int(np.count_nonzero(diverged)), n),
        bit_exact=ratio(below, n),
        p90_delta=0.0 if rank < below else float(np.partition(moved, rank - below)[rank - below]),
    )


def _by_eligible_problem(credits: Credits, numerator: Ints, scale: int = 1) -> ClusteredRatio:
    eligible = credits.eligible_by_problem
    kept = eligible > 0
    return ClusteredRatio(numerator[kept], scale * eligible[kept])
