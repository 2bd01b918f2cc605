"""The campaigns that ship: which of them a store has not seen, and taking one in.

Once for good: a removed one does not come back. A newer file takes the place of what its former self brought, unless a
reader has replayed a token there; then the two stand side by side.
"""

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
"""Before a file's stem, the setting that holds the id of the campaign that came of it."""


def waiting(store: Store, folder: Path) -> list[Path]:
    """The files `NAME.parquet` that the store has not seen, in the order in which to take them in."""
    seen = store.settings(_KEY)

    def is_new(path: Path) -> bool:
        former = seen.get(_KEY + path.stem)
        if former is None:
            return True
        return former != _id(path) and any(row["campaign"] == former for row in store.campaigns())

    files = [path for path in folder.glob("*.parquet") if is_new(path)]
    return sorted(files, key=lambda path: (path.stem != FIRST, path.name))


def called(path: Path) -> set[str]:
    """What one may be asked for by: its campaign's id and its name."""
    with Bundle(path) as bundle:
        return {_id(path), bundle.facts.campaign.name}


def take_in(store: Store, path: Path) -> str | None:
    """Take one in, whole or not at all; gives the campaign's id, or None where the store holds it already.

    Raises `UserError` for a file that is no bundle.
    """
    identity, key = _id(path), _KEY + path.stem
    former = store.settings(key).get(key)
    outdated = former if former not in {None, identity} and store.is_as_shipped(str(former)) else None
    with Bundle(path) as bundle:
        name = free_name(store, bundle.facts.campaign.name, identity, instead_of=outdated)
        campaign = bundle.campaign(identity, name, "bundled")
        added = store.add_campaign(
            campaign, bundle.tables(), str(path), bundle.engines(), {key: identity}, instead_of=outdated
        )
    pa.default_memory_pool().release_unused()  # tens of megabytes that Arrow would keep for a next file
    return identity if added else None


def _id(path: Path) -> str:
    return file_sha256(path)[:12]
