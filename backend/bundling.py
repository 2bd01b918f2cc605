"""A campaign made small enough to ship: every measurement, but the long lists only where a reader meets them.

A bundle keeps all measurements, pivots and kept rollouts. It leaves out the continuations behind all but some problems,
and the rollouts of problems that the screen turned away, which no page needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from backend.exporters import bundle_metadata, stem_in
from backend.records import Pivot, ProblemRecord, Rollout, TokenText
from backend.shards import from_table, to_table, write_table
from backend.store import Store


def bundle(store: Store, campaign: str, out: Path, *, continuations_of: int) -> Path:
    """Write the campaign's bundle into a folder, with the continuations of that many kept problems."""
    row = store.campaign(campaign)
    stem = stem_in(out, row)
    path = stem.with_name(f"{stem.name}.parquet")
    write_table(path, slim(store.tables(row["campaign"]), continuations_of), bundle_metadata(store, row))
    return path


def slim(tables: Iterable[pa.Table], continuations_of: int) -> Iterator[pa.Table]:
    """The same problems without what a bundle leaves out."""
    left = continuations_of
    for table in tables:
        records = []
        for record in from_table(table, "the store"):
            kept = record.state == "done"
            records.append(_slim(record, rollouts=kept, continuations=kept and left > 0))
            left -= kept
        yield to_table(records)


def _slim(record: ProblemRecord, *, rollouts: bool, continuations: bool) -> ProblemRecord:
    if not rollouts:
        return replace(record, rollouts=[], tokens=[])
    if continuations:
        return record
    found = [replace(one, pivots=[_without_continuations(pivot) for pivot in one.pivots]) for one in record.rollouts]
    return replace(record, rollouts=found, tokens=_used(record.tokens, found))


def _without_continuations(pivot: Pivot) -> Pivot:
    return replace(pivot, measurements=[replace(one, continuations=[]) for one in pivot.measurements])


def _used(tokens: Sequence[TokenText], rollouts: Sequence[Rollout]) -> list[TokenText]:
    ids: set[int] = set()
    for rollout in rollouts:
        ids.update(rollout.prompt_ids, rollout.ids, *rollout.topk_ids, *(pivot.tokens for pivot in rollout.pivots))
    return [token for token in tokens if token.id in ids]
