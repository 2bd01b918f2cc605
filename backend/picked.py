"""A rollout that a page shows, with everything that drawing and cutting it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from backend.errors import UserError
from backend.live import Place
from backend.pivots import choices_at, own_alternative, pivot_at, pivots_of
from backend.records import Pivot, Rollout
from backend.store import Store
from backend.transcript import TranscriptView
from backend.transcript_view import Run, pivot_at_position, rollout_view, runs_of, token_ids_of

ORIGINS = {"run": "campaign", "live": "sampled here", "import": "imported", "bundled": "bundled"}


@dataclass(frozen=True)
class Picked:
    """The rollout on the page."""

    place: Place
    question: str | None
    gold: str | None
    rollout: Rollout
    texts: Mapping[int, bytes]
    row: Mapping[str, Any]
    """The campaign's row of the store."""
    engines: Mapping[str, Mapping[str, Any]]
    """The facts of each engine that worked on the campaign, by digest: its own, and those of replays."""

    @cached_property
    def special(self) -> frozenset[int]:
        return frozenset(token for facts in self.engines.values() for token in facts.get("special_ids") or ())

    @cached_property
    def eos(self) -> frozenset[int]:
        return frozenset(token for facts in self.engines.values() for token in facts.get("eos_ids") or ())

    @property
    def origin(self) -> str:
        return f"{self.row['model'] or 'unknown model'}, {ORIGINS.get(self.row['origin'], 'campaign')}"

    @property
    def foreign(self) -> bool:
        """Whether the campaign was made elsewhere, so that nothing is added to its own run."""
        return self.row["origin"] not in {"live", "run"}

    @cached_property
    def filter(self) -> list[Pivot]:
        """The positions that the campaign's filter picks."""
        settings = self.row["settings"]
        return pivots_of(
            self.rollout,
            margin_below=settings.get("margin_below", 1.0),
            max_pivots=settings.get("max_pivots_per_rollout", 5),
            boundary_slack=settings.get("boundary_slack", -1),
            special_ids=self.special,
            eos_ids=self.eos,
        )

    @cached_property
    def unmeasured(self) -> int:
        """How many of the filter's pivots hold no measurement of the campaign's own run."""
        measured = {p.position for p in self.rollout.pivots if any(m.run == "campaign" for m in p.measurements)}
        return sum(pivot.position not in measured for pivot in self.filter)

    @cached_property
    def view(self) -> TranscriptView:
        return rollout_view(
            self.rollout,
            self.texts,
            margin_below=self.row["settings"].get("margin_below", 1.0),
            special=self.special | self.eos,
        )

    def runs(self, position: int) -> list[Run]:
        """What is stored of a position, a run each."""
        return runs_of(pivot_at_position(self.rollout, position))

    def pivot(self, position: int, chosen: int | None = None) -> Pivot:
        """The pivot at a position, with the `chosen` alternative if given. Raises `UserError` where none can be cut."""
        return pivot_at(self.rollout, position, chosen=chosen, special_ids=self.special, eos_ids=self.eos)

    def alternative(self, position: int, run: Run) -> int | None:
        """The token that a stored run put in the place of the one at a position."""
        return own_alternative(self.rollout, position) if run.alternative is None else run.alternative

    def choices(self, position: int) -> list[tuple[int, float]]:
        """The tokens that can be put in the place of the one at a position, with their logprobs, likeliest first."""
        return choices_at(self.rollout, position, special_ids=self.special, eos_ids=self.eos)

    def can_cut(self, position: int) -> bool:
        try:
            self.pivot(position)
        except UserError:
            return False
        return True

    def engine_of(self, run: Run) -> Mapping[str, Any]:
        """The facts of the engine that measured a run; empty where they are not on record."""
        digests = {one.engine for one in run.measurements if one.engine is not None}
        return self.engines.get(digests.pop(), {}) if len(digests) == 1 else {}

    def batch_invariant(self, run: Run) -> bool | None:
        """Whether a run was measured in batch-invariant mode; a replay's engine says it, not the campaign."""
        facts = self.engine_of(run)
        said: bool | None = facts.get("batch_invariant") if facts else self.row["batch_invariant"]
        return said


def read_picked(store: Store, place: Place) -> Picked:
    """Read a rollout with what belongs to it. Raises `UserError` where the store has no such rollout."""
    rollout = store.rollout(place.campaign, place.problem, place.rollout)
    problem = next(row for row in store.problems(place.campaign) if row["problem"] == place.problem)
    return Picked(
        place,
        problem["question"],
        problem["gold"],
        rollout,
        store.token_bytes(place.campaign, token_ids_of(rollout)),
        store.campaign(place.campaign),
        store.engines(place.campaign),
    )
