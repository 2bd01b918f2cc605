"""Opening the store: the campaigns that ship for a new one, the finished shards for an old one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from backend.collecting import collect
from backend.errors import PivotscopeError, UserError
from backend.importers import bundled
from backend.store import Store
from backend.store_errors import StoreHeldError

ROOT = Path(__file__).resolve().parents[1]
BUNDLED = ROOT / "data" / "demo"
"""The campaigns that ship, a Parquet file each. `PIVOTSCOPE_BUNDLED` names another folder; set but empty, none."""
LOOK_AGAIN = 0.1
"""Seconds between two tries at a store that another process holds."""


def open_store(path: Path, *, campaigns: Sequence[str] | None = None, patience: float = 0.0) -> Store:
    """Open a store and take in what waits for it: shards that runs finished, and campaigns that ship, once for good.

    `campaigns` are those that will be asked for, ids or names: of what ships, only they are taken in now, unless one
    of them is not known then, when a reader is to be told what there is. None stands for all. `patience` is how many
    seconds to wait while another process holds the store. Raises `UserError` with one sentence where the file cannot
    be opened, `StoreHeldError` where another process still holds it.
    """
    store = _collected(path, patience)
    try:
        _take_in(store, campaigns)
    except BaseException:
        store.close()
        raise
    return store


def open_for_pages(path: Path) -> tuple[Store, Loading]:
    """Open a store that already has something to show, while the rest of what ships comes in behind it.

    Raises as `open_store` does, but for a bundle that cannot be read: the pages are told by `Loading`.
    """
    store = _collected(path, 0.0)
    loading = Loading(store, _waiting(store))
    if not store.campaigns():
        loading.take_next()
    loading.go_on()
    return store, loading


class Loading:
    """Campaigns that ship on their way into a store, which closes only between two of them."""

    def __init__(self, store: Store, paths: Sequence[Path]) -> None:
        self.total = len(paths)
        self.done = 0
        self.errors: list[str] = []
        """A sentence for each that could not be taken in; the next opening tries it again."""
        self._store, self._left = store, list(paths)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="bundled campaigns")

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return not self._thread.is_alive()

    def take_next(self) -> None:
        """Take in one of them, now."""
        if not self._left:
            return
        try:
            bundled.take_in(self._store, self._left.pop(0))
        except PivotscopeError as error:
            self.errors.append(str(error))
        self.done += 1

    def go_on(self) -> None:
        """Take in the others one by one, in a thread."""
        if self._left:
            self._store.before_closing.append(self.stop)
            self._thread.start()

    def wait(self) -> None:
        """Wait until all of them are in."""
        if self._thread.is_alive():
            self._thread.join()

    def stop(self) -> None:
        """Take in no more, and wait for the one that is on its way: it comes in whole."""
        self._stop.set()
        self.wait()

    def _work(self) -> None:
        while self._left and not self._stop.is_set():
            self.take_next()


def _collected(path: Path, patience: float) -> Store:
    store = _open(path, time.monotonic() + patience)
    try:
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


def _waiting(store: Store) -> list[Path]:
    named = os.environ.get("PIVOTSCOPE_BUNDLED")
    if named == "":
        return []
    return bundled.waiting(store, BUNDLED if named is None else Path(named))


def _take_in(store: Store, campaigns: Sequence[str] | None) -> None:
    paths = _waiting(store)
    if campaigns is not None:
        asked = [path for path in paths if not bundled.called(path).isdisjoint(campaigns)] if campaigns else []
        for path in asked:
            bundled.take_in(store, path)
        if all(_known(store, campaign) for campaign in campaigns):
            return
        paths = [path for path in paths if path not in asked]
    for path in paths:
        bundled.take_in(store, path)


def _known(store: Store, campaign: str) -> bool:
    try:
        store.find_campaign(campaign)
    except UserError:
        return False
    return True
