"""An engine that answers running out of memory by asking for less at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from backend.engines.base import Batch, ContinuationRequest, Control, Engine, Point, RolloutRequest, Verification
from backend.errors import OutOfMemory
from backend.records import Source, Trace

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def halving(engine: Engine, said: Callable[[str], None]) -> Engine:
    """The engine, with its calls in halves (and halves of these) from the first `OutOfMemory` on.

    What the limit came to is kept for the calls after, so that all passes run with the same batches. `said` is told
    each halving in a sentence. A call of a single request that still fails raises `OutOfMemory`.
    """
    return cast(Engine, _Halving(engine, said))


class _Halving:
    def __init__(self, engine: Engine, said: Callable[[str], None]) -> None:
        self._engine, self._said = engine, said
        self._limit: int | None = None

    def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
        def sample(part: Sequence[RolloutRequest]) -> list[Trace]:
            try:
                return self._engine.rollouts(part, control)
            except OutOfMemory:
                self._engine.release([request.handle for request in part])
                raise

        return [trace for traces in self._parts(requests, sample) for trace in traces]

    def continuations(
        self, requests: Sequence[ContinuationRequest], source: Source, control: Control, *, serial: bool = False
    ) -> Batch:
        """The preemptions of the parts are added up."""
        batches = self._parts(requests, lambda part: self._engine.continuations(part, source, control, serial=serial))
        counts = [batch.preemptions for batch in batches]
        known = [count for count in counts if count is not None]
        return Batch(
            [continuation for batch in batches for continuation in batch.continuations],
            sum(known) if len(known) == len(counts) else None,
        )

    def verify(self, points: Sequence[Point], control: Control) -> list[Verification]:
        return [one for found in self._parts(points, lambda part: self._engine.verify(part, control)) for one in found]

    def __getattr__(self, name: str) -> Any:
        # The rest of the contract needs no splitting.
        return getattr(self._engine, name)

    def _parts(self, items: Sequence[Item], call: Callable[[Sequence[Item]], Answer]) -> list[Answer]:
        answers: list[Answer] = []
        start = 0
        while start < len(items):
            part = items[start : start + (self._limit or len(items))]
            try:
                answers.append(call(part))
            except OutOfMemory:
                if len(part) == 1:
                    raise
                self._limit = len(part) // 2
                self._said(f"Out of memory with {len(part)} requests at once; going on with {self._limit}.")
            else:
                start += len(part)
        return answers
