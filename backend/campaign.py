"""A campaign over problems: rollouts, the screen, pivots and passes, one shard a finished problem.

Problems are worked on in waves. Neither waves nor kills decide what a campaign contains: the kept problems are the
first `count`, in the order of the set, that pass the screen, and nothing behind the last of them is recorded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile
from pathlib import Path

from backend.engines.base import Control, Engine, RolloutRequest, Sampling
from backend.engines.halving import halving
from backend.errors import CallFailed, Cancelled, OutOfMemory, PivotscopeError, UserError, WorkFailed
from backend.measure import Cut
from backend.pivots import pivots_of
from backend.problems import messages, plain_prompt
from backend.records import Pass, Pivot, Problem, ProblemRecord, ProblemState, Rollout
from backend.replay import ReplaySettings, graded_rollout, replay, rollout_seed
from backend.runs import RunFolder
from backend.settings import CampaignSettings
from backend.sizing import MOST_IN_WAVE, cache_size, refuse_long_limits, refuse_long_prompt, wave_size
from backend.texts import Texts
from backend.tracking import SAMPLING, OnProgress, Tracker


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a campaign contains after its run."""

    done: int
    screened_out: int
    failed: int
    short: bool
    """Whether the scan limit was reached before enough problems passed the screen."""
    seconds: float
    """Wall time of this run."""
    tokens: int
    """Tokens computed in this run."""


def run_campaign(
    settings: CampaignSettings,
    problems: Sequence[Problem],
    engine: Engine,
    folder: RunFolder,
    control: Control,
    on_progress: OnProgress | None = None,
    wave: int | None = None,
) -> Outcome:
    """Run a campaign, or what is missing of it: problems that failed are tried again while too few are kept.

    `problems` are those the screen may look at, in the set's order. `wave` is how many are worked on at once; None lets
    the engine's cache decide. Raises `RunHeldError` while another process runs it, `UserError` for other settings
    under the same name, `Cancelled` when stopped, and `WorkFailed` when it cannot go on. What is stored stays.
    """
    with folder.claim(settings):
        tracker = Tracker(settings, folder, control, on_progress)
        folder.log("start", settings=settings.model_dump(mode="json"), engine=engine.info().document())
        try:
            _Campaign(settings, problems, engine, folder, tracker, wave).run()
        except Cancelled as error:
            tracker.end("cancelled", str(error))
            raise
        except PivotscopeError as error:
            tracker.end("stopped", str(error))
            raise
        except BaseException as error:
            tracker.end("stopped", f"The run broke off ({type(error).__name__}: {error}).")
            raise
        progress = tracker.progress
        short = progress.done < settings.problems.count and settings.problems.screen
        tracker.end("done", f"Only {progress.done} of {progress.total} problems passed the screen." if short else None)
    progress = tracker.progress
    return Outcome(progress.done, progress.screened_out, progress.failed, short, progress.seconds, progress.tokens)


@dataclass(slots=True)
class _Work:
    """One problem of a wave."""

    problem: Problem
    rollouts: list[Rollout] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mixed(self) -> bool:
        """Neither all right nor all wrong."""
        return len({rollout.correct for rollout in self.rollouts}) > 1


