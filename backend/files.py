"""Writing files so that a reader never meets half of one, and telling one from another."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backend.errors import UserError, WorkFailed


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it becomes `path`, flushed to the disk, else nothing is left.

    Raises `WorkFailed` for a full disk and `UserError` for a folder that cannot be written.
    """
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        os.close(descriptor)
        temporary = Path(name)
        yield temporary
        _flush(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
        _flush(path.parent)
    except OSError as error:
        raise write_failure(path, error) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_failure(path: Path, error: OSError) -> UserError | WorkFailed:
    """The sentence for a file that could not be written."""
    # Arrow raises OSError without an errno, so its text is looked at too.
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return WorkFailed(f"{path}: the disk is full; free some space and run this again, what was stored is kept")
    reason = error.strerror or str(error)
    return UserError(f"{path}: cannot be written ({reason}); give a folder that exists and that you may write to")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """Hash of a file's content. Raises `UserError` where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
