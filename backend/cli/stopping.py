"""Ctrl-C and SIGTERM during long work: once to stop cleanly after the running step, twice to leave at once."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self

from backend.cli.progress import say
from backend.errors import Cancelled


class Stoppable:
    """A control of engine calls that turns the first signal into `Cancelled`, and the second into its default."""

    def __init__(self) -> None:
        self._signal: str | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def tick(self, tokens: int) -> None:
        if self._signal is not None:
            raise Cancelled(
                f"the campaign was stopped by {self._signal}; the finished problems are kept, and running the same "
                "file again goes on from there"
            )

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self._signal = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        signal.signal(number, self._former[number])
        say("Stopping after the running step …")
