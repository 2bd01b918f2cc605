"""The campaigns of a store and the runs beside it as rows for people: where each stands, and what it said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from backend.campaign_jobs import campaign_job, step
from backend.errors import UserError
from backend.jobs import Job, Jobs
from backend.progress import Progress
from backend.runs import RunFolder, run_folders
from backend.settings import CampaignSettings, make_settings, to_toml
from backend.store import Store
from backend.tables import Column, Table, count

Colour = Literal["red", "orange", "green", "blue", "gray"]

SILENT_AFTER = 30.0
"""Seconds without a word from a running campaign after which the page says so."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a campaign stands, in a word, an icon and a colour."""

    word: str
    icon: str
    colour: Colour


STANDINGS = {
    "queued": Standing("queued", ":material/schedule:", "gray"),
    "running": Standing("running", ":material/play_circle:", "blue"),
    "done": Standing("done", ":material/check_circle:", "green"),
    "interrupted": Standing("interrupted", ":material/power_off:", "orange"),
    "cancelled": Standing("cancelled", ":material/cancel:", "gray"),
    "stopped": Standing("failed", ":material/error:", "red"),
    "unreadable": Standing("unreadable", ":material/broken_image:", "red"),
    "bundled": Standing("bundled", ":material/inventory_2:", "gray"),
    "imported": Standing("imported", ":material/upload_file:", "gray"),
    "live": Standing("sampled by hand", ":material/touch_app:", "gray"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One campaign."""

    campaign: str
    name: str
    state: str
    """A key of `STANDINGS`."""
    facts: str
    """Model, engine, dtype and k, as far as they are known."""
    counts: str
    """What it holds."""
    stored: bool
    """Whether the store has it, so that it has a page."""
    progress: Progress | None
    runner: int | None
    """The process that runs it."""
    job: Job | None
    """Its job in this process, while it waits or works."""
    note: str | None
    """What is wrong, or the last thing that the run said: a sentence."""

    @property
    def standing(self) -> Standing:
        return STANDINGS[self.state]

    @property
    def active(self) -> bool:
        """Whether it waits or runs."""
        return self.state in {"queued", "running"}

    @property
    def resumable(self) -> bool:
        """Whether there may be something left to do."""
        return self.state in {"interrupted", "cancelled", "stopped"}


def rows(jobs: Jobs) -> list[Row]:
    """Every campaign, those at work first, then the newest."""
    folders = {folder.path.name: folder for folder in run_folders(jobs.store.path)}
    stored = {row["campaign"]: row for row in jobs.store.campaigns()}
    found = [_stored_row(jobs, row, folders.get(campaign)) for campaign, row in stored.items()]
    found += [_run_row(jobs, folder) for campaign, folder in folders.items() if campaign not in stored]
    order = {campaign: index for index, campaign in enumerate(stored)}
    return sorted(found, key=lambda row: (not row.active, row.state == "bundled", -order.get(row.campaign, len(order))))


def _stored_row(jobs: Jobs, row: dict[str, Any], folder: RunFolder | None) -> Row:
    job = campaign_job(jobs, row["campaign"])
    state = "bundled" if row["bundled"] else row["state"]
    progress = runner = fault = None
    if folder is not None:
        progress, runner, state = folder.progress(), folder.runner(), folder.state() or state
        fault = _fault(folder)
    if job is not None and not job.over and state != "running":
        state = job.state
    held = [counted(row["problems"], "problem")] if progress is None else _kept(progress)
    held += [counted(row["rollouts"], "rollout"), counted(row["pivots"], "pivot")]
    held += [counted(row["clicked"], "picked token")] if row["clicked"] else []
    held += [f"{counted(row['failed'], 'problem')} failed"] if row["failed"] else []
    return Row(
        row["campaign"],
        row["name"],
        state if state in STANDINGS else "interrupted",
        _facts(row["model"], row["engine"], row["dtype"], row["k"]),
        " · ".join(held),
        True,
        progress,
        runner,
        None if job is None or job.over else job,
        fault or _last_word(progress, job, state),
    )


def _run_row(jobs: Jobs, folder: RunFolder) -> Row:
    """A run that the store has not heard of yet."""
    job, progress, campaign = campaign_job(jobs, folder.path.name), folder.progress(), folder.path.name
    settings, fault = None, None
    try:
        settings = folder.settings()
    except UserError as error:
        fault = str(error)
    if settings is None:
        name, state, facts = progress.name if progress else campaign, "unreadable", "settings unknown"
    else:
        name, state = settings.name, folder.state() or "interrupted"
        facts = _facts(settings.model, settings.engine, settings.dtype, settings.k)
    counts = "nothing stored yet" if progress is None else " · ".join(_kept(progress))
    note, at_work = fault or _last_word(progress, job, state), None if job is None or job.over else job
    return Row(campaign, name, state, facts, counts, False, progress, folder.runner(), at_work, note)


def _last_word(progress: Progress | None, job: Job | None, state: str) -> str | None:
    """Why a run ended, or what it had to warn of."""
    if job is not None and job.state == "failed" and state != "running":
        return job.error
    return None if progress is None or state == "queued" else progress.message


def _fault(folder: RunFolder) -> str | None:
    try:
        folder.settings()
    except UserError as error:
        return str(error)
    return None


def _facts(model: str | None, engine: str | None, dtype: str | None, k: int | None) -> str:
    known = [model or "unknown model", engine or "unknown engine", dtype, None if k is None else f"k = {k}"]
    return " · ".join(fact for fact in known if fact)


def _kept(progress: Progress) -> list[str]:
    """The problems of a run."""
    parts = [f"{count(progress.done)} of {count(progress.total)} problems"]
    return parts + ([f"{count(progress.screened_out)} screened out"] if progress.screened_out else [])


def counted(number: int, noun: str) -> str:
    """1 pivot, 2 pivots."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def at_work(row: Row) -> tuple[float | None, str]:
    """The share that is behind and a line about it, of a campaign that waits or runs."""
    progress, job = row.progress, row.job
    if job is not None and job.state == "queued":
        return None, "waiting for the engine"
    if progress is None or progress.state != "running" or progress.pid != row.runner:
        what = job.phase if job is not None and job.phase else "loading the model"
        return (job.fraction if job is not None else None), what
    parts = [step(progress), f"{progress.done} of {progress.total} problems"]
    parts += [f"{progress.screened_out} screened out"] if progress.screened_out else []
    parts += [f"{progress.failed} failed"] if progress.failed else []
    parts += [f"{progress.tokens_per_second:,.0f} tokens/s"] if progress.tokens_per_second else []
    parts += [time_left(progress.seconds_left)]
    parts += [] if job is not None else [f"in process {row.runner}"]
    silence = (datetime.now(UTC) - datetime.fromisoformat(progress.updated)).total_seconds()
    parts += [f"no word for {silence:.0f} s"] if silence > SILENT_AFTER else []
    return progress.fraction, " · ".join(parts)


def time_left(seconds: float | None) -> str:
    """An estimate in words, no more precise than it can be."""
    if seconds is None:
        return "time left not known yet"
    if seconds < 10:
        return "a few seconds left"
    if seconds < 90:
        return f"about {round(seconds, -1):.0f} s left"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"about {minutes} min left"
    return f"about {minutes // 60} h {minutes % 60:02d} min left"


# One campaign's details


def campaign_file(store: Store, campaign: str) -> str | None:
    """The settings as a campaign file; None where they are not a run's."""
    try:
        settings: CampaignSettings | None = RunFolder.of(store.path, campaign).settings()
        if settings is None:
            settings = make_settings(store.campaign(campaign)["settings"], campaign)
    except UserError:
        return None
    return to_toml(settings)


def log_table(entries: Sequence[dict[str, Any]], campaign: str) -> Table:
    """A run's log, a line an entry, the newest first."""
    columns = [
        Column("time", "UTC time"),
        Column("what", "What"),
        Column("problems", "Problems", "count", "Problems in the wave"),
        Column("seconds", "Seconds", "number", "Wall time of the phase, or of the run"),
        Column("tokens", "Tokens", "count"),
        Column("tokens_per_second", "Tokens/s", "number"),
        Column("memory_mb", "Memory (MB)", "count", "Resident memory of the runner and its engine process"),
        Column("message", "Message"),
    ]
    return Table(f"log-{campaign}", "Log of the run", columns, [_entry(entry) for entry in reversed(entries)])


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    kind = entry.get("kind")
    what, message = str(kind), entry.get("message")
    if kind == "phase":
        what = "rollouts" if entry.get("phase") == "rollouts" else f"pass {entry.get('phase')}"
    elif kind == "start":
        message = _engine_facts(entry.get("engine"))
    elif kind == "end":
        what = f"end: {entry.get('state')}"
    elif kind == "set aside":
        message = f"{entry.get('shard')}: {entry.get('reason')}"
    time = str(entry.get("time", ""))[:19].replace("T", " ")
    numbers = {key: entry.get(key) for key in ("problems", "seconds", "tokens", "tokens_per_second", "memory_mb")}
    return {"time": time, "what": what, **numbers, "message": message}


def _engine_facts(document: Any) -> str | None:
    """The engine in a line: what a start of a run says of it."""
    try:
        facts = json.loads(document)
        device = facts.get("device_name") or facts.get("device")
        return f"{facts['engine']} {facts['engine_version']} with {facts['model']}, {facts['dtype']}, on {device}"
    except (TypeError, ValueError, KeyError):
        return None


def problem_table(store: Store, campaign: str) -> Table:
    """A campaign's problems and how each ended; failed ones first."""
    columns = [
        Column("problem", "Problem"),
        Column("state", "State"),
        Column("rollouts", "Rollouts", "count"),
        Column("correct", "Right", "count", "Rollouts with the right answer"),
        Column("pivots", "Pivots", "count"),
        Column("seconds", "Seconds", "number", "Wall time spent on the problem"),
        Column("error", "Error"),
    ]
    found = sorted(store.problems(campaign), key=lambda row: row["state"] != "failed")
    words = {"screened_out": "screened out"}
    keys = [column.key for column in columns]
    told = [{key: row[key] for key in keys} | {"state": words.get(row["state"], row["state"])} for row in found]
    return Table(f"problems-{campaign}", "Problems", columns, told)
