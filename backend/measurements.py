"""A campaign's measurements as frames: credits for the statistics, instrument readings for the checks.

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

from backend.queries import first, rows
from backend.records import PASSES

Connection = duckdb.DuckDBPyConnection

READINGS = {
    "rows": "measurements of planned pivots in the campaign's own run",
    "requests": "engine requests, where counted",
    "cache_misses": "requests whose cached tokens differed from what was expected",
    "cache_misses_unknown": "measurements where that was not looked at",
    "warm_requests": "requests that read any cached token",
    "warm_requests_unknown": "measurements where that was not looked at",
    "preemptions": "preemptions counted",
    "preemptions_unknown": "measurements where the engine has no such counter",
    "logprobs_unequal": "measurements whose resumed top-k differs from the rollout's record",
    "logprobs_unknown": "measurements where that was not looked at",
    "logprobs_max_difference": "largest such difference in nats, NA when none was looked at",
    "seeds_unequal": "measurements whose seeds differ from exact's of the same pivot",
    "seeds_unknown": "measurements where either side's seeds are not known",
    "outputs_unequal": "measurements whose outputs' hash differs from exact's",
    "outputs_unknown": "measurements where either hash is not known",
    "seconds": "wall time of the engine calls, each call's once, NA when unknown",
    "engines": "digests of the engine facts, sorted; None among them when some are unknown",
    "provenances": "the provenances, sorted, None among them likewise",
}
"""The columns of `readings`, after `pass`."""


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


_SUMS = """
    SELECT pass, count(*) AS rows, coalesce(sum(requests), 0) AS requests,
        coalesce(sum(cache_misses), 0) AS cache_misses, count(*) FILTER (cache_misses IS NULL) AS cache_misses_unknown,
        coalesce(sum(warm_requests), 0) AS warm_requests,
        count(*) FILTER (warm_requests IS NULL) AS warm_requests_unknown,
        coalesce(sum(preemptions), 0) AS preemptions, count(*) FILTER (preemptions IS NULL) AS preemptions_unknown,
        count(*) FILTER (NOT logprobs_equal) AS logprobs_unequal,
        count(*) FILTER (logprobs_equal IS NULL) AS logprobs_unknown,
        max(logprobs_max_difference) AS logprobs_max_difference,
        list(DISTINCT engine ORDER BY engine) AS engines, bool_or(engine IS NULL) AS engine_unknown,
        list(DISTINCT provenance ORDER BY provenance) AS provenances, bool_or(provenance IS NULL) AS provenance_unknown
    FROM measurement m WHERE campaign = ? AND run = 'campaign' GROUP BY pass
"""

_SECONDS = """
    SELECT pass, sum(seconds) AS seconds FROM (
        SELECT DISTINCT pass, started, seconds FROM measurement WHERE campaign = ? AND run = 'campaign'
    ) GROUP BY pass
"""


def readings(cursor: Connection, campaign: str) -> pd.DataFrame:
    sums = {row.pop("pass"): row for row in rows(cursor, _SUMS, [campaign])}
    seconds = {row["pass"]: row["seconds"] for row in rows(cursor, _SECONDS, [campaign])}
    pivots = _Pivots(cursor, campaign)
    # 64 bits of each SHA-256 stand for it here: they decide equality as well and are eight times smaller.
    hashes = "hash(seeds_sha256), seeds_sha256 IS NULL, hash(output_sha256), output_sha256 IS NULL"
    own = {name: pivots.align(name, hashes) for name in sums}
    found = []
    for name in (name for name in PASSES if name in sums):
        row = {"pass": name, **sums[name], "seconds": seconds[name]}
        for kind in ("engine", "provenance"):
            row[f"{kind}s"] = ([None] if row.pop(f"{kind}_unknown") else []) + [v for v in row[f"{kind}s"] or [] if v]
        for kind, start in (("seeds", 0), ("outputs", 2)):
            row |= _compared(kind, own[name][start : start + 2], own.get("exact", own[name])[start : start + 2])
        found.append(row)
    return pd.DataFrame(found, columns=["pass", *READINGS]).set_index("pass")


def _compared(kind: str, mine: list[Any], exact: list[Any]) -> dict[str, int]:
    here = ~np.ma.getmaskarray(mine[0])
    known = here & ~np.ma.getmaskarray(exact[0]) & ~mine[1].filled(True) & ~exact[1].filled(True)
    return {
        f"{kind}_unequal": int((mine[0].data[known] != exact[0].data[known]).sum()),
        f"{kind}_unknown": int((here & ~known).sum()),
    }
