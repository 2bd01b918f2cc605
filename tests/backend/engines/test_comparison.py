"""Recorded against recomputed logprobs."""

from __future__ import annotations

import math

import pytest

from backend.engines.comparison import compare_tops, difference
from backend.records import TopK

RECORDED = TopK([1, 2, 3], [0.0, -1.0, -2.0])


@pytest.mark.parametrize(
    ("found", "gap"),
    [
        (TopK([3, 1, 2], [-2.0, 0.0, -1.0]), 0.0),  # another order
        (TopK([1, 2, 4], [0.0, -1.0, -2.0]), 0.0),  # of tied tokens another one made the cut
        (TopK([1, 4, 3], [0.0, -1.0, -2.0]), 1.0),  # another token above the cut: 2 can have had −2 at most
        (TopK([1, 2, 3], [0.0, -1.0, -2.0000000000000004]), 4.440892098500626e-16),
        (TopK([1, 2, 3], [-0.5, -1.0, -2.0]), 0.5),
        (TopK([1, 2, 3], [0.0, -1.0, -math.inf]), math.inf),
        (TopK([1, 2, 3, 9], [0.0, -1.0, -2.0, -7.0]), 0.0),
        (TopK([], []), None),
    ],
)
def test_the_largest_difference(found: TopK, gap: float | None) -> None:
    assert difference(RECORDED, found) == gap
    assert difference(found, RECORDED) == gap


def test_impossible_on_both_sides_is_equal() -> None:
    impossible = TopK([1, 2], [0.0, -math.inf])
    assert difference(impossible, impossible) == 0.0
    assert difference(impossible, TopK([1, 5], [0.0, -math.inf])) == 0.0


def test_a_rebuilt_rollout_is_judged_by_its_worst_position() -> None:
    near = TopK([1, 2, 3], [0.0, -1.25, -2.0])
    far = TopK([1, 2, 3], [-0.5, -1.0, -2.0])
    tied = TopK([1, 2, 4], [0.0, -1.0, -2.0])
    verdict = compare_tops("a", 10, [RECORDED] * 4, [tied, near, far, RECORDED])
    assert (verdict.equal, verdict.max_difference, verdict.first_divergence) == (False, 0.5, 11)
    assert verdict.provenance == "rebuilt, off by 0.5"
    same = compare_tops("a", 10, [RECORDED], [tied])
    assert (same.equal, same.max_difference, same.first_divergence) == (True, 0.0, None)
    assert same.provenance == "rebuilt, verified"


def test_nothing_recorded_is_no_verdict() -> None:
    assert compare_tops("a", 10, [], [RECORDED]).equal is None
    assert compare_tops("a", 10, [TopK([], [])], [RECORDED]).provenance is None
