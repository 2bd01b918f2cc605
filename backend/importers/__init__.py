"""Other people's rollouts and receipts, and our own exports, into the store. A file comes in whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from backend.errors import UserError
from backend.files import file_sha256
from backend.importers.naming import free_name
from backend.importers.parquet import Bundle
from backend.importers.reading import MAX_BYTES, content_id, parse_object, read_bytes
from backend.importers.receipts import read_receipt
from backend.importers.rollouts import read_rollout
from backend.ingest import Campaign
from backend.records import ProblemRecord
from backend.shards import to_table
from backend.store import Store

__all__ = ["MAX_BYTES", "Imported", "free_name", "import_path"]

_PARQUET_MAGIC = b"PAR1"


class Imported(TypedDict):
    """What became of one file."""

    path: str
    campaign: str
    """Hash of the file's content: the same file again adds nothing."""
    pivots: int
    rollouts: int


def import_path(store: Store, path: Path) -> list[Imported]:
    """Import a file, or each JSON and Parquet file of a folder.

    Raises `UserError`, naming the file and the field, for one that is no receipt, rollout or export.
    """
    if not path.is_dir():
        return [_import_file(store, path)]
    files = sorted(file for file in path.iterdir() if file.suffix in (".json", ".parquet"))
    if not files:
        raise UserError(f"{path}: is a folder without JSON or Parquet files; give receipts, rollouts or exports")
    return [_import_file(store, file) for file in files]


def _import_file(store: Store, path: Path) -> Imported:
    if _is_parquet(path):
        campaign = _import_bundle(store, path)
    else:
        campaign = _import_json(store, path)
    row = store.campaign(campaign)
    return Imported(path=str(path), campaign=campaign, pivots=row["pivots"], rollouts=row["rollouts"])


def _is_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix == ".parquet" or file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a file that exists") from None


def _import_bundle(store: Store, path: Path) -> str:
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"{path}: has {path.stat().st_size:,} bytes; a file to import has at most {MAX_BYTES:,}")
    with Bundle(path) as bundle:
        campaign = file_sha256(path)[:12]
        name = free_name(store, bundle.facts.campaign.name, campaign)
        store.add_campaign(bundle.campaign(campaign, name, "import"), bundle.tables(), str(path), bundle.engines())
    return campaign


def _import_json(store: Store, path: Path) -> str:
    content = read_bytes(path)
    campaign = content_id(content)
    if any(row["campaign"] == campaign for row in store.campaigns()):
        return campaign
    data = parse_object(content, str(path))
    row: Campaign
    records: Iterable[ProblemRecord]
    if "pivots" in data:
        row, records = read_receipt(data, str(path), campaign, free_name(store, path.stem, campaign))
    elif "tokens" in data:
        row, records = read_rollout(data, str(path), campaign, free_name(store, path.stem, campaign))
    else:
        raise UserError(f"{path}: has neither `pivots` (a receipt) nor `tokens` (a rollout); give one of the two")
    store.add_campaign(row, [to_table(records)], str(path))
    return campaign
