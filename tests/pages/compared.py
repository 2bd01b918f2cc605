"""A store with campaigns to compare: two scripted models, one of them again with another k, and a receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.campaign import run_campaign
from backend.collecting import collect
from backend.engines.base import Quiet
from backend.engines.scripted_engine import ScriptedEngine
from backend.runs import RunFolder
from backend.store import Store
from tests.backend.play import PROBLEMS, campaign_settings
from tests.backend.receipts import hold, receipt

NOISE = {"noise": {"refeed": 0.5}}


def run(path: Path, name: str, **changed: Any) -> str:
    """Run a small scripted campaign beside a store; gives its id."""
    settings = campaign_settings(name=name, engine_options=NOISE, **({"problems": {"file": "x", "count": 4}} | changed))
    engine = ScriptedEngine(settings.model, settings.dtype, settings.engine_options)
    folder = RunFolder.of(path, settings.campaign)
    run_campaign(settings, PROBLEMS[8 : 8 + settings.problems.count], engine, folder, Quiet())
    return settings.campaign


def fill(path: Path) -> dict[str, str]:
    """Fill a new store; gives the campaigns' ids by name."""
    found = {
        "Alpha": run(path, "Alpha", model="alpha"),
        "Beta": run(path, "Beta", model="beta"),
        "Alpha, k = 4": run(path, "Alpha, k = 4", model="alpha", k=4),
        "Alpha, fewer": run(path, "Alpha, fewer", model="alpha", problems={"file": "x", "count": 3}),
    }
    with Store(path) as store:
        collect(store)
        rows = [(problem, exact, exact, -exact) for problem in (1, 2, 3) for exact in (2, -1, 4)]
        found["receipt"] = hold(store, path.parent, receipt(rows))
        found["other receipt"] = hold(store, path.parent, receipt([(1, 0, 0, 0), (2, 2, 2, 2)]), "other receipt")
    return found
