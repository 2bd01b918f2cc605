"""Recorded against recomputed logprobs: equal bit for bit, or where they first differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

from backend.engines.base import Rebuilt
from backend.records import TopK


def difference(recorded: TopK, found: TopK) -> float:
    """Largest |difference| in nats over the token ids that either names; 0.0 only for equal ids and equal bits.

    An id that one side lacks counts from that side's lowest logprob, the most it could have had there.
    """
    mine = dict(zip(recorded.ids, recorded.logprobs, strict=True))
    theirs = dict(zip(found.ids, found.logprobs, strict=True))
    if mine == theirs:
        return 0.0
    floor_mine, floor_theirs = min(mine.values(), default=0.0), min(theirs.values(), default=0.0)
    gaps = [abs(mine.get(token, floor_mine) - theirs.get(token, floor_theirs)) for token in mine.keys() | theirs.keys()]
    finite = [gap for gap in gaps if not math.isnan(gap)]
    # Different ids with the same logprobs (a tie cut elsewhere) are a difference too, however small.
    return max(max(finite, default=0.0), 5e-324)


def compare_tops(handle: str, prompt_length: int, recorded: Sequence[TopK], found: Sequence[TopK]) -> Rebuilt:
    """The verdict on a rebuilt rollout, from the top-k of each generated position."""
    if not recorded:
        return Rebuilt(handle, None, None, None)
    gaps = [difference(mine, theirs) for mine, theirs in zip(recorded, found, strict=True)]
    first = next((i for i, gap in enumerate(gaps) if gap > 0), None)
    return Rebuilt(handle, first is None, max(gaps), None if first is None else prompt_length + first)
