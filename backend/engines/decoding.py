"""The decode loop: many sequences, one step class, admitted as rows become free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend.engines.base import Control, Sampling
from backend.engines.ragged import Group, Layers, StepCache
from backend.engines.sampling import draw
from backend.records import TOP_K, Finish, TopK

Forward = Callable[[Tensor, Tensor, StepCache], Tensor]
"""Runs one step: ids [rows, 1] and positions [rows, 1] → logits [rows, vocabulary]."""


@dataclass(slots=True, eq=False)
class Row:
    """One sequence being decoded."""

    feed: deque[int]
    """Tokens to be decoded next whatever the model says; the last of them yields the first free token."""
    sampling: Sampling
    seed: int
    want_top: bool = False
    """Record the top-k at every position, also while tokens are being fed."""
    keep_state: Callable[[Layers], None] | None = None
    """Receives the row's KV when it ends."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[TopK] = field(default_factory=list)
    finish: Finish | None = None

    def settle(self, token: int, logprob: float, eos: frozenset[int]) -> None:
        """Take a drawn token."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        if token in eos:
            self.finish = "stop"
        elif len(self.ids) >= self.sampling.max_tokens:
            self.finish = "length"
        else:
            self.feed.append(token)


@dataclass(slots=True, eq=False)
class Bundle:
    """Rows that start from the same prefix, waiting for their turn."""

    rows: list[Row]
    prefix: Callable[[], Layers]
    """Gives the prefix's KV, one row; called when the bundle is admitted so that waiting costs no memory."""
    first_logits: Callable[[], Tensor] | None = None
    """Logits [vocabulary] of the prefix's end where a prefill computed them: the first token is drawn from these."""

    def growth(self) -> int:
        """Tokens that may be appended to the prefix."""
        return max(len(row.feed) + row.sampling.max_tokens for row in self.rows)


class Decoder:
    """Runs bundles to their end. Every step has a row count out of `classes`, filled up with repeats."""

    def __init__(self, forward: Forward, classes: list[int], eos: frozenset[int], device: torch.device) -> None:
        self._forward, self._classes, self._eos, self._device = forward, classes, eos, device

    def run(self, bundles: list[Bundle], control: Control, *, max_rows: int | None = None) -> None:
        """Decode every bundle's rows until they end; results are left in the rows."""
        limit = min(max_rows or self._classes[-1], self._classes[-1])
        waiting = deque(_split(bundles, limit))
        running: list[tuple[Group, list[Row]]] = []
        while waiting or running:
            while waiting and sum(group.rows for group, _ in running) + len(waiting[0].rows) <= limit:
                running += self._admit(waiting.popleft())
            if running:
                running = self._step(running, control)

    def _admit(self, bundle: Bundle) -> list[tuple[Group, list[Row]]]:
        prefix = bundle.prefix()
        if bundle.first_logits is not None:
            logits = bundle.first_logits()[None].expand(len(bundle.rows), -1)
            self._choose(logits, bundle.rows)
        rows = [row for row in bundle.rows if row.finish is None]
        if not rows:
            return []
        return [(Group(prefix, len(rows), prefix[0][0].shape[2] + bundle.growth()), rows)]

    def _step(self, running: list[tuple[Group, list[Row]]], control: Control) -> list[tuple[Group, list[Row]]]:
        rows = [row for _, members in running for row in members]
        ids = [row.feed.popleft() for row in rows]
        positions = [group.length for group, members in running for _ in members]
        fill = next(size for size in self._classes if size >= len(rows)) - len(rows)
        cache = StepCache([group for group, _ in running])
        logits = self._forward(
            self._column(ids + ids[:1] * fill), self._column(positions + positions[:1] * fill), cache
        )
        cache.advance()
        self._choose(logits[: len(rows)], rows)
        control.tick(len(rows))
        return list(self._still_running(running))

    def _column(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self._device)[:, None]

    def _choose(self, logits: Tensor, rows: list[Row]) -> None:
        """Record what is asked for at this position, and draw for the rows that are free."""
        logits = logits.float()
        normaliser = _normaliser(logits)
        watching = [i for i, row in enumerate(rows) if row.want_top]
        if watching:
            for i, top in zip(watching, _top(_take(logits, watching), normaliser[watching]), strict=True):
                rows[i].top.append(top)
        free = [i for i, row in enumerate(rows) if not row.feed]
        if not free:
            return
        tokens = self._draw(_take(logits, free), [rows[i] for i in free])
        places = self._vector(free, torch.int64)
        drawn = logits[places, tokens]
        found = (drawn.double() - normaliser[places]).float().tolist()
        for i, token, logprob in zip(free, tokens.tolist(), found, strict=True):
            rows[i].settle(token, logprob, self._eos)

    def _draw(self, logits: Tensor, rows: list[Row]) -> Tensor:
        tokens = torch.empty(len(rows), dtype=torch.int64, device=self._device)
        cold = [i for i, row in enumerate(rows) if row.sampling.temperature == 0]
        if cold:
            tokens[cold] = _most_probable(_take(logits, cold))
        hot = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
        if hot:
            chosen = [rows[i] for i in hot]
            tokens[hot] = draw(
                _take(logits, hot),
                self._vector([row.seed for row in chosen], torch.int64),
                self._vector([len(row.ids) for row in chosen], torch.int64),
                self._vector([row.sampling.temperature for row in chosen], torch.float64),
                self._vector([row.sampling.top_p for row in chosen], torch.float64),
            )
        return tokens

    def _vector(self, values: list[int] | list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self._device)

    def _still_running(self, running: list[tuple[Group, list[Row]]]) -> Iterator[tuple[Group, list[Row]]]:
        for group, members in running:
            alive = [i for i, row in enumerate(members) if row.finish is None]
            if len(alive) < len(members):
                for i, row in enumerate(members):
                    if row.finish is not None and row.keep_state is not None:
                        row.keep_state(group.state(i, group.length))
                if not alive:
                    continue
                group.keep(alive)
            yield group, [members[i] for i in alive]


def _split(bundles: list[Bundle], limit: int) -> Iterator[Bundle]:
    for bundle in bundles:
        for start in range(0, len(bundle.rows), limit):
            yield Bundle(bundle.rows[start : start + limit], bundle.prefix, bundle.first_logits)


def _take(logits: Tensor, rows: list[int]) -> Tensor:
    """The given rows, ascending and each once; a copy only where some are left out."""
    return logits if len(rows) == len(logits) else logits[rows]


def _most_probable(logits: Tensor) -> Tensor:
    """The lowest id [rows] among the most probable ones.

    argmax may return any of several equals; the first position that holds the maximum is the lowest id.
    """
    return (logits == logits.amax(dim=1, keepdim=True)).int().argmax(dim=1)


def _normaliser(logits: Tensor) -> Tensor:
    """Log of the summed exponentials [rows], float64.

    The sum is taken in double precision: a library splits it over threads by the number of rows, and in single
    precision a row alone would get another last bit than the same row in company.
    """
    best = logits.amax(dim=1, keepdim=True)
    return (logits - best).exp_().sum(dim=1, dtype=torch.float64).log() + best[:, 0].double()


def _top(logits: Tensor, normaliser: Tensor) -> list[TopK]:
    values, ids = logits.topk(TOP_K, dim=1)
    logprobs = (values.double() - normaliser[:, None]).float().tolist()
    return [TopK(tokens, found) for tokens, found in zip(ids.tolist(), logprobs, strict=True)]
