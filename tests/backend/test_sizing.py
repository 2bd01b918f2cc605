"""Waves fill the cache and no more; what the context cannot hold is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.engines.scripted_engine import ScriptedEngine
from backend.errors import UserError
from backend.sizing import cache_size, refuse_long_limits, refuse_long_prompt, wave_size
from tests.backend.play import campaign_settings, scripted

SETTINGS = campaign_settings(rollouts=4, max_rollout_tokens=80, max_continuation_tokens=59)


class Cached(ScriptedEngine):
    """An engine whose cache holds so many tokens."""

    def __init__(self, tokens: int | None) -> None:
        super().__init__("toy", "float32")
        self.tokens = tokens

    def capacity(self) -> int | None:
        return self.tokens


@pytest.mark.parametrize(
    ("tokens", "problems"),
    # One running sequence of 20 + 80 + 1 + 59 tokens, and 4 rollouts of 20 + 80 a problem.
    [(None, 1), (0, 1), (160 + 400 * 3, 3), (160 + 400 * 3 - 1, 2)],
)
def test_the_cache_holds_problems_beside_the_continuations(tokens: int | None, problems: int) -> None:
    assert cache_size(Cached(tokens), SETTINGS, 20) == problems


def test_an_engine_without_a_cache_of_limited_size_works_on_one_problem() -> None:
    assert cache_size(scripted(), SETTINGS, 20) == 1


@pytest.mark.parametrize(
    ("held", "missing", "kept", "finished", "size"),
    [
        (1, 100, 0, 0, 1),
        (500, 100, 0, 0, 32),  # nothing is known of the screen
        (500, 100, 2, 29, 256),  # few pass: as many as are sampled at once
        (90, 100, 2, 29, 90),  # as the cache holds
        (500, 100, 24, 31, 42),  # most pass: about 32 are measured
        (500, 1, 99, 131, 1),  # one is missing and most pass
        (500, 1, 9, 131, 14),
        (500, 100, 0, 32, 256),
    ],
)
def test_a_wave_is_as_large_as_the_screen_is_strict(
    held: int, missing: int, kept: int, finished: int, size: int
) -> None:
    assert wave_size(held, missing, kept, finished) == size


def test_limits_must_leave_room_in_the_context() -> None:
    info = replace(scripted().info(), context_length=140)
    refuse_long_limits(SETTINGS, info)
    refuse_long_prompt("p", 1, SETTINGS, info)
    with pytest.raises(
        UserError, match=r"problem p has a prompt of 2 tokens; .* it needs 141, and the model reads 140"
    ):
        refuse_long_prompt("p", 2, SETTINGS, info)
    with pytest.raises(UserError, match="is 139, but the model reads only 139 tokens"):
        refuse_long_limits(SETTINGS, replace(info, context_length=139))
    refuse_long_limits(SETTINGS, replace(info, context_length=None))
    refuse_long_prompt("p", 10**6, SETTINGS, replace(info, context_length=None))
