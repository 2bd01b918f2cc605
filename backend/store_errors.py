"""What DuckDB says when a store cannot be opened, read or written, turned into sentences for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from backend.errors import PivotscopeError, UserError, WorkFailed

_FULL = "the disk is full; free some space and run this again, what was stored is kept"
_WRITABLE = "give --store a file in a folder that you may write to"


class StoreHeldError(UserError):
    """Another process has the store open; it can be used once that process has ended."""


@contextmanager
def sentences(path: Path) -> Iterator[None]:
    """DuckDB's errors that a person can cause, as sentences."""
    try:
        yield
    except (
        duckdb.IOException,
        duckdb.OutOfMemoryException,
        duckdb.TransactionException,
        duckdb.FatalException,
    ) as error:
        text = str(error)
        if "No space left" in text or "quota" in text:
            raise WorkFailed(
                f"{path}: the disk is full; free some space and run this again, what was stored is kept"
            ) from None
        if "Read-only file system" in text or "Permission denied" in text:
            raise UserError(
                f"{path} may not be written; give --store a file in a folder that you may write to"
            ) from None
        raise WorkFailed(
            f"{path}: the store failed ({text.splitlines()[0]}); restart the process that holds it"
        ) from None


def opening_failure(path: Path, error: duckdb.Error) -> PivotscopeError:
    """Why a file cannot be opened as a store, as a sentence."""
    text = str(error)
    if held := re.search(r"lock is held in (.+?) \(PID (\d+)\)", text):
        return StoreHeldError(
            f"{path} is held by another process (process id {held[2]}, {Path(held[1]).name}); "
            "stop that process, or give --store another file"
        )
    if "Could not set lock" in text:
        return StoreHeldError(f"{path} is held by another process; stop that process, or give --store another file")
    if "different configuration" in text:
        return UserError(f"{path} is already open in this process in another way; use the store that is open")
    if "not a valid DuckDB" in text:
        return UserError(f"{path} is not a DuckDB file; give --store another file")
    if "version number" in text:
        return UserError(
            f"{path} was written by another version of DuckDB; update duckdb, or give --store another file"
        )
    if "does not exist" in text or "No such file" in text:
        return UserError(f"{path} cannot be opened: its folder or the file does not exist; create the folder first")
    if "Permission denied" in text or "Read-only file system" in text:
        return UserError(f"{path} may not be opened for writing; {_WRITABLE}")
    if "No space left" in text:
        return WorkFailed(f"{path}: {_FULL}")
    return UserError(f"{path} cannot be opened as a store: {text.splitlines()[0]}")
