"""What fits: problems into a wave, and a problem into the model's context."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from backend.engines.base import Engine, EngineInfo
from backend.errors import UserError
from backend.settings import CampaignSettings

MOST_IN_WAVE = 32
"""Most problems measured at once; a kill loses at most the work on that many."""
MOST_SCREENED = 256
"""Most problems sampled at once for a screen that keeps few of them."""


@runtime_checkable
class Bounded(Protocol):
    """An engine whose kept states share a cache of limited size."""

    def capacity(self) -> int | None:
        """Tokens that the cache holds; None when unknown."""


def cache_size(engine: Engine, settings: CampaignSettings, prompt_tokens: int) -> int:
    """How many problems' rollouts the engine's cache holds beside the continuations, 1 for an engine without one.

    `prompt_tokens` is the length of the longest prompt.
    """
    capacity = engine.capacity() if isinstance(engine, Bounded) else None
    if capacity is None:
        return 1
    rollout = prompt_tokens + settings.max_rollout_tokens
    running = (engine.info().max_num_seqs or 1) * (rollout + 1 + settings.max_continuation_tokens)
    return max(1, (capacity - running) // (settings.rollouts * rollout))


def wave_size(held: int, missing: int, kept: int, finished: int) -> int:
    """How many problems to sample at once, so that about `MOST_IN_WAVE` of them, or all that are `missing`, pass.

    Args:
        held: problems that the cache holds.
        missing: problems that the campaign has yet to measure.
        kept, finished: of the `finished` problems so far, the `kept` passed the screen.
    """
    wanted = min(missing, MOST_IN_WAVE)
    if finished:
        wanted = min(round(wanted * (finished + 1) / (kept + 0.5)), MOST_SCREENED)
    else:
        wanted = MOST_IN_WAVE  # nothing is known of the screen yet
    return max(1, min(held, wanted))


def refuse_long_limits(settings: CampaignSettings, info: EngineInfo) -> None:
    """Raise `UserError` when the token limits leave no room for any prompt."""
    generated = settings.max_rollout_tokens + settings.max_continuation_tokens
    if info.context_length is not None and generated >= info.context_length:
        raise UserError(
            f"max_rollout_tokens + max_continuation_tokens is {generated}, but the model reads only "
            f"{info.context_length} tokens, the prompt included; lower one of them"
        )


def refuse_long_prompt(problem: str, prompt_tokens: int, settings: CampaignSettings, info: EngineInfo) -> None:
    """Raise `UserError` when a rollout of the problem and a continuation after it could outgrow the context."""
    needed = prompt_tokens + settings.max_rollout_tokens + settings.max_continuation_tokens
    if info.context_length is not None and needed > info.context_length:
        raise UserError(
            f"problem {problem} has a prompt of {prompt_tokens} tokens; with rollout and continuation it needs "
            f"{needed}, and the model reads {info.context_length}"
        )
