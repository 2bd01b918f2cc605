"""In which parts a pass is run, and in which steps its requests start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

SHARE = 8
"""Requests that are to be prefilled wait until one in so many of the rows is free."""
SPARE_ROWS = 4
"""Rows that are left free in a step that prefills, for companions where it has few tokens."""


def parts(costs: Sequence[int], room: int) -> Iterator[slice]:
    """Consecutive stretches of requests whose `costs` sum to at most `room`, each of one request at least.

    A cost is the number of tokens for which a request takes blocks of its own; `room` is what the cache holds beside
    the kept states. vLLM gives a finished request's blocks away only after everything that was used before them, kept
    states among it: not what runs at once has to fit, but all that is written between two uses of a state.
    """
    start, used = 0, 0
    for index, cost in enumerate(costs):
        if index > start and used + cost > room:
            yield slice(start, index)
            start, used = index, 0
        used += cost
    if costs:
        yield slice(start, len(costs))


class Admission:
    """Which of a call's requests start when, so that no step both prefills and decodes.

    `prefills` are the tokens that each has to prefill, `rows` and `tokens` what a step holds. Requests with any start
    in steps of their own, during which the running ones rest; the others start like any decode step.
    """

    def __init__(self, prefills: Sequence[int], rows: int, tokens: int) -> None:
        self._prefills, self._rows, self._tokens = prefills, rows, tokens
        self._alone = deque(index for index, prefill in enumerate(prefills) if prefill)
        self._beside = deque(index for index, prefill in enumerate(prefills) if not prefill)

    def __bool__(self) -> bool:
        """Whether any request has yet to start."""
        return bool(self._alone or self._beside)

    def start(self, running: int) -> tuple[list[int], bool]:
        """Indices of the requests to start beside `running` rows, and whether those have to rest for a step."""
        free = self._rows - running
        # A step of their own costs the running ones a step: not for every row that falls free.
        if self._alone and free * SHARE >= self._rows:
            return self._prefilled(min(free, self._rows - SPARE_ROWS)), True
        return [self._beside.popleft() for _ in range(min(free, len(self._beside)))], False

    def _prefilled(self, free: int) -> list[int]:
        started = [self._alone.popleft()]
        used = self._prefills[started[0]]
        while self._alone and len(started) < free and used + self._prefills[self._alone[0]] <= self._tokens:
            used += self._prefills[self._alone[0]]
            started.append(self._alone.popleft())
        return started