class _Campaign:
    def __init__(
        self,
        settings: CampaignSettings,
        problems: Sequence[Problem],
        engine: Engine,
        folder: RunFolder,
        tracker: Tracker,
        wave: int | None,
    ) -> None:
        self._settings, self._folder, self._tracker = settings, folder, tracker
        self._engine = halving(engine, tracker.say)
        self._info = engine.info()
        self._problems = {problem.problem: problem for problem in problems[: settings.problems.limit]}
        self._replay = ReplaySettings.of(settings)
        self._states: dict[str, ProblemState] = {}
        self._texts = Texts(engine)
        self._writes: list[Future[Path]] = []
        refuse_long_limits(settings, self._info)
        self._held = wave or cache_size(engine, settings, self._longest_prompt())

    def run(self) -> None:
        stored = self._folder.finished(self._problems)
        # What failed is tried again, in its place, unless others have taken it.
        full = list(stored.values()).count("done") >= self._settings.problems.count
        failed = {} if full else {name: state for name, state in stored.items() if state == "failed"}
        self._states = {name: state for name, state in stored.items() if name not in failed}
        self._tracker.count(list(self._states.values()))
        with ThreadPoolExecutor(1, thread_name_prefix="shards") as self._writer:
            while wave := self._next_wave():
                self._run_wave(wave)
                self._collect(wait=False)
            self._collect(wait=True)
        self._states = failed | self._states
        self._tracker.count(list(self._states.values()))

    def _next_wave(self) -> list[Problem]:
        """The next problems without a shard, none behind the last that can be needed."""
        finished = list(self._states.values()) if self._settings.problems.screen else []
        kept = finished.count("done")
        size = wave_size(self._held, self._settings.problems.count - kept, kept, len(finished))
        missing = (problem for problem in self._problems.values() if problem.problem not in self._states)
        return list(takewhile(self._needed, islice(missing, size)))

    def _needed(self, problem: Problem, kept_beside: int = 0) -> bool:
        """Whether fewer than `count` problems before this one are kept, `kept_beside` not yet stored among them."""
        before = takewhile(lambda name: name != problem.problem, self._problems)
        kept = sum(self._states.get(name) == "done" for name in before)
        return kept + kept_beside < self._settings.problems.count

    def _run_wave(self, wave: Sequence[Problem]) -> None:
        try:
            self._attempt(wave)
        except (OutOfMemory, CallFailed) as error:
            self._isolate(wave, error)
        except (Cancelled, WorkFailed):
            raise
        except Exception as error:
            self._isolate(wave, error)
        finally:
            self._tracker.rest()
            self._engine.release([handle for problem in wave for handle in self._handles(problem)])

    def _isolate(self, wave: Sequence[Problem], error: Exception) -> None:
        """Find the problem that fails by running each alone; one that fails alone is recorded as failed."""
        sentence = str(error) if isinstance(error, PivotscopeError) else f"{type(error).__name__}: {error}"
        if len(wave) == 1:
            self._tracker.say(f"Problem {wave[0].problem} failed: {sentence}")
            self._store(_Work(wave[0]), "failed", sentence)
            return
        self._tracker.say(f"A wave of {len(wave)} problems failed ({sentence}); they run one by one.")
        for problem in wave:
            if problem.problem not in self._states and self._needed(problem):
                self._run_wave([problem])

    def _attempt(self, wave: Sequence[Problem]) -> None:
        kept: list[_Work] = []
        for work in self._sample(wave):
            if not self._needed(work.problem, len(kept)):
                break
            if not self._settings.problems.screen or work.mixed:
                kept.append(work)
                continue
            self._engine.release(self._handles(work.problem))
            self._store(work, "screened_out")
        self._measure(kept)
        for work in kept:
            self._store(work, "done")

    def _sample(self, wave: Sequence[Problem]) -> list[_Work]:
        """The wave's rollouts, graded."""
        settings, requests = self._settings, []
        sampling = Sampling(settings.temperature, settings.top_p, settings.max_rollout_tokens)
        for problem in wave:
            prompt_ids = self._prompt_ids(problem)
            for rollout, handle in enumerate(self._handles(problem)):
                seed = rollout_seed(problem.problem, rollout, settings.seed)
                requests.append(RolloutRequest(handle, prompt_ids, seed, sampling))
        self._tracker.begin(SAMPLING, len(wave), settings.passes)
        clock = time.perf_counter()
        traces = self._engine.rollouts(requests, self._tracker)
        seconds = (time.perf_counter() - clock) / len(wave)
        self._tracker.rest()
        self._texts.learn(chain.from_iterable(trace.ids for trace in traces))
        work = []
        for index, problem in enumerate(wave):
            span = slice(index * settings.rollouts, (index + 1) * settings.rollouts)
            rollouts = [
                graded_rollout(rollout, request.seed, trace, self._texts, problem.gold)
                for rollout, (request, trace) in enumerate(zip(requests[span], traces[span], strict=True))
            ]
            work.append(_Work(problem, rollouts, seconds))
        return work

    def _measure(self, kept: Sequence[_Work]) -> None:
        """Give the rollouts of the kept problems their pivots with all passes."""
        cuts = [cut for work in kept for cut in self._cuts(work)]
        if not cuts:
            return
        passes = self._replay.ordered_passes()

        def begin(pass_: Pass) -> None:
            self._tracker.begin(pass_, len(kept), passes[passes.index(pass_) + 1 :])

        clock = time.perf_counter()
        measured = replay(self._engine, cuts, self._replay, self._tracker, on_start=begin)
        self._tracker.rest()
        pivots: dict[tuple[str, int], list[Pivot]] = defaultdict(list)
        for cut, *measurements in zip(cuts, *measured.values(), strict=True):
            pivots[cut.problem, cut.rollout.rollout].append(replace(cut.pivot, measurements=measurements))
        for work in kept:
            work.rollouts = [
                replace(rollout, pivots=pivots[work.problem.problem, rollout.rollout]) for rollout in work.rollouts
            ]
            work.seconds += (time.perf_counter() - clock) / len(kept)

    def _cuts(self, work: _Work) -> Iterator[Cut]:
        problem, settings = work.problem, self._settings
        for rollout, handle in zip(work.rollouts, self._handles(problem), strict=True):
            for pivot in pivots_of(
                rollout,
                margin_below=settings.margin_below,
                max_pivots=settings.max_pivots_per_rollout,
                boundary_slack=settings.boundary_slack,
                special_ids=self._info.special_ids,
                eos_ids=self._info.eos_ids,
            ):
                yield Cut(problem.problem, problem.gold, handle, rollout, pivot, "live")

    def _store(self, work: _Work, state: ProblemState, error: str | None = None) -> None:
        """Hand a finished problem to the thread that writes shards, so that the engine does not wait for the disk."""
        info = self._engine.info()
        record = ProblemRecord(
            work.problem.problem,
            work.problem.question,
            work.problem.gold,
            work.problem.source,
            state,
            error,
            work.seconds,
            info.digest(),
            info.document(),
            work.rollouts,
            self._texts.tokens(work.rollouts),
        )
        self._writes.append(self._writer.submit(self._folder.write, record))
        self._states[record.problem] = state
        self._tracker.count(list(self._states.values()))

    def _collect(self, *, wait: bool) -> None:
        """Raise what went wrong in writing shards."""
        ready = [write for write in self._writes if wait or write.done()]
        self._writes = [write for write in self._writes if write not in ready]
        for write in ready:
            try:
                write.result()
            except UserError as error:
                # A folder that became unwritable is no mistake in the campaign, and no problem's own failure.
                raise WorkFailed(str(error)) from None

    def _handles(self, problem: Problem) -> list[str]:
        return [f"{self._settings.campaign}/{problem.problem}/{rollout}" for rollout in range(self._settings.rollouts)]

    def _prompt_ids(self, problem: Problem) -> list[int]:
        """Token ids of a problem's prompt. Raises `UserError` for a problem that this campaign cannot work on."""
        if self._settings.problems.screen and problem.gold is None:
            raise UserError(f"problem {problem.problem} has no gold answer, so the screen cannot judge its rollouts")
        ids = self._engine.prompt_ids(messages(problem.question), plain_prompt(problem.question))
        refuse_long_prompt(problem.problem, len(ids), self._settings, self._info)
        return ids

    def _longest_prompt(self) -> int:
        """Tokens of the longest prompt among the first problems."""
        first = list(self._problems.values())[:MOST_IN_WAVE]
        texts = ((messages(problem.question), plain_prompt(problem.question)) for problem in first)
        return max((len(self._engine.prompt_ids(*text)) for text in texts), default=0)
