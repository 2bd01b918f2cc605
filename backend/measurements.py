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

from backend.queries import first
from backend.records import PASSES

Connection = duckdb.DuckDBPyConnection


class _Pivots:
    """A campaign's planned pivots, with a lookup from the store's pivot ids to rows.

    Joining in numpy: the ids are nearly consecutive, so a lookup is one indexing where SQL would hash millions of rows.
    """

    def __init__(self, cursor: Connection, campaign: str) -> None:
        self.cursor, self.campaign = cursor, campaign
        query = 'SELECT id, problem, rollout, position, margin FROM "pivot" WHERE campaign = ? AND planned'
        self.table = cursor.sql(query, params=[campaign]).to_arrow_table()
        ids = self.table["id"].to_numpy()
        self.first = int(ids.min()) if len(ids) else 0
        self.row = np.full(int(ids.max()) - self.first + 1 if len(ids) else 0, -1, dtype=np.int64)
        self.row[ids - self.first] = np.arange(len(ids))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        values = self.table[name]
        return np.asarray(values.to_numpy())

    def align(self, pass_: str, columns: str) -> list[np.ma.MaskedArray[Any, Any]]:
        """The pass's columns in the pivots' order, masked where there is no value."""
        query = f"""
            SELECT pivot_id, {columns} FROM measurement WHERE campaign = ? AND run = 'campaign' AND pass = ?
        """  # noqa: S608 (our own column names)
        found = self.cursor.execute(query, [self.campaign, pass_]).fetchnumpy()
        at = np.asarray(found.pop("pivot_id"), dtype=np.int64) - self.first
        inside = (at >= 0) & (at < len(self.row))
        target = np.where(inside, self.row[np.where(inside, at, 0)], -1) if len(self.row) else np.full(len(at), -1)
        planned = target >= 0
        aligned = []
        for values in found.values():
            column = np.ma.masked_all(len(self), dtype=values.dtype)
            column[target[planned]] = values[planned]
            aligned.append(column)
        return aligned


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
    columns: dict[str, Any] = {
        "campaign": pd.Categorical.from_codes(np.zeros(len(pivots), dtype=np.int8), [campaign]),
        "problem": pd.Categorical.from_codes(problem.indices.to_numpy(), problem.dictionary.to_pylist()),
        "rollout": pivots.column("rollout"),
        "position": pivots.column("position"),
        "margin": _float(np.ma.masked_invalid(pivots.column("margin").astype(np.float64))),
    }
    k = np.ma.masked_all(len(pivots), dtype=np.int32)
    complete = np.full(len(pivots), bool(planned))
    by_pass: dict[str, Any] = {}
    for name in (name for name in PASSES if name in planned):
        asked, numerator, diverged, delta = pivots.align(name, "k, numerator, probe_diverged, probe_delta")
        complete &= ~np.ma.getmaskarray(numerator) & (np.ma.getmaskarray(k) | (k.data == asked.data))
        k = np.ma.where(np.ma.getmaskarray(k), asked, k)
        by_pass[name] = _integer(numerator)
        if name != "exact":
            by_pass[f"probe_diverged_{name}"] = pd.arrays.BooleanArray(
                np.asarray(diverged.data, dtype=bool), np.ma.getmaskarray(diverged).copy()
            )
            by_pass[f"probe_delta_{name}"] = _float(delta)
    return pd.DataFrame({**columns, "k": _integer(k), "complete": complete, **by_pass}, copy=False)


def _integer(values: np.ma.MaskedArray[Any, Any]) -> pd.arrays.IntegerArray:
    mask = np.ma.getmaskarray(values).copy()
    return pd.arrays.IntegerArray(np.where(mask, 0, values.data).astype(np.int32), mask)


def _float(values: np.ma.MaskedArray[Any, Any]) -> pd.arrays.FloatingArray:
    mask = np.ma.getmaskarray(values).copy()
    return pd.arrays.FloatingArray(np.where(mask, 0.0, values.data).astype(np.float64), mask)
