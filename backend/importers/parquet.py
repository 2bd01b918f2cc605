"""Our own Parquet export: a bundle, read back row for row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, Field

from backend.errors import UserError
from backend.importers.reading import validate
from backend.ingest import Campaign, Origin
from backend.records import Pass
from backend.shards import metadata_of, open_table, row_groups


class BundleCampaign(BaseModel):
    """The campaign's facts in a bundle's footer; see `ingest.Campaign`."""

    name: Annotated[str, Field(min_length=1)]
    model: str | None
    engine: str | None
    dtype: str | None
    k: Annotated[int, Field(ge=1)] | None
    batch_invariant: bool | None
    attention_backend: str | None
    passes: list[Pass]
    settings: dict[str, Any]
    final: bool | None


class BundleMetadata(BaseModel):
    """What a bundle's footer holds."""

    campaign: BundleCampaign
    engines: dict[str, dict[str, Any]]
    """Engine facts by digest."""


class Bundle:
    """An open bundle. Raises `UserError` for a file that is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: pq.ParquetFile = open_table(path)
        try:
            self.facts = _facts(self.file, path)
        except UserError:
            self.file.close()
            raise

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def campaign(self, campaign: str, name: str | None, origin: Origin) -> Campaign:
        """The row for the store."""
        facts = self.facts.campaign.model_dump()
        facts["name"] = name or facts["name"]
        return Campaign(campaign=campaign, origin=origin, state="done" if origin == "bundled" else "imported", **facts)

    def engines(self) -> dict[str, str]:
        """Engine facts by digest, as JSON documents."""
        return {digest: json.dumps(info, sort_keys=True) for digest, info in self.facts.engines.items()}

    def tables(self) -> Iterator[pa.Table]:
        """The rows, some at a time. Raises `UserError` for a damaged file, one without rows, and a problem twice."""
        seen: set[str] = set()
        for table in row_groups(self.file, self.path):
            problems = table["problem"].to_pylist()
            if len(seen.union(problems)) < len(seen) + len(problems):
                raise UserError(f"{self.path}: holds a problem twice; each may be there once")
            seen.update(problems)
            yield table
        if not seen:
            raise UserError(f"{self.path}: holds no problem; an export has at least one")


def _facts(file: pq.ParquetFile, path: Path) -> BundleMetadata:
    metadata = metadata_of(file)
    if "campaign" not in metadata:
        raise UserError(f"{path}: is one problem's shard of a run, not an export; export the campaign first")
    return validate(BundleMetadata, metadata, f"{path}, footer")
