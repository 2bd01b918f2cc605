"""The files of a run, beside the store: `<store>.runs/<campaign>/`.

```
settings.json     what the campaign is; never changes
shards/           one Parquet file a finished problem, immutable, but that of a failed one is replaced by a later run
ingested/         an empty file a shard that the store's owner has taken in, of the shard's own time
quarantine/       shards that are torn or foreign, each with a .txt that says why
progress.json     replaced as the run goes on
log.jsonl         settings, warnings, timings, throughput and memory, a line each
lock              held (flock) by the one process that runs the campaign; contains its process id
cancel            there when somebody asked the run to stop
```

Any process may read these files at any time; only the one that holds the lock writes shards and progress.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from backend.errors import UserError
from backend.files import replacing, write_failure
from backend.progress import Progress, RunState
from backend.records import ProblemRecord, ProblemState
from backend.settings import CampaignSettings, make_settings
from backend.shards import read_shard_table, shard_files, shard_name, write_shard

LOCK_PATIENCE = 1.0
"""Seconds to wait for the lock: somebody who merely looks whether it is held holds it for a moment."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A shard that was set aside."""

    name: str
    reason: str


class RunHeldError(UserError):
    """Another process runs the campaign; it can be watched."""

    def __init__(self, name: str, pid: int | None) -> None:
        self.pid = pid
        who = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"campaign {name!r} is being run by {who}; watch it, or stop that process first")


