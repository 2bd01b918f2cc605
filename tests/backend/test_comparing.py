"""Comparing campaigns: differences against numbers counted by hand, and intervals that cover as they promise."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend import credit
from backend.binning import binned_flips, disagreement, margin_bins, position_bins
from backend.comparing import (
    QUANTITIES,
    Difference,
    Side,
    difference_statistic,
    differences,
    shared_problems,
)
from backend.credit import Credits
from backend.critical import common_prefix, critical_tokens
from backend.inference import Bootstrap, percentile_intervals
from backend.selection import selections

PROBLEMS = 12


def side(credits: Credits, **changed: Any) -> Side:
    """A side over `PROBLEMS` problems, all finished, pivot i at position 10·i of rollout 0."""
    n = len(credits)
    fields: dict[str, Any] = {
        "credits": credits,
        "rollout": np.zeros(n, dtype=np.int64),
        "position": np.arange(n, dtype=np.int64) * 10,
        "margin": np.linspace(0, 1.2, n),
        "finished": np.ones(PROBLEMS, dtype=np.bool_),
        "right": np.full(PROBLEMS, 2, dtype=np.int64),
        "graded": np.full(PROBLEMS, 4, dtype=np.int64),
    }
    return Side(**fields | changed)


def by_key(found: list[Difference]) -> dict[str, Difference]:
    return {one.key: one for one in found}


# Differences


def test_values_over_the_shared_problems_are_those_of_the_report() -> None:
    mine = pools.by_hand()
    other = pools.pool(4, [(problem, -exact, replica, refeed) for problem, exact, replica, refeed in pools.BY_HAND])
    found = by_key(differences(side(mine), side(other), pools.QUICK))
    for credits, attribute in ((mine, "first"), (other, "second")):
        told = {key: getattr(one, attribute) for key, one in found.items()}
        half = next(row for row in selections(credits, settings=pools.QUICK) if row.threshold == Fraction(1, 2))
        assert half.refeed is not None
        assert half.replica is not None
        flips = {name: credit.flip_counts(credits, name) for name in ("refeed", "replica")}
        assert told == {
            "accuracy": pytest.approx(50),
            "eligible": pytest.approx(100 * credits.eligible.sum() / len(credits)),
            "size": pytest.approx(abs(credits.passes["exact"]).sum() / credits.k / len(credits)),
            "refeed": pytest.approx(100 * flips["refeed"].rate),
            "replica": pytest.approx(100 * flips["replica"].rate),
            "excess": pytest.approx(credit.excess_pp(credits)),
            "conditioned": pytest.approx(credit.conditioned_on_exact(credits).excess_pp),
            "reversals": pytest.approx(100 * flips["refeed"].polarity_reversals / credits.eligible.sum()),
            "bias": pytest.approx(credit.difference(credits).estimate),
            "jaccard": pytest.approx(half.refeed.jaccard),
            "ceiling": pytest.approx(half.replica.jaccard),
            "loss": pytest.approx(half.replica.jaccard - half.refeed.jaccard),
            "divergence": None,
            "bit_exact": None,
        }


def test_only_shared_problems_count() -> None:
    credits = pools.by_hand()
    without_nine = np.ones(PROBLEMS, dtype=np.bool_)
    without_nine[9] = False
    found = by_key(differences(side(credits), side(credits, finished=without_nine), pools.QUICK))
    rest = pools.take(credits, credits.cluster != 9)
    assert shared_problems(side(credits), side(credits, finished=without_nine)).tolist() == [
        *range(9),
        *range(10, PROBLEMS),
    ]
    assert found["refeed"].first == pytest.approx(100 * (credit.flip_counts(rest, "refeed").rate or 0))
    assert found["refeed"].difference == 0


def test_different_k_compare_by_their_credits() -> None:
    coarse, fine = (
        pools.by_hand(),
        Credits(8, pools.by_hand().cluster, {n: 2 * v for n, v in pools.by_hand().passes.items()}),
    )
    found = differences(side(coarse), side(fine), pools.QUICK)
    assert all(one.difference in (0, None) for one in found)
    assert all(one.ci95 is None for one in found)  # nothing varies, so nothing is claimed


def test_what_was_not_measured_has_no_difference() -> None:
    credits = pools.by_hand()
    exact_only = Credits(4, credits.cluster, {"exact": credits.passes["exact"]})
    found = by_key(differences(side(credits), side(exact_only), pools.QUICK))
    assert found["refeed"].first is not None
    assert (found["refeed"].second, found["refeed"].difference, found["refeed"].ci95) == (None, None, None)
    assert found["size"].difference == 0


def test_nothing_shared_leaves_everything_undefined() -> None:
    credits = pools.by_hand()
    none = np.zeros(PROBLEMS, dtype=np.bool_)
    found = differences(side(credits), side(credits, finished=none), pools.QUICK)
    assert {(one.first, one.difference, one.ci95) for one in found} == {(None, None, None)}


def test_unknown_probes_are_left_out() -> None:
    credits = pools.by_hand()
    verdicts = {"refeed": np.array([1, 1, 0, 0, -1, -1, -1, -1, -1])}
    found = by_key(differences(side(credits, diverged=verdicts), side(credits, diverged=verdicts), pools.QUICK))
    assert found["divergence"].first == 50


@given(pools.pools(), pools.pools(), st.randoms(use_true_random=False))
def test_swapping_the_sides_mirrors_and_the_order_of_rows_is_nothing(one: Credits, two: Credits, random: Any) -> None:
    rows = list(range(len(one)))
    random.shuffle(rows)
    settings = Bootstrap(draws=50)
    forth = differences(side(one), side(two), settings)
    back = differences(side(two), side(pools.take(one, np.array(rows, dtype=np.int64))), settings)
    for there, here in zip(forth, back, strict=True):
        assert (there.first, there.second) == (here.second, here.first)
        if there.difference is not None:
            assert here.difference == -there.difference
        if there.ci95 is None:
            assert here.ci95 is None, there.key
        else:
            assert here.ci95 == (-there.ci95[1], -there.ci95[0]), there.key


def test_intervals_of_differences_cover_at_the_stated_rate() -> None:
    """Eight hundred pairs of campaigns over 40 shared problems, drawn from a population whose difference is known.

    Problems differ in how many pivots are eligible and in how easily those flip, in both campaigns alike and in each
    of its own; the share of 95 % intervals that hold the truth must be at least 92 %.
    """
    rng = np.random.default_rng(20261130)
    worlds, problems = 800, 40
    quantity = next(one for one in QUANTITIES if one.key == "excess")
    eligible = 3 + rng.poisson(6, (2, worlds, problems))
    hard = rng.beta(2, 5, (worlds, problems))  # shared by both campaigns
    rows, truth = [], []
    for strength, count in zip((1.0, 0.4), eligible, strict=True):
        own = rng.beta(4, 4, (worlds, problems))
        flips = rng.binomial(count, strength * hard * own) - rng.binomial(count, 0.1 * hard)
        rows.append(np.stack([flips, count], axis=2))
        # Counts are drawn independently of the rates, so the rate of the population is the mean rate.
        truth.append(100 * (strength * 2 / 7 * 1 / 2 - 0.1 * 2 / 7))
    statistics = [difference_statistic(quantity, rows[0][i], rows[1][i]) for i in range(worlds)]
    intervals = percentile_intervals([one for one in statistics if one is not None], Bootstrap(draws=1000))
    difference = truth[1] - truth[0]
    held = np.mean([ci95 is not None and ci95[0] <= difference <= ci95[1] for ci95 in intervals])
    assert 0.92 <= held <= 0.98, f"{held:.1%} of the intervals hold the true difference of {difference:.2f} pp"
    spread = np.mean([ci95[1] - ci95[0] for ci95 in intervals if ci95 is not None])
    assert spread < abs(difference) * 2, "intervals that cover because they are useless prove nothing"


# Flips by place


def test_position_bins_hold_about_as_many_pivots_each_and_part_no_position() -> None:
    one = side(pools.pool(4, [(0, 1, 1, 1)] * 100), position=np.arange(100))
    bins = position_bins([one])
    assert [(each.low, each.high) for each in bins] == [(10 * i, 10 * i + 10) for i in range(10)]
    tied = side(pools.pool(4, [(0, 1, 1, 1)] * 4), position=np.array([7, 7, 7, 9]))
    assert [(each.low, each.high) for each in position_bins([tied])] == [(7, 8), (8, 10)]
    assert position_bins([side(pools.pool(4, []))]) == []


def test_each_side_weighs_alike_in_the_bins() -> None:
    few = side(pools.pool(4, [(0, 1, 1, 1)] * 2), position=np.array([0, 1]))
    many = side(pools.pool(4, [(0, 1, 1, 1)] * 200), position=np.arange(1000, 1200))
    bins = position_bins([few, many], bins=2)
    assert [(each.low, each.high) for each in bins] == [(0, 2), (2, 1200)]


def test_bins_add_up_to_the_whole() -> None:
    one = side(pools.by_hand())
    for values, bins in ((one.position, position_bins([one], 3)), (one.margin, margin_bins([one]))):
        found = binned_flips(one, values, bins, pools.QUICK)
        whole = credit.flip_counts(one.credits, "refeed")
        assert sum(each.pivots for each in found) == len(one.credits)
        assert sum(each.eligible for each in found) == one.credits.eligible.sum()
        assert sum(each.refeed.flips for each in found if each.refeed) == whole.flips


def test_an_unknown_margin_is_in_no_bin() -> None:
    one = side(pools.by_hand(), margin=np.full(9, math.nan))
    assert margin_bins([one]) == []


# Disagreement


def test_the_problem_with_the_largest_gap_comes_first() -> None:
    credits = pools.by_hand()
    right = np.array([2, 4, 0, *[2] * (PROBLEMS - 3)])
    unfinished = np.ones(PROBLEMS, dtype=np.bool_)
    unfinished[1] = False
    ranked = disagreement([side(credits), side(credits, right=right)])
    assert ranked["problem"].tolist()[:2] == [1, 2]
    assert ranked["gap"].tolist()[:3] == [0.5, 0.5, 0.0]
    ranked = disagreement([side(credits), side(credits, right=right, finished=unfinished)])
    assert ranked["problem"].tolist()[0] == 2
    assert 1 not in ranked["problem"].tolist()


# Critical tokens

COMMON = pd.DataFrame({"problem": [0, 1], "rollout": [0, 0], "common": [25, 100]})


def critical(exact: list[int], k: int = 4, places: list[int] | None = None, problems: list[int] | None = None) -> Side:
    rows = [(problem, value, value, value) for problem, value in zip(problems or [0] * len(exact), exact, strict=True)]
    return side(pools.pool(k, rows), position=np.array(places or [10 * i for i in range(len(exact))]))


def test_tokens_that_both_select_and_that_only_one_does() -> None:
    first = critical([4, -2, 1, 4])  # at 0, 10, 20 and, where the texts have parted, 30
    second = critical([8, -16, 8, 0], k=16)
    found = critical_tokens(first, second, COMMON)
    assert (found.measured, found.both, found.only_first, found.only_second) == (3, 2, 0, 1)
    assert found.apart == (1, 0)
    assert found.rows[["position", "first", "second", "selected_by"]].values.tolist() == [
        [0, 4, 8, "both"],
        [10, -2, -16, "both"],
        [20, 1, 8, "second"],
    ]
    assert found.jaccard == pytest.approx(2 / 3)
    assert found.chance == pytest.approx((2 * 3 / 3) / (2 + 3 - 2 * 3 / 3))


def test_what_the_other_did_not_measure_is_counted_apart() -> None:
    found = critical_tokens(critical([4, 4]), critical([4], places=[10]), COMMON)
    assert (found.measured, found.both, found.unmeasured) == (1, 1, (1, 0))


def test_a_rollout_that_only_one_holds_is_no_common_text() -> None:
    found = critical_tokens(critical([4], problems=[5]), critical([4], problems=[5]), COMMON)
    assert (found.measured, found.apart, found.jaccard, found.chance) == (0, (1, 1), None, None)


def test_where_two_texts_first_differ() -> None:
    assert common_prefix([b"ab", b"cd"], [b"ab", b"cd"]) is None
    assert common_prefix([b"ab", b"cd"], [b"a", b"bc", b"d"]) is None  # other cuts of the same text
    assert common_prefix([b"ab", b"cd"], [b"ab", b"ce"]) == (1, 1)
    assert common_prefix([b"abc", b"d"], [b"a", b"b", b"x"]) == (0, 2)
    assert common_prefix([b"ab"], [b"ab", b"c"]) == (1, 1)  # the first text ends there
    assert common_prefix([], [b"a"]) == (0, 0)
    assert common_prefix([b"", b"a"], [b"b"]) == (1, 0)  # an empty token differs in nothing
