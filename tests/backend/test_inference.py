"""Statistics over clusters: by hand, against scipy where it has the same quantity, and by simulation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import by_hand, everything, pool, published
from scipy import stats

from backend import credit, inference
from backend.credit import ClusteredRatio
from backend.inference import Bootstrap


def ratios(*parts: tuple[int, int]) -> ClusteredRatio:
    columns = np.array(parts, dtype=np.int64).reshape(-1, 2)
    return ClusteredRatio(columns[:, 0], columns[:, 1])


def test_the_case_by_hand() -> None:
    excess = credit.excess(by_hand())
    assert excess is not None
    # Flips in excess of the floor over eligible pivots, by problem: 1/2, 1/3, −1/2.
    assert (excess.numerator.tolist(), excess.denominator.tolist()) == ([1, 1, -1], [2, 3, 2])
    assert inference.mean_equal_weight(excess) == pytest.approx(1 / 9, rel=1e-12)
    assert inference.t_equal_weight(excess) == pytest.approx(2 / math.sqrt(31), rel=1e-12)
    assert inference.t_cr1(excess) == pytest.approx(7 / math.sqrt(183), rel=1e-12)
    assert inference.t_jackknife(excess) == pytest.approx(math.sqrt(75 / 262), rel=1e-12)
    # In sixths 3, 2 and 3: every choice of signs gives a sum of at least the observed 2.
    assert inference.sign_flip_p(excess) == 1.0


@pytest.mark.parametrize("parts", [[], [(1, 3)], [(1, 3), (2, 6)], [(0, 3), (0, 5)], [(-1, 10), (-3, 30), (-2, 20)]])
def test_too_few_clusters_or_no_spread_is_undefined(parts: list[tuple[int, int]]) -> None:
    few = ratios(*parts)
    assert inference.t_equal_weight(few) is None
    assert inference.t_cr1(few) is None
    assert inference.t_jackknife(few) is None
    assert inference.sign_flip_p(few) is None
    assert inference.percentile_intervals([inference.ratio_statistic(few)]) == [None]
    verdict = inference.bias(few)
    assert (verdict.mean, verdict.ci95, verdict.p, verdict.equivalent) == (few.estimate, None, None, None)


def test_sign_flips_over_all_patterns() -> None:
    # All three one way: only that pattern and its opposite reach the sum, 2 of 8.
    assert inference.sign_flip_p(ratios((1, 2), (1, 3), (1, 5))) == 0.25
    # A cluster at zero adds a spread and no pattern.
    assert inference.sign_flip_p(ratios((1, 2), (1, 2), (0, 9))) == 0.5
    # 1/10 + 2/10 against 3/10, a tie that floats would miss: the sum is 0 and every pattern reaches it.
    assert inference.sign_flip_p(ratios((1, 10), (2, 10), (-3, 10))) == 1.0


def test_sign_flips_whose_common_denominator_exceeds_64_bits() -> None:
    primes = [10007, 10009, 10037, 10039, 10061, 10067]
    assert math.lcm(*primes) > 2**63
    assert inference.sign_flip_p(ratios(*((1, prime) for prime in primes))) == 2 / 2**6


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-6, 6), st.integers(1, 6)), min_size=2, max_size=9))
def test_sign_flips_agree_with_scipy(parts: list[tuple[int, int]]) -> None:
    # Over a common denominator floats hold the sums exactly, so that scipy's comparisons are exact as well.
    own = np.array([60 // d * n for n, d in parts], dtype=np.float64)
    if len(set(own)) == 1:
        return
    theirs = stats.permutation_test(
        (own,), np.sum, permutation_type="samples", n_resamples=np.inf, vectorized=False, alternative="two-sided"
    )
    assert inference.sign_flip_p(ratios(*parts)) == pytest.approx(min(1.0, theirs.pvalue), rel=1e-12)


def test_drawn_sign_flips_are_close_to_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    parts = ratios(*zip(rng.integers(-2, 6, 16).tolist(), rng.integers(4, 12, 16).tolist(), strict=True))
    exact = inference.sign_flip_p(parts)
    monkeypatch.setattr(inference, "EXACT_CLUSTERS", 3)
    drawn = inference.sign_flip_p(parts)
    assert exact is not None
    assert drawn is not None
    assert 0.001 < exact < 0.2
    assert abs(drawn - exact) < 4 * math.sqrt(exact * (1 - exact) / 10_000)
    # Never 0: the observed signs are one of the patterns.
    assert inference.sign_flip_p(ratios(*[(9, 10)] * 30, (1, 2)), Bootstrap(draws=99)) == 1 / 100


def test_equal_denominators_make_the_three_t_statistics_one_and_scipys() -> None:
    counts = np.random.default_rng(1).integers(-3, 9, 25)
    parts = ratios(*((count, 10) for count in counts.tolist()))
    theirs = stats.ttest_1samp(counts / 10, 0).statistic
    for ours in (inference.t_equal_weight(parts), inference.t_cr1(parts), inference.t_jackknife(parts)):
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_the_equivalence_test_is_two_one_sided_t_tests() -> None:
    counts = np.random.default_rng(2).integers(-2, 4, 30)
    own = counts / 40
    for margin in (0.02, 0.03, 0.05):
        verdict = inference.bias(ratios(*((count, 40) for count in counts.tolist())), margin)
        above = stats.ttest_1samp(own, -margin, alternative="greater").pvalue
        below = stats.ttest_1samp(own, margin, alternative="less").pvalue
        assert verdict.p == pytest.approx(max(above, below), rel=1e-9)
        assert verdict.equivalent == (max(above, below) < 0.05)
        assert verdict.ci95 == pytest.approx(tuple(stats.ttest_1samp(own, 0).confidence_interval(0.95)), rel=1e-9)
    for margin in (0.0, -0.02, math.nan, math.inf):
        with pytest.raises(ValueError, match="the margin is"):
            inference.bias(ratios((1, 4), (2, 4)), margin)


def test_the_interval_agrees_with_scipys_bootstrap() -> None:
    rng = np.random.default_rng(3)
    denominators = rng.integers(3, 20, 60)
    numerators = rng.binomial(denominators, rng.beta(2, 5, 60))
    ours = inference.percentile_intervals([inference.counts_statistic(numerators, denominators, scale=100)])[0]
    theirs = stats.bootstrap(
        (numerators, denominators),
        lambda n, d, axis: 100 * n.sum(axis) / d.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=10_000,
        method="percentile",
        rng=np.random.default_rng(4),
    ).confidence_interval
    # Two sets of 10,000 draws: the ends differ by their own noise, a few hundredths of the width.
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.05 * (theirs.high - theirs.low))


def test_an_interval_does_not_depend_on_its_neighbours() -> None:
    first, second = ratios((1, 2), (0, 3), (2, 5)), ratios((1, 2), (3, 4))
    statistics = [inference.ratio_statistic(parts) for parts in (first, second, first)]
    alone = [inference.percentile_intervals([statistic])[0] for statistic in statistics]
    assert inference.percentile_intervals(statistics) == alone
    assert None not in alone
    assert inference.percentile_intervals([]) == []


def test_memory_bounds_change_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    parts = ratios(*zip(rng.integers(-4, 9, 50).tolist(), rng.integers(9, 30, 50).tolist(), strict=True))

    def drawn() -> tuple[object, object]:
        return inference.percentile_intervals([inference.ratio_statistic(parts)]), inference.sign_flip_p(parts)

    whole = drawn()
    monkeypatch.setattr(inference, "_ROWS", 77)
    assert drawn() == whole


def test_a_pool_that_is_its_own_mirror_has_a_symmetric_interval() -> None:
    low, high = everything(pool(4, [(0, 1, 1, 0), (1, 1, 0, 1), (2, 1, 0, 0)]))["excess_pp_ci95"]
    assert low == -high < 0


def test_resamples_without_a_value_are_left_out() -> None:
    # One of three clusters has the only pivot: resamples without it are undefined, the others all give the same.
    only = inference.counts_statistic(np.array([1, 0, 0]), np.array([1, 0, 0]))
    assert inference.percentile_intervals([only]) == [None]
    two = inference.counts_statistic(np.array([1, 0, 0]), np.array([1, 1, 0]))
    assert inference.percentile_intervals([two]) == [(0.0, 1.0)]


def test_no_event_in_some_clusters_bounds_their_share_as_scipy_does() -> None:
    for groups in (1, 10, 100):
        exact = stats.binomtest(0, groups, alternative="less").proportion_ci(0.95, method="exact")
        assert inference.none_bound(0, groups) == pytest.approx(exact.high, rel=1e-12)
    assert inference.none_bound(1, 10) is None
    assert inference.none_bound(0, 0) is None


def test_settings_that_draw_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 draw"):
        Bootstrap(draws=0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    runs, groups, covered = 400, 40, 0
    truth = 2 / 6 - 1 / 8
    for _ in range(runs):
        eligible = rng.integers(5, 30, groups)
        flips = rng.binomial(eligible, rng.beta(2, 4, groups)) - rng.binomial(eligible, rng.beta(1, 7, groups))
        interval = inference.percentile_intervals([inference.counts_statistic(flips, eligible)], Bootstrap(1000))[0]
        assert interval is not None
        covered += interval[0] <= truth <= interval[1]
    # 95 % less what a percentile bootstrap over 40 clusters is known to lose, within 3 standard errors of 400 runs.
    assert 0.90 <= covered / runs <= 0.98


@pytest.mark.parametrize(
    ("files", "p", "equivalent"),
    [(["primary.json", "screened.json"], 1 / 10_001, False), (["k8.json"], 4 / 2**20, True)],
)
def test_published_pools_have_intervals_around_their_excess(
    shared: Path, files: list[str], p: float, equivalent: bool
) -> None:
    credits, _ = published(shared / "receipts" / "campaign-2026-06-11", files)
    numbers = everything(credits, inference.STANDARD)
    error = numbers["excess_pp"] / numbers["t_cr1"]
    normal = (numbers["excess_pp"] - 1.96 * error, numbers["excess_pp"] + 1.96 * error)
    assert numbers["excess_pp_ci95"] == pytest.approx(normal, abs=0.5 * error)
    assert numbers["sign_flip_p"] == p
    assert numbers["bias"]["equivalent"] is equivalent
