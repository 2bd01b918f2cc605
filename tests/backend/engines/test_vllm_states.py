"""Which tokens a resumed request finds, prefills and decodes; nothing here needs vLLM."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from backend.engines.vllm_states import NEXT, Kept, States

BLOCK = 4


class Sent(NamedTuple):
    """The fields of `vllm_steps.Request`, whose module imports vLLM."""

    prompt: list[int]
    forced: list[int]
    salt: str
    seed: int
    sampling: Any
    top_k: int
    stops: list[int]
    prefill: int = 0


def resumed(prompt: int, position: int, salt: str | None = "0:r") -> Sent:
    """The verification of a rollout of 12 tokens at a position."""
    request: Any = Sent
    states = States(BLOCK, request)
    states.keep("r", Kept(salt, list(range(prompt)), list(range(100, 112)), [0.0] * 12))
    sent: Any = states.resuming("r", states.prefix("r", position)[1], 0, NEXT, 5, [])
    return Sent(*sent)


@pytest.mark.parametrize(
    ("prompt", "position", "prompted", "prefill"),
    [
        (8, 8, 8, 4),  # the block that the last prompt token fills is looked up only for longer prompts
        (8, 9, 9, 0),  # it is found, and the first generated token decoded
        (8, 12, 9, 0),
        (9, 9, 9, 1),  # one token, but of the prompt: it was prefilled
        (9, 11, 9, 1),
        (9, 13, 13, 0),
        (10, 12, 10, 2),
        (11, 11, 11, 3),
        (11, 14, 13, 0),
    ],
)
def test_what_was_prefilled_is_prefilled_and_what_was_decoded_decoded(
    prompt: int, position: int, prompted: int, prefill: int
) -> None:
    sent = resumed(prompt, position)
    assert (len(sent.prompt), sent.prefill) == (prompted, prefill)
    assert sent.prompt + sent.forced == [*range(prompt), *range(100, 112)][:position]
    assert len(sent.prompt) >= prompt


def test_a_lost_state_is_prefilled_under_a_salt_of_its_own() -> None:
    sent = resumed(9, 15, salt=None)
    assert (len(sent.prompt), sent.prefill, sent.salt) == (13, 13, "0:lost")
