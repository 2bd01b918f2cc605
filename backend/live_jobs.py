"""The work that the transcript page asks for, as jobs: what each is called, and how it reports."""

from __future__ import annotations

from typing import Any

from backend import models
from backend.engines.wire import EngineSpec
from backend.jobs import Handle, Jobs
from backend.live import Place, engine_spec, spec_for
from backend.rebuilding import rebuilt_until
from backend.records import Measurement, Pass, Problem
from backend.settings import CampaignSettings
from backend.texts import Texts


def replay_key(place: Place, position: int) -> str:
    """What a replay is: whoever opens the token while one runs, with whatever settings, watches that one."""
    return f"replay|{place.handle}|{position}"


def measure_key(place: Place) -> str:
    """What measuring a rollout's pivots is."""
    return f"measure|{place.handle}"


def sample_key(settings: CampaignSettings, problem: Problem) -> str:
    """What sampling into a live campaign is."""
    return f"sample|{settings.campaign}|{problem.problem}"


def fetch_key(model: str) -> str:
    """What fetching a model is."""
    return f"fetch|{model}"


def submit_fetch(jobs: Jobs, model: str) -> int:
    """Bring a model to this disk."""

    def work(handle: Handle) -> str | None:
        return models.fetch(model, handle.doing).path

    return jobs.submit(fetch_key(model), f"Fetch {model}", work)


def submit_sample(jobs: Jobs, settings: CampaignSettings, problem: Problem) -> int:
    """Sample the settings' number of further rollouts of a problem; the job's result is the place of the first."""
    expected = settings.rollouts * settings.max_rollout_tokens

    def work(handle: Handle) -> Place:
        bench = jobs.bench(spec_for(settings.model, settings.dtype), handle)
        counted = _Counted(handle)
        counted.begin("sampling rollouts", expected)
        return Place(
            settings.campaign, problem.problem, min(bench.sample(settings, problem, settings.rollouts, counted))
        )

    return jobs.submit(sample_key(settings, problem), f"Sample rollouts of {problem.problem}", work)


def submit_replay(
    jobs: Jobs, place: Place, position: int, k: int, max_tokens: int, alternative: int | None = None
) -> int:
    """Replay one token three ways; the passes arrive in the job's `passes` one by one.

    `alternative` is the token to put in its place; None is the most probable other one.
    """
    expected = 2 * (k * max_tokens + 32)

    def work(handle: Handle) -> dict[str, Any]:
        bench = jobs.bench(_spec(jobs, place, handle), handle)
        counted = _Counted(handle)
        rollout = jobs.store.rollout(place.campaign, place.problem, place.rollout)
        counted.begin("bringing the rollout's state back", rebuilt_until(rollout, position))

        def on_pass(pass_: Pass, found: list[Measurement], texts: Texts) -> None:
            ids = {token for one in found for continuation in one.continuations for token in continuation.ids}
            handle.measured(pass_, (found[0], texts.known(ids)))

        return bench.replay(
            place,
            position,
            counted,
            k=k,
            max_continuation_tokens=max_tokens,
            alternative=alternative,
            on_pass=on_pass,
            on_start=lambda pass_: counted.begin(pass_, expected),
        )

    return jobs.submit(replay_key(place, position), f"Replay position {position}", work, about=alternative)


def submit_measure(jobs: Jobs, place: Place) -> int:
    """Measure the pivots of a rollout that the campaign's filter picks."""

    def work(handle: Handle) -> int:
        bench = jobs.bench(_spec(jobs, place, handle), handle)
        total = [0, 0]

        def on_found(done: int, pivots: int) -> None:
            total[:] = done, pivots
            handle.phase(f"{done} of {pivots} pivots measured", done / pivots if pivots else 1.0)

        def on_start(pass_: Pass) -> None:
            done, pivots = total
            handle.phase(f"{done} of {pivots} pivots measured, now {pass_}", done / pivots if pivots else None)

        return bench.measure(place, handle, on_found=on_found, on_start=on_start)

    return jobs.submit(measure_key(place), f"Measure the pivots of rollout {place.rollout} of {place.problem}", work)


def _spec(jobs: Jobs, place: Place, handle: Handle) -> EngineSpec:
    """What replays a campaign's rollouts; a model that ships is brought here by the first click that needs it."""
    return engine_spec(jobs.store.campaign(place.campaign), handle.doing)


class _Counted:
    """A control that turns tokens into the share of a phase; sequences may end early, so the share is a lower bound."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._phase, self._expected, self._tokens = "", 1, 0

    def begin(self, phase: str, expected: int) -> None:
        """Start the next phase, of that many tokens at most."""
        self._phase, self._expected, self._tokens = phase, max(expected, 1), 0
        self._handle.phase(phase, 0.0)

    def tick(self, tokens: int) -> None:
        self._handle.tick(tokens)
        self._tokens += tokens
        self._handle.phase(self._phase, min(self._tokens / self._expected, 1.0))
