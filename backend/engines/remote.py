"""An engine in a process of its own, seen from the host as any other engine.

The host stays free of torch, a killed engine is an error and not the host's end, and the engine may live in another
interpreter's world. The child is an ordinary one with pipes: multiprocessing's spawn would run the host's script again.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from backend.engines import vllm_options
from backend.engines.base import (
    Batch,
    ContinuationRequest,
    Control,
    EngineInfo,
    Point,
    Quiet,
    Rebuilt,
    RolloutRequest,
    Verification,
)
from backend.engines.wire import RESULTS, EngineSpec, decode, encode, parse, plain, raised
from backend.errors import Cancelled, UserError, WorkFailed
from backend.records import Source, Trace

ROOT = Path(__file__).resolve().parents[2]
POLL = 0.2
"""Seconds between two looks at the control while the engine is silent."""
LEAVE = 5.0
"""Seconds a worker gets to end after its stdin closed."""


class RemoteEngine:
    """`backend.engines.base.Engine` over the pipe to `backend.worker`. One call at a time; calls from threads wait."""

    def __init__(self, spec: EngineSpec, *, python: str | None = None, control: Control | None = None) -> None:
        """Start a process and load `spec`. Raises `UserError` or `WorkFailed` when that does not work."""
        self.spec = spec
        self._lock = threading.RLock()
        self._number = 0
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        interpreter = python or os.environ.get("PIVOTSCOPE_WORKER_PYTHON") or sys.executable
        try:
            self._process = subprocess.Popen(
                [interpreter, "-m", "backend.worker"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_environment(spec),
            )
        except OSError as error:
            raise UserError(
                f"worker_python {interpreter!r} cannot be started ({error.strerror}); give a Python"
            ) from None
        threading.Thread(target=self._read, daemon=True, name=f"worker-{self.pid}").start()
        try:
            self._info = cast(EngineInfo, self._call("load", plain(spec), control or Quiet()))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the worker still runs."""
        return self._process.poll() is None

    def info(self) -> EngineInfo:
        return self._info

    def capacity(self) -> int | None:
        """Tokens that the engine's cache holds; None where there is no such limit."""
        return cast("int | None", self._call("capacity", None, Quiet()))

    def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
        return cast(list[Trace], self._call("rollouts", plain(requests), control))

    def continuations(
        self, requests: Sequence[ContinuationRequest], source: Source, control: Control, *, serial: bool = False
    ) -> Batch:
        args = {"requests": plain(requests), "source": source, "serial": serial}
        return cast(Batch, self._call("continuations", args, control))

    def verify(self, points: Sequence[Point], control: Control) -> list[Verification]:
        return cast(list[Verification], self._call("verify", plain(points), control))

    def rebuild(self, traces: Sequence[Trace], control: Control) -> list[Rebuilt]:
        return cast(list[Rebuilt], self._call("rebuild", plain(traces), control))

    def holds(self, handles: Sequence[str]) -> list[bool]:
        return cast(list[bool], self._call("holds", list(handles), Quiet()))

    def release(self, handles: Sequence[str]) -> None:
        if self.alive():
            self._call("release", list(handles), Quiet())

    def prompt_ids(self, messages: Sequence[dict[str, str]], plain: str) -> list[int]:
        return cast(list[int], self._call("prompt_ids", {"messages": list(messages), "plain": plain}, Quiet()))

    def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        return [bytes.fromhex(piece) for piece in self._call("token_bytes", list(ids), Quiet())]

    def close(self) -> None:
        """End the process and so free its memory."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(OSError):  # it may have died with something still in the pipe
                self._process.stdin.close()
        try:
            self._process.wait(LEAVE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, op: str, args: Any, control: Control) -> Any:
        with self._lock:
            self._number += 1
            number = self._number
            self._send({"id": number, "op": op, "args": args})
            return self._wait(number, op, control)

    def _wait(self, number: int, op: str, control: Control) -> Any:
        stopped: Cancelled | None = None
        while True:
            try:
                message = self._answers.get(timeout=POLL)
            except queue.Empty:
                message = {"id": number, "tick": 0}
            if message is None:
                self._answers.put(None)  # for whoever asks after this
                raise WorkFailed(self._epitaph())
            if message.get("id") != number:
                continue
            if "tick" in message:
                stopped = stopped or self._tick(number, int(message["tick"]), control)
            elif stopped is not None:
                raise stopped
            elif "error" in message:
                raise raised(message)
            else:
                return parse(RESULTS[op], message["result"]) if op in RESULTS else None

    def _tick(self, number: int, tokens: int, control: Control) -> Cancelled | None:
        try:
            control.tick(tokens)
        except Cancelled as error:
            self._send({"cancel": number})
            return error
        return None

    def _send(self, message: dict[str, Any]) -> None:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise WorkFailed(self._epitaph()) from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(decode(line))
        self._answers.put(None)

    def _epitaph(self) -> str:
        try:
            code = self._process.wait(LEAVE)
        except subprocess.TimeoutExpired:
            return f"the engine process {self.pid} no longer answers; start the work again"
        how = f"by signal {-code}" if code < 0 else f"with exit status {code}"
        last = self._last_words()
        said = f" saying: {last}" if last else ""
        return f"the engine process {self.pid} ended {how}{said}; what was stored stays, start the work again"

    def _last_words(self) -> str:
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - 4000, 0))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""


def _environment(spec: EngineSpec) -> dict[str, str]:
    """The worker's environment: what must be set before its libraries are imported; the reader's own settings win."""
    ours = {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        # Threads that spin at a barrier starve each other as soon as anything else wants a core.
        "OMP_WAIT_POLICY": "passive",
        "MKL_CBWR": "AUTO,STRICT",  # see `precision.reproducible`
    }
    if spec.engine == "vllm":
        device = "cuda" if Path("/dev/nvidiactl").exists() else "cpu"
        ours |= vllm_options.environment(device, batch_invariant=spec.batch_invariant)
    return {**ours, **os.environ, "PYTHONUNBUFFERED": "1"}
