"""Recorded against recomputed logprobs: equal bit for bit, or where they first differ."""

from __future__ import annotations

from collections.abc import Sequence

from backend.engines.base import Rebuilt
from backend.records import TopK


def difference(recorded: TopK, found: TopK) -> float | None:
    """Largest |difference| in nats over the token ids that either names; 0.0 only where both say the same, bit for bit.

    An id that one side lacks counts there from the lowest logprob, the most it could have had. So which of several
    tokens tied at the cut made it makes no difference. Lists of unequal length are compared as far as the shorter
    goes. None when there is nothing to compare.
    """
    length = min(len(recorded.ids), len(found.ids))
    if length == 0:
        return None
    mine, theirs = _best(recorded, length), _best(found, length)
    lowest_mine, lowest_theirs = min(mine.values()), min(theirs.values())
    pairs = [(mine.get(token, lowest_mine), theirs.get(token, lowest_theirs)) for token in mine.keys() | theirs.keys()]
    return max((abs(a - b) for a, b in pairs if a != b), default=0.0)


def compare_tops(handle: str, prompt_length: int, recorded: Sequence[TopK], found: Sequence[TopK]) -> Rebuilt:
    """The verdict on a rebuilt rollout, from the top-k of each generated position."""
    gaps = [difference(mine, theirs) for mine, theirs in zip(recorded, found, strict=True)] if recorded else []
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return Rebuilt(handle, None, None, None)
    first = next((index for index, gap in enumerate(gaps) if gap), None)
    return Rebuilt(handle, first is None, max(known), None if first is None else prompt_length + first)


def _best(top: TopK, length: int) -> dict[int, float]:
    """The most probable tokens with their logprobs, nats. The ids of tied ones decide, not their order."""
    ranked = sorted(zip(top.logprobs, top.ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return {token: logprob for logprob, token in ranked[:length]}