class RunFolder:
    """One campaign's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shards = path / "shards"
        self._claimed = False

    @classmethod
    def of(cls, store: Path, campaign: str) -> RunFolder:
        """The folder of a campaign id beside a store's file."""
        return cls(runs_root(store) / campaign)

    @contextmanager
    def claim(self, settings: CampaignSettings) -> Iterator[None]:
        """Be the one process that runs the campaign, with exactly these settings.

        Whoever holds the claim may claim again: a runner takes it before it loads the model, so that a campaign that
        two processes start at once loads one. Raises `RunHeldError` when another process holds it, and `UserError`
        for other settings under the same name.
        """
        if self._claimed:
            self._agree(settings)
            yield
            return
        with _writing(self.path):
            for folder in (self.shards, self.path / "ingested", self.path / "quarantine"):
                folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._lock(descriptor, settings.name)
            self._agree(settings)
            (self.path / "cancel").unlink(missing_ok=True)
            self._tidy()
            self._claimed = True
            yield
        finally:
            self._claimed = False
            os.close(descriptor)

    def settings(self) -> CampaignSettings | None:
        """The campaign's settings; None where none was started. Raises `UserError` for an unreadable file."""
        path = self.path / "settings.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as settings ({error}); restore it or remove {self.path}") from None
        return make_settings(document, str(path))

    def runner(self) -> int | None:
        """Process id of whoever runs the campaign right now; None when nobody does."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _pid(descriptor)
        finally:
            os.close(descriptor)
        return None

    def state(self) -> RunState | None:
        """Where the run stands; None where there is none. A runner that died leaves it `interrupted`."""
        if self.runner() is not None:
            return "running"
        progress = self.progress()
        if progress is None:
            return "interrupted" if self.path.is_dir() else None
        return "interrupted" if progress.state == "running" else progress.state

    def progress(self) -> Progress | None:
        """The last progress that was written."""
        try:
            return Progress.read((self.path / "progress.json").read_bytes())
        except (OSError, ValueError):
            return None

    def write_progress(self, progress: Progress) -> None:
        """Replace the progress; not flushed to the disk, for it says nothing after a crash."""
        temporary = self.path / ".tmp-progress"
        with _writing(self.path):
            temporary.write_text(progress.document(), encoding="utf-8")
            temporary.replace(self.path / "progress.json")

    def log(self, kind: str, **facts: Any) -> None:
        """Add a line to the log."""
        entry = {"time": utc_now(), "kind": kind, **facts}
        with _writing(self.path / "log.jsonl"), (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def log_entries(self) -> list[dict[str, Any]]:
        """The log's lines, oldest first; a line that a kill cut short is left out."""
        try:
            lines = (self.path / "log.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        entries = []
        for line in lines:
            with suppress(ValueError):
                entries.append(json.loads(line))
        return entries

    def request_cancel(self) -> None:
        """Ask whoever runs the campaign to stop."""
        with _writing(self.path):
            (self.path / "cancel").touch()

    def cancel_requested(self) -> bool:
        return (self.path / "cancel").exists()

    def write(self, record: ProblemRecord) -> Path:
        """Store a finished problem, whole or not at all."""
        return write_shard(self.shards, record)

    def finished(self, problems: Collection[str] | None = None) -> dict[str, ProblemState]:
        """State of each problem that has a shard. A torn shard is set aside, and a foreign one: not of `problems`."""
        states: dict[str, ProblemState] = {}
        for path in shard_files(self.shards):
            try:
                problem, state = _identify(path, problems)
            except (UserError, OSError, pa.ArrowException) as error:
                self.set_aside(path, str(error))
            else:
                states[problem] = state
        return states

    def set_aside(self, shard: Path, reason: str) -> None:
        """Move a shard out of the way and write down why."""
        folder = self.path / "quarantine"
        with _writing(folder):
            folder.mkdir(exist_ok=True)
            target = folder / shard.name
            number = 1
            while target.exists():
                number += 1
                target = folder / f"{shard.stem}-{number}{shard.suffix}"
            target.with_suffix(".txt").write_text(reason + "\n", encoding="utf-8")
            # Somebody else may have moved it first.
            with suppress(FileNotFoundError):
                shard.replace(target)
        self.log("set aside", shard=shard.name, reason=reason)

    def quarantined(self) -> list[Quarantined]:
        """What was set aside, by name."""
        notes = sorted((self.path / "quarantine").glob("*.txt"))
        return [Quarantined(f"{note.stem}.parquet", note.read_text(encoding="utf-8").strip()) for note in notes]

    def complete(self) -> bool:
        """Whether the run is done, all its shards are there and none of them asks to be tried again."""
        progress = self.progress()
        if progress is None or self.state() != "done" or (progress.failed and progress.done < progress.total):
            return False
        return len(self.finished()) == progress.done + progress.screened_out + progress.failed

    def waiting(self) -> dict[Path, int]:
        """Shards without the mark that the store has them, with the time each was written, in nanoseconds.

        The store's ledger decides; the mark spares a look at it.
        """
        found = {}
        for path in shard_files(self.shards):
            written = _written(path)
            if written is not None and written != _written(self.path / "ingested" / path.name):
                found[path] = written
        return found

    def mark_ingested(self, shard: Path, written: int) -> None:
        """Note that the store has taken in the shard of that time; one that has replaced it since keeps waiting."""
        with _writing(self.path):
            (self.path / "ingested").mkdir(exist_ok=True)
            mark = self.path / "ingested" / shard.name
            mark.touch()
            os.utime(mark, ns=(written, written))

    def _lock(self, descriptor: int, name: str) -> None:
        patience = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > patience:
                    raise RunHeldError(name, _pid(descriptor)) from None
                time.sleep(0.05)
            else:
                break
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)

    def _tidy(self) -> None:
        """Remove what a killed run left half-written; nobody else writes here now."""
        for rest in [*self.shards.glob(".tmp-*"), *self.path.glob(".tmp-*")]:
            rest.unlink(missing_ok=True)
        log = self.path / "log.jsonl"
        if log.exists() and not log.read_bytes().endswith(b"\n"):
            with log.open("a") as file:
                file.write("\n")

    def _agree(self, settings: CampaignSettings) -> None:
        stored = self.settings()
        if stored is None:
            with replacing(self.path / "settings.json") as temporary:
                temporary.write_text(settings.document(), encoding="utf-8")
        elif differences := stored.differences(settings):
            raise UserError(
                f"campaign {settings.name!r} was started with {'; '.join(differences)}: give the changed campaign "
                "another name, or run it with the settings it was started with"
            )


def runs_root(store: Path) -> Path:
    """Where the runs of a store lie."""
    return store.with_name(store.name + ".runs")


def run_folders(store: Path) -> list[RunFolder]:
    """The runs beside a store, by campaign id."""
    return [RunFolder(path) for path in sorted(runs_root(store).glob("*")) if (path / "settings.json").is_file()]


def utc_now() -> str:
    """The time as records carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _identify(shard: Path, problems: Collection[str] | None) -> tuple[str, ProblemState]:
    """Problem and state of a shard, all of it read. Raises `UserError` for a foreign one."""
    row = read_shard_table(shard).select(["problem", "state"]).to_pylist()[0]
    problem = row["problem"]
    if shard.name != shard_name(problem):
        raise UserError(f"{shard.name}: holds problem {problem!r}, whose file has another name")
    if problems is not None and problem not in problems:
        raise UserError(f"{shard.name}: holds problem {problem!r}, which is not one of this campaign's")
    return problem, row["state"]


def _written(path: Path) -> int | None:
    """When a file was last written, in nanoseconds; None for one that is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_failure(path, error) from None
