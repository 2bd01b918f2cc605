"""Progress of a running campaign: counts, throughput, and an honest estimate of the time left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import psutil

from backend.engines.base import Control
from backend.errors import Cancelled
from backend.progress import Progress, RunState
from backend.records import ProblemState
from backend.runs import RunFolder, utc_now
from backend.settings import CampaignSettings

PROGRESS_EVERY = 0.25
"""Seconds between two writings of the progress."""

SAMPLING = "rollouts"
"""Name of the phase in which rollouts are sampled; the others are named after their pass."""

OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class _Cost:
    """What one problem takes in one phase, seconds, as a mean over the problems so far."""

    seconds: float = 0.0
    problems: int = 0

    @property
    def each(self) -> float | None:
        return self.seconds / self.problems if self.problems else None


class Tracker:
    """The control of a campaign's engine calls: counts tokens, writes the progress, and stops when asked to."""

    def __init__(
        self, settings: CampaignSettings, folder: RunFolder, control: Control, on_progress: OnProgress | None
    ) -> None:
        self._folder, self._control, self._on_progress = folder, control, on_progress
        self._settings = settings
        self._passes = settings.passes
        self._clock = time.perf_counter()
        self._written = 0.0
        self._engine_seconds = 0.0
        self._phase_began: float | None = None
        self._phase_problems = 0
        self._phase_tokens = 0
        self._phases_left: Sequence[str] = ()
        self._costs: dict[str, _Cost] = {name: _Cost() for name in (SAMPLING, *self._passes)}
        now = utc_now()
        self._progress = Progress(
            campaign=settings.campaign,
            name=settings.name,
            state="running",
            phase="",
            total=settings.problems.count,
            limit=settings.problems.limit,
            done=0,
            screened_out=0,
            failed=0,
            fraction=0.0,
            tokens=0,
            tokens_per_second=None,
            seconds=0.0,
            seconds_left=None,
            started=now,
            updated=now,
            pid=os.getpid(),
            message=None,
        )

    @property
    def progress(self) -> Progress:
        return self._progress

    def tick(self, tokens: int) -> None:
        """Count a step's tokens. Raises `Cancelled` when somebody asked the run to stop."""
        self._progress = replace(self._progress, tokens=self._progress.tokens + tokens)
        self._control.tick(tokens)
        if time.perf_counter() - self._written >= PROGRESS_EVERY:
            if self._folder.cancel_requested():
                raise Cancelled(
                    "the campaign was stopped; what is stored stays, and running it again goes on from there"
                )
            self.write()

    def count(self, states: Sequence[ProblemState]) -> None:
        """Take over the states of the problems that are finished."""
        self._progress = replace(
            self._progress,
            done=states.count("done"),
            screened_out=states.count("screened_out"),
            failed=states.count("failed"),
        )
        self.write()

    def say(self, sentence: str) -> None:
        """Log a warning and show it with the progress."""
        self._folder.log("warning", message=sentence)
        self._progress = replace(self._progress, message=sentence)

    def begin(self, phase: str, problems: int, then: Sequence[str] = ()) -> None:
        """Enter a phase over so many problems, after which they still have the phases `then`; ends the one before."""
        self.rest()
        self._phase_began, self._phase_tokens = time.perf_counter(), self._progress.tokens
        self._phase_problems, self._phases_left = problems, then
        self._progress = replace(self._progress, phase=phase)
        self.write()

    def rest(self) -> None:
        """End the running phase, if any, and log what it took."""
        if self._phase_began is None:
            return
        seconds = time.perf_counter() - self._phase_began
        tokens = self._progress.tokens - self._phase_tokens
        self._phase_began = None
        self._engine_seconds += seconds
        cost = self._costs[self._progress.phase]
        cost.seconds += seconds
        cost.problems += self._phase_problems
        self._folder.log(
            "phase",
            phase=self._progress.phase,
            problems=self._phase_problems,
            seconds=round(seconds, 3),
            tokens=tokens,
            tokens_per_second=round(tokens / seconds, 1) if seconds else None,
            memory_mb=memory_mb(),
        )

    def end(self, state: RunState, message: str | None) -> None:
        """Write the last word."""
        self._progress = replace(self._progress, state=state, phase="", message=message or self._progress.message)
        if state == "done":
            self._progress = replace(self._progress, fraction=1.0, seconds_left=0.0)
        self.write()
        self._folder.log("end", state=state, message=message, seconds=round(self._progress.seconds, 3))

    def write(self) -> None:
        """Write the progress now."""
        self._written = time.perf_counter()
        now = self._progress
        inside = self._inside()
        left = self._seconds_left() if now.state == "running" else now.seconds_left
        self._progress = replace(
            now,
            seconds=self._written - self._clock,
            tokens_per_second=now.tokens / inside if now.tokens and inside else None,
            seconds_left=left,
            fraction=self._fraction(left) if now.state == "running" else now.fraction,
            updated=utc_now(),
        )
        self._folder.write_progress(self._progress)
        if self._on_progress is not None:
            self._on_progress(self._progress)

    def _inside(self) -> float:
        """Seconds spent in phases so far."""
        running = time.perf_counter() - self._phase_began if self._phase_began is not None else 0.0
        return self._engine_seconds + running

    def _seconds_left(self) -> float | None:
        """The current wave's phases, then what problems are still to be looked at and kept, at the mean cost so far."""
        look, keep = self._costs[SAMPLING].each, self._keep_cost()
        if look is None or keep is None:
            return None
        now, rate = self._progress, self._keep_rate()
        here, in_wave, keeping = 0.0, 0, 0.0
        if self._phase_began is not None:
            in_wave = self._phase_problems
            keeping = in_wave * (rate if now.phase == SAMPLING else 1.0)
            elapsed = time.perf_counter() - self._phase_began
            here = max((self._each(now.phase) or 0.0) * in_wave - elapsed, 0.0)
            here += sum((self._each(name) or 0.0) * keeping for name in self._phases_left)
        looked = now.done + now.screened_out + now.failed + in_wave
        to_look = min(max(now.total - now.done - keeping, 0.0) / rate, max(now.limit - looked, 0))
        # What goes on between engine calls takes its share of the time to come as well.
        overhead = (time.perf_counter() - self._clock) / self._inside()
        return (here + to_look * (look + rate * keep)) * overhead

    def _fraction(self, left: float | None) -> float:
        """Share of the work behind, in seconds at the mean cost; by problems kept while no cost is known."""
        now = self._progress
        look, keep = self._costs[SAMPLING].each, self._keep_cost()
        if left is None or look is None or keep is None:
            return min(now.done / now.total, 1.0)
        # Work of earlier runs counts too, at the cost seen in this one.
        stored = (now.done + now.screened_out + now.failed) * look + now.done * keep
        behind = max(time.perf_counter() - self._clock, stored)
        return behind / (behind + left) if behind + left > 0 else 0.0

    def _each(self, phase: str) -> float | None:
        """Mean seconds a problem in a phase; a pass that has not run yet is taken to cost what the others do."""
        known = self._costs[phase].each
        if known is not None or phase == SAMPLING:
            return known
        others = [cost.each for name, cost in self._costs.items() if name != SAMPLING and cost.each is not None]
        return sum(others) / len(others) if others else None

    def _keep_cost(self) -> float | None:
        """Seconds that all passes of a kept problem take."""
        costs = [self._each(name) for name in self._passes]
        return None if any(cost is None for cost in costs) else sum(cost for cost in costs if cost is not None)

    def _keep_rate(self) -> float:
        """Share of the problems looked at that are kept; the halves keep it off 0 when little is known."""
        now = self._progress
        if not self._settings.problems.screen:
            return 1.0
        return (now.done + 0.5) / (now.done + now.screened_out + now.failed + 1.0)


def memory_mb() -> int:
    """Resident memory of this process and its children, in MB."""
    process = psutil.Process()
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total // 2**20
