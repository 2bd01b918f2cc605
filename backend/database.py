"""The store's file: one DuckDB database that one process owns, its transactions, and what is remembered in it.

Reading and writing are thread-safe: each call has a cursor of its own, and writes queue behind one lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import duckdb

from backend import queries, schema
from backend.errors import PivotscopeError, UserError, WorkFailed
from backend.files import replacing
from backend.store_errors import opening_failure, sentences

_WRITING = threading.RLock()
"""One writer a process: two stores opened on one file share DuckDB's instance."""

# DuckDB would take most of the machine, where a model wants to live; what needs more than this goes to the disk.
# New rows stay in memory, not yet compressed, until a checkpoint; but each one compresses anew what shares a row group
# with them. 32 MB takes 80 MB less memory than 256 MB while the campaigns that ship come in, and no longer.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "memory_limit": "2GB",
    "checkpoint_threshold": "32MB",
}


class Database:
    """An open database under our schema. Raises `UserError` with one sentence where the file cannot be opened so."""

    written = 0
    """How many transactions this process has committed, to any database: while it stands still, so do all results."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path.resolve()
        self.read_only = read_only
        self.before_closing: list[Callable[[], None]] = []
        """Called before the file is let go of: how a thread that writes to it is told to end."""
        if self.path.is_dir():
            raise UserError(f"{path} is a folder; give --store a file in it, for example {path / 'pivotscope.duckdb'}")
        try:
            self._connection = duckdb.connect(str(self.path), read_only=read_only, config=_CONFIG)
        except duckdb.Error as error:
            raise opening_failure(path, error) from None
        try:
            with sentences(path):
                self._prepare(path)
        except PivotscopeError:
            self._connection.close()
            raise
        self._inode = self.path.stat().st_ino

    def _prepare(self, path: Path) -> None:
        seen = schema.applied(self._connection)
        known = [migration.__name__ for migration in schema.MIGRATIONS]
        if seen is None:
            raise UserError(f"{path} is a DuckDB file of another program; give --store another file")
        if unknown := [name for name in seen if name not in known]:
            raise UserError(
                f"{path} was written by a newer Pivotscope (its tables have seen {unknown[0]}); "
                "update Pivotscope, or give --store another file"
            )
        if seen != known and self.read_only:
            raise UserError(
                f"{path} was written by an older Pivotscope; open it once for writing to bring it up to date"
            )
        if seen != known:
            schema.migrate(self._connection, seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush and let go of the file."""
        while self.before_closing:
            self.before_closing.pop()()
        with sentences(self.path):
            self._connection.close()

    @contextmanager
    def _reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        cursor = self._connection.cursor()
        try:
            with sentences(self.path):
                yield cursor
        finally:
            cursor.close()

    @contextmanager
    def _writing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        if self.read_only:
            raise UserError(f"{self.path} is open for reading only")
        with _WRITING, self._reading() as cursor:
            self._refuse_if_gone()
            cursor.begin()
            try:
                yield cursor
                cursor.commit()
                Database.written += 1
            except BaseException:
                _roll_back(cursor)
                raise

    def _refuse_if_gone(self) -> None:
        try:
            gone = self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            gone = True
        if gone:
            raise WorkFailed(
                f"{self.path} was removed or replaced while process {os.getpid()} had it open; nothing more is written "
                "to it: stop that process, put the file back from a copy, and start again"
            )

    def setting(self, key: str) -> str | None:
        """A remembered value."""
        with self._reading() as cursor:
            row = queries.first(cursor, 'SELECT "value" FROM setting WHERE "key" = ?', [key])
        return None if row is None else str(row[0])

    def settings(self, prefix: str) -> dict[str, str]:
        """The remembered values whose keys begin so."""
        with self._reading() as cursor:
            query = 'SELECT "key", "value" FROM setting WHERE starts_with("key", ?)'
            return dict(cursor.execute(query, [prefix]).fetchall())

    def set_setting(self, key: str, value: str) -> None:
        """Remember a value."""
        with self._writing() as cursor:
            remember(cursor, key, value)

    def snapshot(self, to: Path) -> None:
        """Copy the whole store, open as it is, to another file; a copy of the file would miss what is in flight."""
        with replacing(to) as temporary, self._reading() as cursor:
            temporary.unlink()
            quoted = str(temporary).replace("'", "''")
            (own,) = queries.first(cursor, "SELECT current_database()") or ("",)
            cursor.execute(f"ATTACH '{quoted}' AS snapshot")
            try:
                cursor.execute(f'COPY FROM DATABASE "{own}" TO snapshot')
            finally:
                cursor.execute("DETACH snapshot")


def remember(cursor: duckdb.DuckDBPyConnection, key: str, value: str) -> None:
    """Remember a value as part of a transaction."""
    cursor.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", [key, value])


def _roll_back(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.rollback()
    except duckdb.Error:
        # A failed commit has ended the transaction already, and the first error is the one to tell.
        return
