"""The one owner of the store, the engine process and the jobs inside the dashboard.

Pages submit and look; a single thread works, one job at a time, since there is one model. A job that is waiting or
running is never submitted twice. Shards that any process finished are taken into the store by a second thread.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from backend.collecting import collect
from backend.engines.base import Control
from backend.engines.remote import RemoteEngine
from backend.engines.wire import EngineSpec
from backend.errors import Cancelled, PivotscopeError
from backend.live import Bench
from backend.store import Store

COLLECT_EVERY = 1.0
"""Seconds between two looks for finished shards."""
KEPT_JOBS = 200

State = Literal["queued", "running", "done", "failed", "cancelled"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """A snapshot of one piece of work."""

    id: int
    key: str
    """What the work is; equal keys are the same work."""
    title: str
    """As a page shows it."""
    state: State = "queued"
    phase: str = ""
    fraction: float | None = None
    """Share of the phase that is behind; None when unknown."""
    tokens: int = 0
    """Tokens computed so far."""
    passes: dict[str, Any] = field(default_factory=dict)
    """Measurements of a replay by pass, as they arrive."""
    result: Any = None
    error: str | None = None
    """One sentence."""
    seconds: float = 0.0
    """Wall time, so far while it runs."""
    about: Any = None
    """What whoever watches has to know of the work beside its key."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in {"done", "failed", "cancelled"}


class Handle(Control):
    """What the work itself sees of its job: how to report, and when to stop."""

    def __init__(self, jobs: Jobs, number: int) -> None:
        self._jobs, self._number = jobs, number

    def tick(self, tokens: int) -> None:
        """Count tokens; raises `Cancelled` when somebody asked for the job to stop."""
        self._jobs.advance(self._number, tokens)

    def phase(self, phase: str, fraction: float | None = None) -> None:
        """Say what is being done."""
        self._jobs.change(self._number, phase=phase, fraction=fraction)

    def doing(self, phase: str, fraction: float | None = None) -> None:
        """The same between engine calls; raises `Cancelled` when somebody asked for the job to stop."""
        self.tick(0)
        self.phase(phase, fraction)

    def measured(self, pass_: str, measurements: Any) -> None:
        """Hand over a pass's measurements."""
        self._jobs.add_pass(self._number, pass_, measurements)


Work = Callable[[Handle], Any]


class Jobs:
    """Runs work over one store and at most one engine process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._started: dict[int, float] = {}
        self._stopping: set[int] = set()
        self._queue: queue.SimpleQueue[tuple[int, Work] | None] = queue.SimpleQueue()
        self._bench: Bench | None = None
        self._loads = 0
        self._closed = threading.Event()
        self.collecting = threading.Lock()
        """Held while finished shards are taken in, and by whoever removes a campaign."""
        threading.Thread(target=self._work, daemon=True, name="jobs").start()
        threading.Thread(target=self._collect, daemon=True, name="collecting").start()

    # For pages

    def submit(self, key: str, title: str, work: Work, about: Any = None) -> int:
        """Queue work, or join the same work that is already queued or running; gives the job's id."""
        with self._lock:
            for job in self._jobs.values():
                if job.key == key and not job.over:
                    return job.id
            number = next(self._numbers)
            self._jobs[number] = Job(number, key, title, about=about)
            over = [job.id for job in self._jobs.values() if job.over]
            for old in over[: max(len(self._jobs) - KEPT_JOBS, 0)]:
                del self._jobs[old]
            self._queue.put((number, work))
            return number

    def job(self, number: int) -> Job | None:
        """A job as it is now."""
        with self._lock:
            job = self._jobs.get(number)
            if job is not None and job.state == "running":
                return replace(job, seconds=time.monotonic() - self._started[number], passes=dict(job.passes))
            return job

    def all(self) -> list[Job]:
        """Every remembered job, newest first."""
        with self._lock:
            return [job for number in sorted(self._jobs, reverse=True) if (job := self.job(number)) is not None]

    def find(self, key: str) -> Job | None:
        """The newest job of that work."""
        return next((job for job in self.all() if job.key == key), None)

    def cancel(self, number: int) -> None:
        """Ask a job to stop; a waiting one never starts."""
        with self._lock:
            self._stopping.add(number)
            if (job := self._jobs.get(number)) is not None and job.state == "queued":
                self._jobs[number] = replace(job, state="cancelled", error="cancelled before it started")

    def unload(self) -> int:
        """Free the loaded model's memory once the work in progress is over; gives the job's id."""

        def work(_handle: Handle) -> None:
            if (engine := self.engine()) is not None:
                self._bench = None
                engine.close()

        return self.submit("unload", "Unload the model", work)

    def engine(self) -> RemoteEngine | None:
        """The engine process, dead or alive; None before the first one."""
        bench = self._bench
        return bench.engine if bench is not None and isinstance(bench.engine, RemoteEngine) else None

    @property
    def loads(self) -> int:
        """How many times a model was loaded since the dashboard started."""
        return self._loads

    # For work, in the jobs' thread

    def bench(self, spec: EngineSpec, handle: Handle, python: str | None = None) -> Bench:
        """The engine that `spec` asks for, loading it if another or none is there; the former one's memory is freed."""
        current = self._bench
        if current is not None and isinstance(current.engine, RemoteEngine):
            if current.engine.spec == spec and current.engine.alive():
                return current
            self._bench = None
            current.engine.close()
        handle.phase(f"loading {spec.name}")
        engine = RemoteEngine(spec, python=python, control=handle)
        self._loads += 1
        self._bench = Bench(engine, self.store)
        return self._bench

    def advance(self, number: int, tokens: int) -> None:
        with self._lock:
            if number in self._stopping:
                raise Cancelled("cancelled; what was finished before is stored")
            job = self._jobs[number]
            self._jobs[number] = replace(job, tokens=job.tokens + tokens)

    def change(self, number: int, **fields: Any) -> None:
        with self._lock:
            self._jobs[number] = replace(self._jobs[number], **fields)

    def add_pass(self, number: int, pass_: str, measurements: Any) -> None:
        with self._lock:
            job = self._jobs[number]
            self._jobs[number] = replace(job, passes={**job.passes, pass_: measurements})

    def close(self) -> None:
        """Stop working and end the engine process."""
        self._closed.set()
        with self._lock:
            self._stopping.update(self._jobs)
        self._queue.put(None)
        if (engine := self.engine()) is not None:
            engine.close()
        with self.collecting:
            self.store.close()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            number, work = item
            with self._lock:
                if self._jobs[number].over:
                    continue
                self._started[number] = time.monotonic()
            self.change(number, state="running")
            self._run(number, work)

    def _run(self, number: int, work: Work) -> None:
        try:
            result = work(Handle(self, number))
        except Cancelled as error:
            ending: dict[str, Any] = {"state": "cancelled", "error": str(error)}
        except PivotscopeError as error:
            ending = {"state": "failed", "error": str(error)}
        except BaseException as error:
            _log.exception("job %s failed", number)
            ending = {"state": "failed", "error": f"the work broke off ({type(error).__name__}: {error})"}
        else:
            ending = {"state": "done", "result": result, "fraction": 1.0}
        self.change(number, seconds=time.monotonic() - self._started[number], **ending)

    def _collect(self) -> None:
        while not self._closed.wait(COLLECT_EVERY):
            # What stands in the way (a full disk, a removed store) is said by whatever page or job writes next.
            with suppress(PivotscopeError), self.collecting:
                collect(self.store)
