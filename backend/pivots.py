"""Where a rollout can be cut: margins, ties, the pivot filter, and the alternative token.

Logprobs are raw (pre-temperature), in nats, and compared as numbers: 0.0 is probability 1 and not a missing value.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from backend.errors import UserError
from backend.records import Pivot, Rollout

STUDY_BLOCK = 16
"""Block size of the study's filter in tokens; `boundary_slack` counts from its boundaries."""


def margin(logprobs: Sequence[float | None]) -> float | None:
    """Raw logprob margin top1 − top2 in nats, the float64 difference of the two largest.

    Values that are −inf, NaN or None take no part. None when fewer than two are left.
    """
    finite = sorted((value for value in logprobs if value is not None and math.isfinite(value)), reverse=True)
    return finite[0] - finite[1] if len(finite) > 1 else None


def margins(topk_logprobs: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    """`margin` of every position at once, float64[n]; NaN stands for an undefined one."""
    if not topk_logprobs:
        return np.empty(0)
    lengths = np.fromiter(map(len, topk_logprobs), np.int64, len(topk_logprobs))
    width = max(int(lengths.max()), 2)
    values = np.full((len(topk_logprobs), width), -np.inf)
    # One flat conversion instead of one a row; it also turns None into NaN.
    flat = np.array(list(chain.from_iterable(topk_logprobs)), dtype=np.float64)
    values[np.arange(width) < lengths[:, None]] = np.where(np.isfinite(flat), flat, -np.inf)
    values.partition((width - 2, width - 1), axis=1)
    top1, top2 = values[:, -1], values[:, -2]
    defined = np.isfinite(top2)
    return np.where(defined, top1 - np.where(defined, top2, 0.0), np.nan)


def alternative(ids: Sequence[int], logprobs: Sequence[float | None], actual: int) -> int | None:
    """The most probable token id that is not `actual`; ties go to the lowest id, None when none is possible."""
    candidates = [
        (-value, token)
        for token, value in zip(ids, logprobs, strict=True)
        if token != actual and value is not None and math.isfinite(value)
    ]
    return min(candidates)[1] if candidates else None


def pivots_of(
    rollout: Rollout,
    *,
    margin_below: float,
    max_pivots: int,
    boundary_slack: int = -1,
    special_ids: Collection[int] = (),
    eos_ids: Collection[int] = (),
) -> list[Pivot]:
    """The rollout's pivots by the campaign's filter, earliest first.

    A position counts when its margin (nats) is below `margin_below` and neither its actual nor its alternative token
    is special or end-of-sequence. What is skipped does not use up one of the `max_pivots`.
    `boundary_slack` s ≥ 0 keeps only positions with position % 16 ≤ s, in rollouts of at least one block.
    """
    if boundary_slack >= 0 and len(rollout.ids) < STUDY_BLOCK:
        return []
    unusable = set(special_ids) | set(eos_ids)
    every = margins(rollout.topk_logprobs)
    positions = len(rollout.prompt_ids) + np.arange(len(every))
    # A NaN is never below anything, so undefined margins drop out here.
    chosen = every < margin_below
    if boundary_slack >= 0:
        chosen &= positions % STUDY_BLOCK <= boundary_slack
    pivots: list[Pivot] = []
    for index in np.flatnonzero(chosen).tolist():
        if len(pivots) == max_pivots:
            break
        actual = rollout.ids[index]
        other = alternative(rollout.topk_ids[index], rollout.topk_logprobs[index], actual)
        if other is None or actual in unusable or other in unusable:
            continue
        pivots.append(Pivot(int(positions[index]), actual, other, float(every[index]), planned=True))
    return pivots


def pivot_at(
    rollout: Rollout,
    position: int,
    *,
    chosen: int | None = None,
    special_ids: Collection[int] = (),
    eos_ids: Collection[int] = (),
) -> Pivot:
    """The pivot at a position somebody picked, whatever its margin.

    Its alternative is `chosen`, or else the most probable other token. Raises `UserError` when the position is not a
    generated token's, or its actual or alternative token cannot be cut.
    """
    where = f"position {position} of rollout {rollout.rollout}"
    index = _generated(rollout, position, where)
    actual = rollout.ids[index]
    if actual in eos_ids:
        raise UserError(
            f"{where} is the end-of-sequence token: there is nothing after it to replay, pick an earlier one"
        )
    if actual in special_ids:
        raise UserError(f"{where} is a special token, which is not replayed; pick a token of the text")
    if chosen == actual:
        raise UserError(f"{where}: token {chosen} is the one that stands there; put another one in its place")
    top = _top_at(rollout, index)
    if chosen is None and top is None:
        raise UserError(f"{where} has no recorded alternatives; pick a token whose top logprobs were recorded")
    other = alternative(*top, actual) if chosen is None and top is not None else chosen
    if other is None:
        raise UserError(f"{where} has no alternative with a probability above zero on record; pick another token")
    if other in eos_ids or other in special_ids:
        kind = "end of the sequence" if other in eos_ids else "special"
        raise UserError(
            f"{where} has a token as its alternative that is {kind}, which is not replayed; pick another token"
        )
    return Pivot(position, actual, other, None if top is None else margin(top[1]), planned=False)


def _generated(rollout: Rollout, position: int, where: str) -> int:
    """The index among the generated tokens. Raises `UserError` for a position that is none of theirs."""
    first, end = len(rollout.prompt_ids), len(rollout.prompt_ids) + len(rollout.ids)
    if not rollout.ids:
        raise UserError(f"{where}: the rollout has no generated token to replay")
    if not 0 <= position < end:
        raise UserError(f"{where} does not exist; its generated tokens are at {first} to {end - 1}")
    if position < first:
        raise UserError(f"{where} lies in the prompt; its generated tokens are at {first} to {end - 1}")
    return position - first


def _top_at(rollout: Rollout, index: int) -> tuple[list[int], list[float]] | None:
    """The most probable ids at a generated index with their logprobs (nats); None where they are not on record."""
    if not 0 <= index < min(len(rollout.ids), len(rollout.topk_ids), len(rollout.topk_logprobs)):
        return None
    return rollout.topk_ids[index], rollout.topk_logprobs[index]


def own_alternative(rollout: Rollout, position: int) -> int | None:
    """The alternative of the pivot at a position: the stored one's, else the most probable other token on record."""
    stored = next((one.alternative for one in rollout.pivots if one.position == position), None)
    index = position - len(rollout.prompt_ids)
    top = _top_at(rollout, index)
    return stored if stored is not None or top is None else alternative(*top, rollout.ids[index])


def choices_at(
    rollout: Rollout, position: int, *, special_ids: Collection[int] = (), eos_ids: Collection[int] = ()
) -> list[tuple[int, float]]:
    """The recorded tokens that can be put in the actual one's place, with their logprobs (nats), likeliest first."""
    index = position - len(rollout.prompt_ids)
    top, unusable = _top_at(rollout, index), {*special_ids, *eos_ids}
    if top is None or rollout.ids[index] in unusable:
        return []
    unusable.add(rollout.ids[index])
    usable = [
        (token, value) for token, value in zip(*top, strict=True) if token not in unusable and math.isfinite(value)
    ]
    return sorted(usable, key=lambda one: (-one[1], one[0]))
