"""Selections and their overlap: by hand, exact thresholds, and the edges where a set is empty."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from pools import QUICK, by_hand, pool, pools, published

from backend.credit import Credits
from backend.errors import UserError
from backend.selection import Overlap, attainable_thresholds, parse_threshold, selections


def test_the_case_by_hand() -> None:
    rows = selections(by_hand(), settings=QUICK)
    assert [row.threshold for row in rows] == [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4), Fraction(1)]
    assert [row.exact_size for row in rows] == [6, 3, 1, 1]

    def counted(pair: str) -> list[tuple[int, int, int]]:
        overlaps: list[Overlap] = [getattr(row, pair) for row in rows]
        return [(overlap.intersection, overlap.union, overlap.size) for overlap in overlaps]

    assert counted("refeed") == [(5, 7, 6), (1, 5, 3), (1, 2, 2), (1, 1, 1)]
    assert counted("replica") == [(5, 6, 5), (3, 3, 3), (1, 1, 1), (0, 1, 0)]
    assert counted("refeed_replica") == [(4, 7, 6), (1, 5, 3), (1, 2, 2), (0, 1, 1)]
    first, last = rows[0], rows[-1]
    assert first.refeed is not None
    assert last.replica is not None
    # 6 and 6 of 9 pivots share 4 by chance, out of 8.
    assert (first.refeed.jaccard, first.refeed.chance) == (5 / 7, 0.5)
    # One set empty is disagreement, not a gap.
    assert (last.replica.jaccard, last.replica.chance) == (0.0, 0.0)


def test_both_sets_empty_is_undefined_and_one_empty_is_zero() -> None:
    (low, high) = selections(pool(2, [(0, 1, 1, 0), (1, 1, 1, 0)]), settings=QUICK)
    assert low.refeed == Overlap(0, 2, 0.0, 0, 0.0, None)
    assert low.replica == Overlap(2, 2, 1.0, 2, 1.0, None)
    assert high.refeed == high.replica == Overlap(0, 0, None, 0, None, None)
    assert low.gap_ci95 is high.gap_ci95 is None


def test_thresholds_at_k_10_are_exact() -> None:
    # 0.3 · 10 is 3 and 0.1 · 3 in floats is above 0.3: three of ten must reach 0.3, two must not.
    credits = pool(10, [(0, 3, 2, 3), (0, -3, 3, -3), (1, 2, 3, 2)])
    by_threshold = {row.threshold: row for row in selections(credits, [parse_threshold("0.3")], QUICK)}
    assert len(by_threshold) == 10
    row = by_threshold[Fraction(3, 10)]
    assert row.exact_size == 2
    assert row.refeed is not None
    assert row.replica is not None
    assert (row.refeed.intersection, row.refeed.union) == (2, 2)
    assert (row.replica.intersection, row.replica.union, row.replica.size) == (1, 3, 2)


@settings(deadline=None)
@given(pools())
def test_every_threshold_selects_what_exact_fractions_select(credits: Credits) -> None:
    asked = [parse_threshold(text) for text in ("0", ".05", "0.3", "0.30000000000000001", "0.7", "1.0")]
    rows = selections(credits, asked, QUICK)
    assert [row.threshold for row in rows] == sorted({*attainable_thresholds(credits.k), *asked})
    for row in rows:
        exact, refeed = (
            {
                i
                for i, value in enumerate(credits.passes[name].tolist())
                if Fraction(abs(value), credits.k) >= row.threshold
            }
            for name in ("exact", "refeed")
        )
        assert row.refeed is not None
        assert row.exact_size == len(exact)
        assert (row.refeed.intersection, row.refeed.union) == (len(exact & refeed), len(exact | refeed))
        assert row.refeed.size == len(refeed)


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "-0.1", "1.01", "2", "0,3", "1/3", "1e-1", "1e-999999999", "0." + "1" * 40, "٠.٣", "30%"]
)
def test_a_threshold_that_is_no_decimal_from_0_to_1_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a decimal from 0 to 1"):
        parse_threshold(text)


@pytest.mark.parametrize("text", ["0.3", ".3", "0.30", " 0.3 "])
def test_a_threshold_is_read_as_the_fraction_it_says(text: str) -> None:
    assert parse_threshold(text) == Fraction(3, 10)


def test_a_threshold_outside_the_range_of_a_credit_is_refused() -> None:
    for threshold in (Fraction(-1, 2), Fraction(11, 10)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            selections(by_hand(), [threshold])


def test_a_greedy_curve_is_constant_in_the_threshold(shared: Path) -> None:
    credits, _ = published(shared / "receipts", ["campaign-2026-06-10/temp0.json"])
    rows = selections(credits, [parse_threshold(text) for text in ("0.1", "0.5", "0.9")])
    assert len(rows) == 4
    assert len({(row.refeed, row.replica, row.refeed_replica, row.exact_size, row.gap_ci95) for row in rows}) == 1


def test_a_published_curve_above_its_ceiling_is_left_there(shared: Path) -> None:
    files = ["campaign-2026-06-11/primary.json", "campaign-2026-06-11/screened.json"]
    credits, _ = published(shared / "receipts", files)
    *below, top = selections(credits)
    assert top.refeed is not None
    assert top.replica is not None
    assert (top.refeed.jaccard or 0) > (top.replica.jaccard or 1)
    assert top.gap_ci95 is not None
    assert top.gap_ci95[0] < 0 < top.gap_ci95[1]
    for row in below:
        assert row.refeed is not None
        assert row.refeed.ci95 is not None
        assert row.refeed.jaccard is not None
        assert row.refeed.ci95[0] < row.refeed.jaccard < row.refeed.ci95[1]


def test_a_batch_invariant_campaign_agrees_everywhere(shared: Path) -> None:
    credits, _ = published(shared / "receipts", ["campaign-2026-06-11/batchinv.json"])
    for row in selections(credits):
        assert row.refeed == row.replica
        assert row.refeed is not None
        assert row.refeed.jaccard == 1.0
        assert row.gap_ci95 is None


def test_a_pass_that_was_not_measured_gives_no_curve() -> None:
    full = by_hand()
    only = Credits(4, full.cluster, {"exact": full.passes["exact"]})
    row = selections(only)[0]
    assert (row.exact_size, row.refeed, row.replica, row.refeed_replica, row.gap_ci95) == (6, None, None, None, None)
    assert np.array_equal(only.eligible, full.passes["exact"] != 0)
