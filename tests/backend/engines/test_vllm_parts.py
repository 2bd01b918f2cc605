"""Parts cover all requests in order and fit into the room; requests start once each, prefills apart."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from backend.engines.vllm_parts import SPARE_ROWS, Admission, parts


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(-10, 120))
def test_parts_cover_everything_and_fit(costs: list[int], room: int) -> None:
    found = list(parts(costs, room))
    assert [index for part in found for index in range(len(costs))[part]] == list(range(len(costs)))
    for part in found:
        assert sum(costs[part]) <= room or part.stop - part.start == 1
    for part, after in pairwise(found):
        assert sum(costs[part]) + costs[after.start] > room  # no part ends early


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(8, 20), st.integers(60, 120), st.randoms())
def test_requests_start_once_each_and_never_prefill_beside_others(
    prefills: list[int], rows: int, tokens: int, chance: Random
) -> None:
    admission, running, started = Admission(prefills, rows, tokens), 0, list[int]()
    while admission:
        found, alone = admission.start(running)
        started += found
        running += len(found)
        assert running <= rows
        assert found or running  # something always goes on
        costs = [prefills[index] for index in found]
        if alone:
            assert min(costs) > 0
            assert sum(costs) <= tokens
            assert len(found) <= rows - SPARE_ROWS
        else:
            assert not any(costs)
        running -= chance.randint(0, running)
    assert sorted(started) == list(range(len(prefills)))


def test_running_requests_rest_for_many_prefills_and_not_for_one() -> None:
    admission = Admission([5] * 20 + [0] * 3, 16, 100)
    assert admission.start(0) == (list(range(16 - SPARE_ROWS)), True)
    assert admission.start(12) == ([12, 13, 14, 15], True)
    assert admission.start(15) == ([20], False)  # one row of sixteen is too few for a step of their own
    assert admission.start(14) == ([16, 17], True)
    assert admission.start(15) == ([21], False)
    assert admission.start(15) == ([22], False)
    assert admission.start(15) == ([], False)
    assert admission.start(4) == ([18, 19], True)
    assert not admission
