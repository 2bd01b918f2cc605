"""Work on demand over one loaded engine: sample rollouts, replay a picked token, measure a rollout's pivots.

The command line and the dashboard's jobs both come through here. Every result goes into the store beside what is
there, never over it: a replay's measurements carry a run id of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from backend import models
from backend.checks import as_documents, checks, readings_of
from backend.engines.base import Control, Engine, RolloutRequest, Sampling
from backend.engines.wire import EngineSpec
from backend.errors import UserError
from backend.ingest import Campaign
from backend.measure import Cut
from backend.pivots import own_alternative, pivot_at, pivots_of
from backend.problems import messages, plain_prompt
from backend.rebuilding import beginning, rebuilt_until
from backend.records import (
    PASSES,
    STANDARD_PASSES,
    Measurement,
    Pass,
    Pivot,
    Problem,
    ProblemRecord,
    Rollout,
)
from backend.replay import OnPass, ReplaySettings, graded_rollout, replay, rollout_seed
from backend.settings import CampaignSettings, make_settings
from backend.sizing import refuse_long_prompt
from backend.store import Store
from backend.texts import Texts

PIVOTS_AT_ONCE = 3
"""Pivots measured in one engine call on demand: thirty rows fill a step, and a cancelled job keeps what came before."""

Found = Callable[[int, int], None]
"""Told how many of how many pivots are measured and stored."""

OnReplayed = Callable[[Pass, list[Measurement], Texts], None]
"""Told each pass's measurements as they arrive, with the texts of their tokens."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rollout in the store."""

    campaign: str
    problem: str
    rollout: int

    @property
    def handle(self) -> str:
        """The name under which an engine keeps its state."""
        return f"{self.campaign}/{self.problem}/{self.rollout}"


