"""Waves fill the cache and no more; what the context cannot hold is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.engines.scripted_engine import ScriptedEngine
from backend.errors import UserError
from backend.sizing import refuse_long_limits, refuse_long_prompt, wave_size
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
    [(None, 1), (0, 1), (160 + 400 * 3, 3), (160 + 400 * 3 - 1, 2), (10**6, 32)],
)
def test_a_wave_fills_the_cache_beside_the_continuations(tokens: int | None, problems: int) -> None:
    assert wave_size(Cached(tokens), SETTINGS, 20) == problems


def test_an_engine_without_a_cache_of_limited_size_works_on_one_problem() -> None:
    assert wave_size(scripted(), SETTINGS, 20) == 1


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
