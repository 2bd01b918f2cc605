"""Margins, ties, the pivot filter and the alternative token."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.errors import UserError
from backend.pivots import alternative, choices_at, margin, margins, own_alternative, pivot_at, pivots_of
from backend.records import Pivot, Rollout

NAN, INF = math.nan, math.inf
EOS, SPECIAL = 99, 98


def rollout(*positions: tuple[int, list[int], list[float]], prompt: int = 4) -> Rollout:
    """A rollout from (sampled id, top-k ids, top-k logprobs) a generated position."""
    return Rollout(
        rollout=0,
        seed=1,
        prompt_ids=list(range(prompt)),
        ids=[actual for actual, _, _ in positions],
        logprobs=[-0.1] * len(positions),
        topk_ids=[ids for _, ids, _ in positions],
        topk_logprobs=[logprobs for _, _, logprobs in positions],
        finish_reason="stop",
        answer=None,
        correct=None,
    )


CLOSE = (5, [5, 6, 7], [-0.6, -0.9, -3.0])
WIDE = (5, [5, 6, 7], [-0.01, -5.0, -6.0])


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        ([-1.0, -0.5], 0.5),
        ([-4.0, -7.0, 0.0], 4.0),  # a certain token recorded last: probability 1, not a missing value
        ([0.0, -INF, -INF], None),
        ([-0.7, -0.7, -2.0], 0.0),
        ([-0.7, None, -0.9], -0.7 - -0.9),
        ([NAN, -0.7, -0.9], -0.7 - -0.9),
        ([-0.1 - 0.2, -0.3], -0.3 - (-0.1 - 0.2)),  # the float64 difference, nothing rounded
        ([-0.5], None),
        ([], None),
        ([None, NAN, -INF], None),
    ],
)
def test_margin(logprobs: list[float | None], expected: float | None) -> None:
    assert margin(logprobs) == expected
    found = margins([logprobs, [-1.0, -1.5]])
    assert found[1] == 0.5
    assert math.isnan(found[0]) if expected is None else found[0] == expected


values = st.one_of(st.sampled_from([None, 0.0, -INF, NAN]), st.floats(max_value=0.0, allow_infinity=False))


@given(st.lists(st.lists(values, max_size=7), max_size=20))
def test_margins_of_all_positions_are_the_margins_of_each(rows: list[list[float | None]]) -> None:
    expected = [margin(row) for row in rows]
    found = [None if math.isnan(value) else value for value in margins(rows).tolist()]
    assert found == expected


@given(
    st.lists(st.tuples(st.integers(0, 9), values), max_size=7, unique_by=lambda pair: pair[0]),
    st.randoms(use_true_random=False),
)
def test_margin_and_alternative_ignore_the_recorded_order(
    pairs: list[tuple[int, float | None]], random: Random
) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)
    ids, logprobs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    other_ids, other_logprobs = [pair[0] for pair in shuffled], [pair[1] for pair in shuffled]
    assert margin(logprobs) == margin(other_logprobs)
    assert alternative(ids, logprobs, 3) == alternative(other_ids, other_logprobs, 3)


@pytest.mark.parametrize(
    ("ids", "logprobs", "actual", "expected"),
    [
        ([5, 6, 7], [-0.6, -0.9, -3.0], 5, 6),
        ([5, 6, 7], [-0.6, -0.9, -3.0], 7, 5),  # the sampled token need not be the top one
        ([5, 6, 7], [-0.6, -0.9, -3.0], 42, 5),  # nor one of the recorded
        ([7, 6, 5], [-1.0, -1.0, -0.5], 5, 6),  # a tie: the lowest id
        ([5, 6], [0.0, -INF], 5, None),
        ([5, 6, 7], [-0.1, None, NAN], 5, None),
        ([6, 5, 7], [-9.0, -0.5, 0.0], 5, 7),
    ],
)
def test_alternative(ids: list[int], logprobs: list[float | None], actual: int, expected: int | None) -> None:
    assert alternative(ids, logprobs, actual) == expected


def found(one: Rollout, **changed: Any) -> list[int]:
    options: dict[str, Any] = {
        "margin_below": 1.0,
        "max_pivots": 5,
        "special_ids": [SPECIAL],
        "eos_ids": [EOS],
    } | changed
    return [pivot.position for pivot in pivots_of(one, **options)]


def test_pivots_are_the_low_margins_earliest_first() -> None:
    one = rollout(CLOSE, WIDE, CLOSE, CLOSE)
    (first, *_) = pivots_of(one, margin_below=1.0, max_pivots=2)
    assert (first.position, first.actual, first.alternative, first.planned) == (4, 5, 6, True)
    assert first.margin == -0.6 - -0.9
    assert found(one) == [4, 6, 7]
    assert found(one, max_pivots=2) == [4, 6]
    assert found(rollout()) == []


def test_the_margin_must_be_below_the_bound() -> None:
    assert found(rollout((5, [5, 6], [-1.0, -2.0]))) == []
    assert found(rollout((5, [5, 6], [-1.0, math.nextafter(-2.0, 0)]))) == [4]


def test_a_certain_token_is_no_pivot_wherever_it_is_recorded() -> None:
    assert found(rollout((7, [5, 6, 7], [-20.0, -20.5, 0.0]))) == []


def test_skips_do_not_use_up_the_cap() -> None:
    skipped = [
        (EOS, [EOS, 6], [-0.6, -0.9]),
        (SPECIAL, [SPECIAL, 6], [-0.6, -0.9]),
        (5, [5, EOS], [-0.6, -0.9]),
        (5, [5, SPECIAL], [-0.6, -0.9]),
        (5, [5], [-0.6]),
    ]
    assert found(rollout(*skipped, CLOSE, CLOSE), max_pivots=1) == [9]


def test_boundary_slack_keeps_the_positions_after_a_block_boundary() -> None:
    one = rollout(*[CLOSE] * 40, prompt=10)
    assert found(one, boundary_slack=2, max_pivots=99) == [16, 17, 18, 32, 33, 34, 48, 49]
    assert found(one, boundary_slack=0, max_pivots=2) == [16, 32]
    assert found(rollout(*[CLOSE] * 15, prompt=10), boundary_slack=2) == []
    assert found(rollout(*[CLOSE] * 16, prompt=10), boundary_slack=2) == [16, 17, 18]


def test_a_click_takes_any_generated_token() -> None:
    pivot = pivot_at(rollout(CLOSE, WIDE), 5)
    assert (pivot.position, pivot.actual, pivot.alternative, pivot.planned) == (5, 5, 6, False)
    assert pivot.margin == -0.01 - -5.0


@pytest.mark.parametrize(
    ("position", "says"),
    [
        (3, "lies in the prompt; its generated tokens are at 4 to 9"),
        (-1, "does not exist; its generated tokens are at 4 to 9"),
        (10, "does not exist"),
        (4, "is the end-of-sequence token"),
        (5, "is a special token"),
        (6, "alternative that is end of the sequence"),
        (7, "alternative that is special"),
        (8, "no alternative with a probability above zero"),
        (9, "no recorded alternatives"),
    ],
)
def test_a_click_that_cannot_be_replayed_says_why(position: int, says: str) -> None:
    one = rollout(
        (EOS, [EOS, 6], [-0.6, -0.9]),
        (SPECIAL, [SPECIAL, 6], [-0.6, -0.9]),
        (5, [5, EOS], [-0.6, -0.9]),
        (5, [5, SPECIAL], [-0.6, -0.9]),
        (5, [5, 6], [0.0, -INF]),
    )
    one = replace(one, ids=[*one.ids, 5])
    with pytest.raises(UserError, match=says):
        pivot_at(one, position, special_ids=[SPECIAL], eos_ids=[EOS])


def test_another_token_can_be_put_in_its_place() -> None:
    one = rollout((5, [5, EOS, 6, SPECIAL, 7], [-0.6, -0.9, -2.0, -2.5, -3.0]), (5, [5, 6], [0.0, -INF]))
    special = {"special_ids": [SPECIAL], "eos_ids": [EOS]}
    assert choices_at(one, 4, **special) == [(6, -2.0), (7, -3.0)]
    assert choices_at(one, 5, **special) == choices_at(one, 3, **special) == choices_at(one, 6, **special) == []
    assert own_alternative(one, 4) == EOS
    assert own_alternative(one, 5) is None
    chosen = pivot_at(one, 4, chosen=7, **special)
    assert (chosen.actual, chosen.alternative, chosen.margin) == (5, 7, -0.6 - -0.9)
    assert pivot_at(one, 5, chosen=9, **special).alternative == 9  # what is not on record can be chosen as well
    assert pivot_at(replace(one, topk_ids=[], topk_logprobs=[]), 4, chosen=9).margin is None
    with pytest.raises(UserError, match="token 5 is the one that stands there"):
        pivot_at(one, 4, chosen=5, **special)
    with pytest.raises(UserError, match="alternative that is special"):
        pivot_at(one, 4, chosen=SPECIAL, **special)
    stored = replace(one, pivots=[Pivot(4, 5, 6, None, planned=True)])
    assert own_alternative(stored, 4) == 6


def test_published_rollouts_have_the_low_margins_of_the_oracle(shared: Path) -> None:
    oracle = json.loads((shared / "receipts" / "oracle.json").read_text())["rollout_audit"]
    low = 0
    for path in sorted((shared / "receipts" / "rollouts").glob("*.json")):
        tokens = json.loads(path.read_text())["tokens"]
        low += int(np.sum(margins([[entry["logprob"] for entry in token["topk"]] for token in tokens]) < 1.0))
    assert low == oracle["true_low_margin"]