@dataclass(slots=True)
class Bench:
    """One loaded engine beside the store, and how each state it holds came to be."""

    engine: Engine
    store: Store
    provenance: dict[str, str] = field(default_factory=dict)
    rebuilt: dict[str, int] = field(default_factory=dict)
    """How many generated tokens of each rebuilt state there are; the others are whole."""

    def sample(self, settings: CampaignSettings, problem: Problem, rollouts: int, control: Control) -> list[int]:
        """Sample that many further rollouts of a problem into the live campaign of `settings`; gives their indices."""
        campaign, info, texts = settings.campaign, self.engine.info(), Texts(self.engine)
        self.store.ensure_campaign(Campaign.of(settings, origin="live", state="live"))
        known = [row["rollout"] for row in self.store.rollouts(campaign, problem.problem)]
        first = max(known, default=-1) + 1
        prompt_ids = self.engine.prompt_ids(messages(problem.question), plain_prompt(problem.question))
        refuse_long_prompt(problem.problem, len(prompt_ids), settings, info)
        sampling = Sampling(settings.temperature, settings.top_p, settings.max_rollout_tokens)
        requests = [
            RolloutRequest(
                Place(campaign, problem.problem, i).handle,
                prompt_ids,
                rollout_seed(problem.problem, i, settings.seed),
                sampling,
            )
            for i in range(first, first + rollouts)
        ]
        traces = self.engine.rollouts(requests, control)
        texts.learn(token for trace in traces for token in trace.ids)
        sampled = []
        for i, (request, trace) in enumerate(zip(requests, traces, strict=True), start=first):
            self.provenance[request.handle] = "live"
            sampled.append(graded_rollout(i, request.seed, trace, texts, problem.gold))
        self._store(campaign, problem.question, problem, sampled, texts)
        return [rollout.rollout for rollout in sampled]

    def replay(
        self,
        place: Place,
        position: int,
        control: Control,
        *,
        k: int | None = None,
        max_continuation_tokens: int | None = None,
        passes: Sequence[Pass] = STANDARD_PASSES,
        alternative: int | None = None,
        on_pass: OnReplayed | None = None,
        on_start: Callable[[Pass], None] | None = None,
    ) -> dict[str, Any]:
        """Replay any generated token in every pass and store it as a run of its own; gives the `replay` document.

        `k` and the token limit default to the campaign's, or to 4 and 400 where it does not say, `alternative` to the
        most probable token that is not the actual one.
        """
        base = replay_settings(self.store.campaign(place.campaign)["settings"])
        sampling = replace(base.sampling, max_tokens=max_continuation_tokens or base.sampling.max_tokens)
        run = f"replay-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        settings = replace(base, k=k or base.k, sampling=sampling, passes=_in_order(passes), run=run)
        if sampling.temperature == 0 and settings.k != 1:
            raise UserError(f"k is {settings.k}, but greedy continuations are all the same; use 1")
        info = self.engine.info()
        record = self.store.record(place.campaign, place.problem)
        rollout = self.store.rollout(place.campaign, place.problem, place.rollout)
        if alternative is not None and not any(self.engine.token_bytes([alternative])):
            raise UserError(f"token {alternative} stands for no text of {info.model}; give an id of its vocabulary")
        picked = pivot_at(rollout, position, chosen=alternative, special_ids=info.special_ids, eos_ids=info.eos_ids)
        pivot = replace(picked, alternative=own_alternative(rollout, position))
        other = None if picked.alternative == pivot.alternative else picked.alternative
        self.hold(place, rollout, position, control)
        cut, texts = self._cut(place, record.gold, rollout, pivot, other), Texts(self.engine)
        hand_over = None if on_pass is None else lambda pass_, found: on_pass(pass_, found, texts)
        measured = replay(self.engine, [cut], settings, control, hand_over, on_start, texts)
        measurements = [found[0] for found in measured.values()]
        kept = replace(rollout, pivots=[replace(pivot, measurements=measurements)])
        self._store(place.campaign, record.question, record, [kept], texts)
        return _document(place, picked, settings.k, measurements, info.batch_invariant)

    def measure(
        self,
        place: Place,
        control: Control,
        *,
        on_pass: OnPass | None = None,
        on_start: Callable[[Pass], None] | None = None,
        on_found: Found = lambda _done, _total: None,
    ) -> int:
        """Measure those of the filter's pivots in a rollout that nobody measured yet; gives their number."""
        settings = make_settings(self.store.campaign(place.campaign)["settings"], f"campaign {place.campaign}")
        record = self.store.record(place.campaign, place.problem)
        rollout = self.store.rollout(place.campaign, place.problem, place.rollout)
        missing = self.missing_pivots(settings, rollout)
        on_found(0, len(missing))
        if missing:
            self.hold(place, rollout, max(pivot.position for pivot in missing), control)
        for start in range(0, len(missing), PIVOTS_AT_ONCE):
            part = missing[start : start + PIVOTS_AT_ONCE]
            cuts = [self._cut(place, record.gold, rollout, pivot) for pivot in part]
            measured = replay(self.engine, cuts, ReplaySettings.of(settings), control, on_pass, on_start)
            pivots = [
                replace(pivot, measurements=[found[i] for found in measured.values()]) for i, pivot in enumerate(part)
            ]
            kept = replace(rollout, pivots=pivots)
            self._store(place.campaign, record.question, record, [kept], Texts(self.engine))
            on_found(start + len(part), len(missing))
        return len(missing)

    def missing_pivots(self, settings: CampaignSettings, rollout: Rollout) -> list[Pivot]:
        """The filter's pivots of a rollout that hold no measurement of the campaign's own run."""
        info = self.engine.info()
        measured = {pivot.position for pivot in rollout.pivots if any(m.run == "campaign" for m in pivot.measurements)}
        chosen = pivots_of(
            rollout,
            margin_below=settings.margin_below,
            max_pivots=settings.max_pivots_per_rollout,
            boundary_slack=settings.boundary_slack,
            special_ids=info.special_ids,
            eos_ids=info.eos_ids,
        )
        return [pivot for pivot in chosen if pivot.position not in measured]

    def hold(self, place: Place, rollout: Rollout, position: int, control: Control) -> str:
        """Make the engine hold a rollout's state as far as `position`, by decoding recorded ids; gives the provenance.

        The ids that only a later cut needs are left to it, so that an early token of a long rollout is replayed soon.
        """
        handle = place.handle
        (held,) = self.engine.holds([handle])
        if held and self.rebuilt.get(handle, len(rollout.ids)) > position - len(rollout.prompt_ids):
            return self.provenance.setdefault(handle, "live")
        self.engine.release([handle])
        until = rebuilt_until(rollout, position)
        (verdict,) = self.engine.rebuild([beginning(handle, rollout, until)], control)
        self.rebuilt[handle] = until
        self.provenance[handle] = verdict.provenance or "rebuilt"
        return self.provenance[handle]

    def _cut(
        self, place: Place, gold: str | None, rollout: Rollout, pivot: Pivot, alternative: int | None = None
    ) -> Cut:
        return Cut(place.problem, gold, place.handle, rollout, pivot, self.provenance[place.handle], alternative)

    def _store(
        self,
        campaign: str,
        question: str | None,
        problem: Problem | ProblemRecord,
        rollouts: list[Rollout],
        texts: Texts,
    ) -> None:
        info = self.engine.info()
        self.store.ingest_record(
            campaign,
            ProblemRecord(
                problem.problem,
                question or "",
                problem.gold,
                problem.source,
                "done",
                None,
                None,
                info.digest(),
                info.document(),
                rollouts,
                texts.tokens(rollouts),
            ),
        )


