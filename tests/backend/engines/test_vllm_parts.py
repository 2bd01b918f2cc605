"""Parts cover all requests in order and fit into the room."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backend.engines.vllm_parts import apart, parts


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(-10, 120))
def test_parts_cover_everything_and_fit(costs: list[int], room: int) -> None:
    found = list(parts(costs, room))
    assert [index for part in found for index in range(len(costs))[part]] == list(range(len(costs)))
    for part in found:
        assert sum(costs[part]) <= room or part.stop - part.start == 1
    for part, after in pairwise(found):
        assert sum(costs[part]) + costs[after.start] > room  # no part ends early


@given(st.lists(st.integers(0, 60), max_size=30), st.integers(1, 5), st.integers(60, 120))
def test_groups_start_together_and_cover_everything(prefills: list[int], rows: int, tokens: int) -> None:
    groups = apart(prefills, rows, tokens)
    assert sorted(index for group in groups for index in group) == list(range(len(prefills)))
    for group in groups:
        costs = [prefills[index] for index in group]
        assert all(cost <= 1 for cost in costs) or (len(costs) <= rows and sum(costs) <= tokens and min(costs) > 1)
    assert all(max(prefills[index] for index in group) > 1 for group in groups[:-1])
