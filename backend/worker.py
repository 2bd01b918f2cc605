"""The engine process: `python -m backend.worker`, requests on stdin, answers on stdout.

It holds one model and serves one call at a time. A second thread reads stdin, so that a cancellation reaches a running
call; when stdin ends the host is gone, and so is this process.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

from backend.engines.base import Engine
from backend.engines.build import build
from backend.engines.wire import ARGUMENTS, EngineSpec, decode, encode, failure, parse, plain
from backend.errors import Cancelled, UserError

TICK_EVERY = 0.1
"""Seconds between two reports of tokens."""


class _Channel:
    """The process's answers; whatever else prints goes to stderr."""

    def __init__(self) -> None:
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(encode(message))
            self._out.flush()


class _Call:
    """The control of one running call."""

    def __init__(self, number: int, channel: _Channel, cancelled: set[int]) -> None:
        self._number, self._channel, self._cancelled = number, channel, cancelled
        self._tokens, self._sent = 0, time.monotonic()

    def tick(self, tokens: int) -> None:
        if self._number in self._cancelled:
            raise Cancelled("the work was cancelled")
        self._tokens += tokens
        if time.monotonic() - self._sent > TICK_EVERY:
            self.flush()

    def flush(self) -> None:
        """Report the tokens since the last report."""
        self._channel.send({"id": self._number, "tick": self._tokens})
        self._tokens, self._sent = 0, time.monotonic()


class Worker:
    """Serves the engine contract."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._engine: Engine | None = None
        self._cancelled: set[int] = set()
        self._requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def serve(self, incoming: BinaryIO) -> None:
        """Answer requests for ever; the reading thread ends the process."""
        threading.Thread(target=self._read, args=(incoming,), daemon=True).start()
        while True:
            request = self._requests.get()
            number = request["id"]
            try:
                self._channel.send({"id": number, "result": self._answer(number, request["op"], request.get("args"))})
            except BaseException as error:
                self._channel.send({"id": number, **failure(error)})

    def _read(self, incoming: BinaryIO) -> None:
        for line in incoming:
            message = decode(line)
            if "cancel" in message:
                self._cancelled.add(message["cancel"])
            else:
                self._requests.put(message)
        os._exit(0)  # the main thread may be deep inside a step

    def _answer(self, number: int, op: str, args: Any) -> Any:
        if op == "load":
            return self._load(parse(EngineSpec, args))
        if self._engine is None:
            raise UserError("no model is loaded; load one first")
        engine, call = self._engine, _Call(number, self._channel, self._cancelled)
        if op in {"rollouts", "verify", "rebuild"}:
            found = getattr(engine, op)(parse(ARGUMENTS[op], args), call)
        elif op == "continuations":
            requests = parse(ARGUMENTS[op], args["requests"])
            found = engine.continuations(requests, args["source"], call, serial=args["serial"])
        elif op in {"holds", "release"}:
            return getattr(engine, op)(parse(ARGUMENTS[op], args))
        elif op == "prompt_ids":
            return engine.prompt_ids(args["messages"], args["plain"])
        elif op == "token_bytes":
            return [piece.hex() for piece in engine.token_bytes(args)]
        elif op == "capacity":
            capacity = getattr(engine, "capacity", None)
            return capacity() if capacity is not None else None
        else:
            raise UserError(f"operation {op!r} is unknown")
        call.flush()
        return plain(found)

    def _load(self, spec: EngineSpec) -> Any:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._engine = build(spec)
        return plain(self._engine.info())


def main() -> None:
    # Ctrl-C in a terminal reaches the whole process group; what it means is the host's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming = sys.stdin.buffer
    Worker(_Channel()).serve(incoming)


if __name__ == "__main__":
    main()