def engine_spec(row: dict[str, Any], fetching: models.Progress | None = None) -> EngineSpec:
    """What to load to replay rollouts of a campaign: its model, on its own engine where that is a local one.

    With `fetching`, which is told how far it is, a model that ships is brought to this disk where it is not there yet.
    Raises `UserError` when the model is unknown or not on this disk, `WorkFailed` when it could not be fetched.
    """
    name = row["model"]
    if row["engine"] == "scripted":
        settings = row["settings"]
        return EngineSpec("scripted", name, name, row["dtype"], options=settings.get("engine_options", {}))
    if name is None:
        raise UserError(f"campaign {row['name']} does not say which model it was recorded with; it cannot be replayed")
    if fetching is not None and models.ships(name):
        models.fetch(name, fetching)
    return spec_for(name, row["dtype"] or "bfloat16")


def spec_for(model: str, dtype: str) -> EngineSpec:
    """The embedded engine on a model of this disk. Raises `UserError` when the model is not there."""
    located = models.locate(model)
    if located is None or located.path is None:
        raise UserError(f"model {model} is not on this disk; fetch it with `python -m backend models fetch {model}`")
    return EngineSpec("transformers", model, located.path, dtype, located.sha256)


def replay_settings(settings: dict[str, Any]) -> ReplaySettings:
    """How a campaign measures; where an imported one does not say, the method's defaults."""
    known = {key: value for key, value in settings.items() if key in CampaignSettings.model_fields}
    full = {"name": "import", "model": "import", "engine": "transformers", **known}
    full.pop("problems", None)
    return ReplaySettings.of(make_settings(full, "the campaign's settings"))


def _in_order(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    if "exact" not in passes:
        raise UserError("passes: `exact` is the estimate and cannot be left out")
    return tuple(pass_ for pass_ in PASSES if pass_ in passes)


def _document(
    place: Place, pivot: Pivot, k: int, measurements: Sequence[Measurement], batch_invariant: bool | None
) -> dict[str, Any]:
    return {
        "campaign": place.campaign,
        "problem": place.problem,
        "rollout": place.rollout,
        "position": pivot.position,
        "actual": pivot.actual,
        "alternative": pivot.alternative,
        "k": k,
        "run": measurements[0].run,
        "passes": dict(_pass_documents(measurements)),
        "checks": as_documents(checks(readings_of(measurements, batch_invariant))),
    }


def _pass_documents(measurements: Sequence[Measurement]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in measurements:
        yield (
            one.pass_,
            {
                "n_actual": one.n_actual,
                "n_alternative": one.n_alternative,
                "credit": None if one.numerator is None else one.numerator / one.k,
                "provenance": one.provenance,
                "seconds": one.seconds,
                "output_sha256": one.output_sha256,
                "truncated_actual": one.truncated_actual,
                "truncated_alternative": one.truncated_alternative,
                "probe_delta": one.probe_delta,
            },
        )
