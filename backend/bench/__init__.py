"""The budgets, measured on this machine in one run: each figure beside its yardstick from the same run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

from backend import models
from backend.bench.result import Result
from backend.engines.processor import processor_name
from backend.engines.threads import default_threads
from backend.errors import UserError

Extent = Literal["quick", "standard", "full"]
Say = Callable[[str], None]


def measure(extent: Extent, threads: int | None, say: Say, model: str = models.PACKAGED_MODEL) -> dict[str, Any]:
    """Measure and give the document `{"machine", "model", "extent", "results"}`.

    `quick` replays with 16-token continuations and reports over 100,000 pivots, `standard` does what the budgets say,
    and `full` runs a campaign as well. Raises `UserError` where the model is not on this disk.
    """
    from backend.bench.replaying import measure_campaign, measure_replay
    from backend.bench.reporting import measure_reports
    from backend.bench.starting import measure_start

    if models.locate(model) is None:
        raise UserError(f"model {model} is not on this disk; fetch it with `python -m backend models fetch {model}`")
    threads = threads or default_threads()
    quick = extent == "quick"
    say("starting the dashboard")
    results = measure_start()
    results += measure_replay(model, threads, 16 if quick else 64, say)
    if extent == "full":
        results += measure_campaign(model, threads, say)
    pivots = 100_000 if quick else 1_000_000
    say(f"reporting over {pivots:,} pivots")
    results += measure_reports(pivots)
    return {
        "machine": _machine(threads),
        "model": model,
        "extent": extent,
        "results": [{**asdict(result), "met": result.met} for result in results],
    }


def table(document: dict[str, Any]) -> str:
    """The document for people."""
    from backend.tables import Column, Table

    columns = (
        Column("name", "what"),
        Column("figure", "measured"),
        Column("budget", "budget"),
        Column("verdict", "kept"),
        Column("note", "note"),
    )
    verdicts = {True: "yes", False: "no", None: None}
    rows = [
        {
            "name": result["name"],
            "figure": _figure(result["value"], result["unit"]),
            "budget": None if result["goal"] is None else f"{result['direction']} {result['goal']:g}",
            "verdict": verdicts[result["met"]],
            "note": result["note"],
        }
        for result in document["results"]
    ]
    machine = document["machine"]
    title = f"{document['model']} on {machine['cores']} cores ({machine['processor']}), {machine['threads']} threads"
    return Table("bench", title, columns, rows).text()


def _figure(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def _machine(threads: int) -> dict[str, Any]:
    import psutil

    return {
        "processor": processor_name() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }


__all__ = ["Extent", "Result", "measure", "table"]
