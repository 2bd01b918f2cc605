"""How much of a recorded rollout is decoded again to bring its state back."""

from __future__ import annotations

from backend.records import Rollout, TopK, Trace

REBUILT_AT_LEAST = 256
"""Generated tokens that a rebuild decodes, if there are so many: most rollouts are then whole."""


def rebuilt_until(rollout: Rollout, position: int) -> int:
    """How many generated tokens are decoded to bring the state at `position` back.

    As many again as are needed: readers move on, and a state that has to grow is decoded from its prompt on.
    """
    needed = position - len(rollout.prompt_ids) + 1
    return min(max(2 * needed, REBUILT_AT_LEAST), len(rollout.ids))


def beginning(handle: str, rollout: Rollout, until: int) -> Trace:
    """What was recorded of a rollout's first tokens."""
    top = [TopK(*pair) for pair in zip(rollout.topk_ids[:until], rollout.topk_logprobs[:until], strict=True)]
    ending = rollout.finish_reason or "stop"
    return Trace(handle, rollout.prompt_ids, rollout.ids[:until], rollout.logprobs[:until], top, ending)
