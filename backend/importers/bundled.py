"""The campaigns that ship: which of them a store has not seen, and taking one in, once for good."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from backend.files import file_sha256
from backend.importers.naming import free_name
from backend.importers.parquet import Bundle
from backend.store import Store

FIRST = "smollm2-sft"
"""The one that a newcomer should meet first; the others follow by name."""

_KEY = "bundled:"
"""Before a file's stem, the setting that says a store has seen it: a removed campaign does not come back."""


def waiting(store: Store, folder: Path) -> list[Path]:
    """The files `NAME.parquet` that the store has not seen, in the order in which to take them in."""
    seen = store.settings(_KEY)
    files = [path for path in folder.glob("*.parquet") if _KEY + path.stem not in seen]
    return sorted(files, key=lambda path: (path.stem != FIRST, path.name))


def called(path: Path) -> set[str]:
    """What one may be asked for by: its campaign's id and its name."""
    with Bundle(path) as bundle:
        return {_id(path), bundle.facts.campaign.name}


def take_in(store: Store, path: Path) -> str | None:
    """Take one in, whole or not at all; gives the campaign's id, or None where the store holds it already.

    Raises `UserError` for a file that is no bundle.
    """
    with Bundle(path) as bundle:
        identity = _id(path)
        name = free_name(store, bundle.facts.campaign.name, identity)
        campaign = bundle.campaign(identity, name, "bundled")
        seen = {_KEY + path.stem: identity}
        added = store.add_campaign(campaign, bundle.tables(), str(path), bundle.engines(), seen)
    pa.default_memory_pool().release_unused()  # tens of megabytes that Arrow would keep for a next file
    return identity if added else None


def _id(path: Path) -> str:
    return file_sha256(path)[:12]
