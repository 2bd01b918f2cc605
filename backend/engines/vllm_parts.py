"""Parts of a resumed pass, so that vLLM's cache does not forget a state before its last use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


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


def apart(prefills: Sequence[int], rows: int, tokens: int) -> list[list[int]]:
    """Indices of requests in groups to be run one after the other, so that no step both prefills and decodes.

    `prefills` are the prompt tokens that each request has to compute. Those with more than one start together, at most
    `rows` of them with at most `tokens` in all. A prompt whose last token alone is missing starts like any decode step:
    all of these make up one group, the last.
    """
    groups: list[list[int]] = []
    used = 0
    for index, prefill in enumerate(prefills):
        if prefill <= 1:
            continue
        if not groups or len(groups[-1]) == rows or used + prefill > tokens:
            groups.append([])
            used = 0
        groups[-1].append(index)
        used += prefill
    resumed = [index for index, prefill in enumerate(prefills) if prefill <= 1]
    return [*groups, resumed] if resumed else groups
