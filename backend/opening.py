"""Opening the store: the bundled campaigns of a new one, the finished shards of an old one."""

from __future__ import annotations

import time
from pathlib import Path

from backend.collecting import collect
from backend.importers import ingest_bundled
from backend.store import Store
from backend.store_errors import StoreHeldError

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "data" / "demo"
"""The campaigns that ship, a Parquet file each."""
LOOK_AGAIN = 0.1
"""Seconds between two tries at a store that another process holds."""


def open_store(path: Path, *, patience: float = 0.0) -> Store:
    """Open a store and take in what waits for it: campaigns that ship, once for good, and shards that runs finished.

    `patience` is how many seconds to wait while another process holds it. Raises `UserError` with one sentence where
    the file cannot be opened, `StoreHeldError` where another process still holds it.
    """
    store = _open(path, time.monotonic() + patience)
    try:
        ingest_bundled(store, BUNDLED)
        collect(store)
    except BaseException:
        store.close()
        raise
    return store


def _open(path: Path, deadline: float) -> Store:
    while True:
        try:
            return Store(path)
        except StoreHeldError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_AGAIN)
