"""How far a run is, as its `progress.json` says it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from pydantic import TypeAdapter

RunState = Literal["running", "done", "cancelled", "stopped", "interrupted"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. Counts are over the whole campaign, tokens and seconds over this run of it."""

    campaign: str
    name: str
    state: RunState
    """As the runner wrote it; `RunFolder.state` also knows a runner that is gone."""
    phase: str
    """`rollouts`, a pass's name, or empty."""
    total: int
    """Problems to keep."""
    limit: int
    """Most problems that may be looked at."""
    done: int
    screened_out: int
    failed: int
    fraction: float
    """Share of the expected work that is behind, 0 to 1."""
    tokens: int
    """Tokens computed."""
    tokens_per_second: float | None
    """Over the time inside engine calls; None before the first."""
    seconds: float
    """Wall time so far."""
    seconds_left: float | None
    """Expected wall time still to come; None while it cannot be known."""
    started: str
    """UTC, ISO 8601."""
    updated: str
    """UTC, ISO 8601."""
    pid: int
    """Process that runs the campaign."""
    message: str | None
    """The last thing to know, a sentence."""

    @classmethod
    def read(cls, text: bytes) -> Progress:
        """What `document` wrote. Raises `ValueError` for anything else."""
        return _ADAPTER.validate_json(text)

    def document(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


_ADAPTER = TypeAdapter(Progress)
