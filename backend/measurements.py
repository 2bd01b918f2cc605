"""A campaign's measurements as a frame of credits for the statistics.

A campaign has up to millions of measurements, and a page over them has a second: each pass is read by one scan and
put beside its pivots in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from backend.queries import first
from backend.records import PASSES

Connection = duckdb.DuckDBPyConnection
Column = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]
"""Values, and where there is none."""


class _Pivots:
    """A campaign's planned pivots, with a lookup from the store's pivot ids to rows.

    Joining in numpy: the ids are nearly consecutive, so a lookup is one indexing where SQL would hash millions of rows.
    """

    def __init__(self, cursor: Connection, campaign: str) -> None:
        self.cursor, self.campaign = cursor, campaign
        query = 'SELECT id, problem, rollout, position, margin FROM "pivot" WHERE campaign = ? AND planned'
        self.table = cursor.sql(query, params=[campaign]).to_arrow_table()
        self.ids = self.table["id"].to_numpy()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        values = self.table[name]
        return np.asarray(values.to_numpy())

    def align(self, pass_: str, columns: str) -> list[Column]:
        """The pass's columns in the pivots' order."""
        query = f"""
            SELECT pivot_id, {columns} FROM measurement WHERE campaign = ? AND run = 'campaign' AND pass = ?
        """  # noqa: S608 (our own column names)
        found = self.cursor.sql(query, params=[self.campaign, pass_]).to_arrow_table()
        ids = found["pivot_id"].to_numpy()
        read = [_column(found[name]) for name in found.column_names[1:]]
        if np.array_equal(ids, self.ids):  # as a campaign leaves them
            return read
        target = self._rows(ids)
        planned = target >= 0
        aligned = []
        for values, missing in read:
            scattered, lacking = np.zeros(len(self), dtype=values.dtype), np.ones(len(self), dtype=np.bool_)
            scattered[target[planned]], lacking[target[planned]] = values[planned], missing[planned]
            aligned.append((scattered, lacking))
        return aligned

    def _rows(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Each id's row here, −1 where it is none of these pivots."""
        if not len(self):
            return np.full(len(ids), -1)
        least = int(self.ids.min())
        row = np.full(int(self.ids.max()) - least + 1, -1, dtype=np.int64)
        row[self.ids - least] = np.arange(len(self))
        inside = (ids >= least) & (ids < least + len(row))
        return np.where(inside, row[np.where(inside, ids - least, 0)], -1)


def _column(column: pa.ChunkedArray) -> Column:
    whole = column.combine_chunks()
    if not whole.null_count:
        return whole.to_numpy(zero_copy_only=False), np.zeros(len(whole), dtype=np.bool_)
    zero = pa.scalar(False) if pa.types.is_boolean(whole.type) else pa.scalar(0, whole.type)
    missing = whole.is_null().to_numpy(zero_copy_only=False)
    return whole.fill_null(zero).to_numpy(zero_copy_only=False), missing


def credits(cursor: Connection, campaigns: Sequence[str]) -> pd.DataFrame:
    frames = [_credits_of(cursor, campaign) for campaign in dict.fromkeys(campaigns)]
    if len(frames) == 1:
        return frames[0]
    pooled = pd.concat([frame.drop(columns=["campaign", "problem"]) for frame in frames], ignore_index=True)
    for place, name in enumerate(("campaign", "problem")):
        pooled.insert(place, name, pd.api.types.union_categoricals([frame[name] for frame in frames]))
    return pooled


def _credits_of(cursor: Connection, campaign: str) -> pd.DataFrame:
    (planned,) = first(cursor, "SELECT passes FROM campaign WHERE campaign = ?", [campaign]) or ([],)
    pivots = _Pivots(cursor, campaign)
    problem = pivots.table["problem"].combine_chunks().dictionary_encode()
    margin = pivots.column("margin").astype(np.float64)
    columns: dict[str, Any] = {
        "campaign": pd.Categorical.from_codes(np.zeros(len(pivots), dtype=np.int8), [campaign]),
        "problem": pd.Categorical.from_codes(problem.indices.to_numpy(), problem.dictionary.to_pylist()),
        "rollout": pivots.column("rollout"),
        "position": pivots.column("position"),
        "margin": _float(margin, ~np.isfinite(margin)),
    }
    k, unknown = np.zeros(len(pivots), dtype=np.int32), np.ones(len(pivots), dtype=np.bool_)
    complete = np.full(len(pivots), bool(planned))
    by_pass: dict[str, Any] = {}
    for name in (name for name in PASSES if name in planned):
        asked, numerator, diverged, delta = pivots.align(name, "k, numerator, probe_diverged, probe_delta")
        complete &= ~numerator[1] & (unknown | (k == asked[0]))
        k = np.where(unknown, asked[0], k)
        unknown &= asked[1]
        by_pass[name] = _integer(*numerator)
        if name != "exact":
            by_pass[f"probe_diverged_{name}"] = pd.arrays.BooleanArray(*diverged)
            by_pass[f"probe_delta_{name}"] = _float(*delta)
    return pd.DataFrame({**columns, "k": _integer(k, unknown), "complete": complete, **by_pass}, copy=False)


def _integer(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(values.astype(np.int32, copy=False), missing)


def _float(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> pd.arrays.FloatingArray:
    return pd.arrays.FloatingArray(np.where(missing, 0.0, values).astype(np.float64, copy=False), missing)
