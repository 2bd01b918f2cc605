"""Files through the page: what an upload is and would store, found out in a scratch store; an export as one file."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backend.audit import audit_rollouts
from backend.errors import PivotscopeError, UserError
from backend.exporters import export
from backend.importers import Imported, free_name, import_path
from backend.store import Store
from backend.tables import count

MAX_FILES = 50
"""Files taken at once."""

FORMATS = {
    "parquet": "Parquet: everything, and it imports again row for row",
    "csv": "CSV: one file a table, zipped",
    "receipt": "Receipt: the study's JSON, Â a pivot and pass",
    "html": "Report: one HTML page with figures that needs no network",
}
"""What each format of `exporters` is for."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file as somebody dropped it."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a file is, before anything is stored."""

    file: str
    kind: str
    """`receipt`, `rollout`, `export`, or `unusable`."""
    error: str | None = None
    """What is wrong with it, a sentence."""
    campaign: str | None = None
    """The id it would be stored under: its content's hash."""
    name: str | None = None
    facts: str = ""
    """Model, engine and k, as far as the file says."""
    problems: int = 0
    rollouts: int = 0
    pivots: int = 0
    notes: Sequence[str] = field(default_factory=list)
    """What a reader should know about it, sentences."""
    known: bool = False
    """Whether the store has it already, so that importing it adds nothing."""


def inspect(store: Store, uploads: Sequence[Upload]) -> list[Inspected]:
    """Import the files into a store that is thrown away, and say what came of each."""
    if len(uploads) > MAX_FILES:
        raise UserError(
            f"these are {len(uploads)} files; drop at most {MAX_FILES} at once, or use `import` on a folder"
        )
    with tempfile.TemporaryDirectory(prefix="pivotscope-") as folder:
        scratch = Path(folder)
        with Store(scratch / "scratch.duckdb") as trial:
            found = [_inspect(store, trial, upload, _laid_down(scratch, upload, i)) for i, upload in enumerate(uploads)]
    return found


def take_in(store: Store, uploads: Sequence[Upload]) -> list[Imported]:
    """Import the files, each whole or not at all. Raises `UserError` for the first that is not what it should be."""
    with tempfile.TemporaryDirectory(prefix="pivotscope-") as folder:
        taken = []
        for i, upload in enumerate(uploads):
            path = _laid_down(Path(folder), upload, i)
            try:
                taken += [Imported(**{**done, "path": upload.name}) for done in import_path(store, path)]
            except PivotscopeError as error:
                raise type(error)(_named(error, path, upload)) from None
    return taken


def exported(store: Store, campaign: str, format: str) -> tuple[str, bytes]:
    """A campaign as the name and content of one file; several files are zipped. Raises `UserError` as `export` does."""
    with tempfile.TemporaryDirectory(prefix="pivotscope-") as folder:
        paths = export(store, campaign, format, Path(folder))
        if len(paths) == 1:
            return paths[0].name, paths[0].read_bytes()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in paths:
                archive.write(path, path.name)
        return f"{paths[0].stem.rpartition('-')[0]}.zip", packed.getvalue()


def _laid_down(scratch: Path, upload: Upload, index: int) -> Path:
    """The upload as a file of its own name, from which a campaign takes its name, in a folder of its own."""
    folder = scratch / str(index)
    folder.mkdir()
    name = Path(upload.name.replace("\\", "/").replace("\0", "")).name
    stem, suffix = os.path.splitext(name)
    path = folder / f"{_shortened(stem) or 'file'}{suffix[:10]}"
    path.write_bytes(upload.content)
    return path


def _shortened(stem: str) -> str:
    """A stem that any file system takes."""
    return stem.encode()[:120].decode(errors="ignore")


def _named(error: PivotscopeError, path: Path, upload: Upload) -> str:
    """The sentence with the file called what the reader calls it."""
    return str(error).replace(str(path), upload.name)


def _inspect(store: Store, trial: Store, upload: Upload, path: Path) -> Inspected:
    try:
        (done,) = import_path(trial, path)
    except PivotscopeError as error:
        return Inspected(upload.name, "unusable", _named(error, path, upload))
    row, known = trial.campaign(done["campaign"]), {held["campaign"]: held["name"] for held in store.campaigns()}
    kind = "export" if upload.content[:4] == b"PAR1" else "rollout" if row["k"] is None else "receipt"
    facts = [row["model"] or "unknown model", row["engine"], row["dtype"], f"k = {row['k']}" if row["k"] else None]
    return Inspected(
        upload.name,
        kind,
        None,
        done["campaign"],
        known.get(done["campaign"]) or free_name(store, row["name"], done["campaign"]),
        " · ".join(fact for fact in facts if fact),
        row["problems"],
        done["rollouts"],
        done["pivots"],
        _notes(row["final"], path if kind == "rollout" else None),
        done["campaign"] in known,
    )


def _notes(final: bool | None, rollout: Path | None) -> list[str]:
    notes = []
    if final is False:
        notes.append("The file says of itself that its run was cut off: problems are missing.")
    if rollout is not None:
        audit = audit_rollouts([rollout])
        if audit["phantom_pivots"]:
            notes.append(
                f"{count(audit['phantom_pivots'])} of its {count(audit['recorded_low_margin'])} low-margin positions "
                "are phantoms of a top-k in which the logprob 0.0 was sorted last; margins here are sorted numerically."
            )
    return notes
