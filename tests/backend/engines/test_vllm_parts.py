"""Parts cover all requests in order and fit into the room."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backend.engines.vllm_parts import parts


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(-10, 120))
def test_parts_cover_everything_and_fit(costs: list[int], room: int) -> None:
    found = list(parts(costs, room))
    assert [index for part in found for index in range(len(costs))[part]] == list(range(len(costs)))
    for part in found:
        assert sum(costs[part]) <= room or part.stop - part.start == 1
    for part, after in pairwise(found):
        assert sum(costs[part]) + costs[after.start] > room  # no part ends early
