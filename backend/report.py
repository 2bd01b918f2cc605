"""One campaign, or a pool of several, as the report document: every number with its floor, and the checks.

A document is plain data, ready for JSON. What is undefined is None, never 0: rates over nothing, an excess without a
replica, an interval over one problem. Rates are fractions, `_pp` is percentage points, credits are in units of Â.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from backend import checks, credit, inference, selection
from backend.checks import Reading
from backend.credit import Conditioned, Credits, Flips, Ints, Probe
from backend.errors import UserError
from backend.inference import STANDARD, Floats, Statistic
from backend.pooling import refuse_unpoolable
from backend.records import PASSES
from backend.selection import Overlap, parse_threshold
from backend.store import Store

MARGIN = 0.02
"""The difference of credits that would not matter, in units of Â."""

_INSTRUMENTS: dict[str, Callable[[Reading], bool | None]] = {
    "cache_missed": lambda one: None if one.cache_misses is None else one.cache_misses > 0,
    "cache_read": lambda one: None if one.warm_requests is None else one.warm_requests > 0,
    "preempted": lambda one: None if one.preemptions is None else one.preemptions > 0,
    "logprobs_off": lambda one: None if one.logprobs_equal is None else not one.logprobs_equal,
}

Clusters = list[tuple[str | None, str]]
"""By cluster code: the problem set and the problem."""


def reports(
    store: Store,
    campaigns: Sequence[str],
    *,
    pool: bool = False,
    thresholds: Sequence[str] = (),
    margin: float = MARGIN,
) -> list[dict[str, Any]] | dict[str, Any]:
    """A report for each campaign (id or unique name), or with `pool` one over all of them. Errors as of `report`."""
    if not campaigns:
        raise UserError("no campaign is named; give at least one id or name")
    if pool:
        return report(store, campaigns, thresholds=thresholds, margin=margin)
    return [report(store, [campaign], thresholds=thresholds, margin=margin) for campaign in campaigns]


def report(
    store: Store, campaigns: Sequence[str], *, thresholds: Sequence[str] = (), margin: float = MARGIN
) -> dict[str, Any]:
    """The report of one campaign, or of several as a pool; ids or unique names. Treat it as read-only, it is kept.

    `thresholds` are decimals from 0 to 1 as text, reported beside the attainable ones; `margin` is the half-width of
    the equivalence test in units of Â. Raises `UserError` for an unknown campaign, a threshold or margin out of range,
    and campaigns that cannot be pooled.
    """
    ids = tuple(store.find_campaign(campaign) for campaign in campaigns)
    asked = tuple(sorted({parse_threshold(text) for text in thresholds}))
    if not 0 < margin < math.inf:
        raise UserError(f"the equivalence margin is {margin}; it must be a number above 0, such as {MARGIN}")
    refuse_unpoolable(store, ids)
    return dict(_report(store, ids, asked, margin, store.revision(ids)))


def probe_deltas(store: Store, campaigns: Sequence[str]) -> dict[str, Floats]:
    """By pass, float64: the larger of the two arms' |first-token logprob difference| to exact, in nats, ≥ 0.

    One a complete pivot whose probe was made; `campaigns` are ids.
    """
    frame = store.credits(campaigns)
    frame = frame[frame["complete"]]
    names = [column.removeprefix("probe_delta_") for column in frame.columns if column.startswith("probe_delta_")]
    found = {name: _present(frame[f"probe_delta_{name}"], np.float64) for name in names}
    return {name: deltas for name, deltas in found.items() if deltas.size}


@lru_cache(maxsize=256)
def _report(
    store: Store,
    campaigns: tuple[str, ...],
    thresholds: tuple[Fraction, ...],
    margin: float,
    _revision: tuple[Any, ...],
) -> dict[str, Any]:
    rows = [store.campaign(campaign) for campaign in campaigns]
    frame = store.credits(campaigns)
    codes, clusters = _clusters(store, rows, frame)
    credits = _credits(rows[0], frame, codes)
    passes = [name for name in rows[0]["passes"] if name != "exact"]
    readings = [reading for campaign in campaigns for reading in store.check_readings(campaign)]
    intervals = _intervals(credits)
    return {
        **_facts(store, rows, {reading.engine for reading in readings}),
        "pivots": len(frame),
        "incomplete": int((~frame["complete"]).sum()),
        "problems": int(np.count_nonzero(np.bincount(codes))),
        "eligible": int(np.count_nonzero(credits.eligible)),
        "clusters": credits.clusters,
        **{name: _flips(credits, name, intervals) for name in dict.fromkeys(["refeed", "replica", *passes])},
        **_refeed_floor(credits, intervals),
        **_excess(credits, intervals),
        "conditioned_on_exact": _conditioned(credits, intervals),
        "bias": _plain(asdict(inference.bias(credit.difference(credits), margin)))
        if "refeed" in credits.passes
        else {"mean": None, "ci95": None, "margin": margin, "p": None, "equivalent": None},
        "difference": _differences(credits),
        "jaccard": _jaccard(credits, thresholds) if rows[0]["k"] is not None else [],
        "probe": {name: _probe(frame, name) for name in dict.fromkeys(["refeed", "replica", *passes])},
        "bootstrap": asdict(STANDARD),
        "checks": checks.as_documents(checks.checks(readings)),
        "readings": _readings(readings),
        "per_problem": _per_problem(credits, clusters),
    }


def _facts(store: Store, rows: Sequence[Mapping[str, Any]], used: set[str | None]) -> dict[str, Any]:
    first = rows[0]
    finals = [row["final"] for row in rows]
    return {
        "campaigns": [row["campaign"] for row in rows],
        "names": [row["name"] for row in rows],
        **{key: first[key] for key in ("model", "engine", "dtype", "attention_backend", "batch_invariant", "k")},
        "passes": list(first["passes"]),
        "final": False if False in finals else True if all(finals) else None,
        "origins": [row["origin"] for row in rows],
        "states": [row["state"] for row in rows],
        "settings": [row["settings"] for row in rows],
        "engines": store.engine_facts(digest for digest in used if digest is not None),
    }


def _clusters(store: Store, rows: Sequence[Mapping[str, Any]], frame: pd.DataFrame) -> tuple[Ints, Clusters]:
    """The cluster code of each row of `frame`, and what the codes stand for: a problem of one set has one code."""
    by_campaign, by_problem = frame["campaign"].cat, frame["problem"].cat
    places = {name: place for place, name in enumerate(by_problem.categories)}
    table = np.full((len(by_campaign.categories), len(places)), -1, dtype=np.int64)
    codes: dict[tuple[str | None, str], int] = {}
    for line, campaign in enumerate(by_campaign.categories):
        for problem in store.problems(campaign):
            if problem["problem"] in places:
                key = (problem["source"], problem["problem"])
                table[line, places[problem["problem"]]] = codes.setdefault(key, len(codes))
    return table[by_campaign.codes.to_numpy(), by_problem.codes.to_numpy()], list(codes)


def _credits(row: Mapping[str, Any], frame: pd.DataFrame, codes: Ints) -> Credits:
    k = row["k"] or 1
    kept = (frame["complete"] & (frame["k"] == k).fillna(False)).to_numpy(dtype=np.bool_)
    names = [name for name in row["passes"] if name in frame.columns]
    passes = {name: frame[name].to_numpy(dtype=np.int64, na_value=0)[kept] for name in names}
    return Credits(k, codes[kept], passes or {"exact": np.zeros(0, dtype=np.int64)})


def _intervals(credits: Credits) -> dict[str, Any]:
    """Intervals of the rates and the excesses by name, from one set of resamples."""
    questions: dict[str, Statistic] = {
        name: inference.ratio_statistic(credit.flip_rate(credits, name)) for name in credits.passes if name != "exact"
    }
    if {"refeed", "refeed_replica"} <= credits.passes.keys():
        against = credit.flip_rate(credits, "refeed_replica", against="refeed")
        questions["refeed_floor"] = inference.ratio_statistic(against)
    excess = credit.excess(credits)
    if excess is not None:
        questions["excess_pp"] = inference.ratio_statistic(excess, scale=100)
        nonzero = credits.passes["exact"] != 0
        refeed, replica = (
            credits.count_by_problem(credit.flipped(credits, name) & nonzero) for name in ("refeed", "replica")
        )
        questions["conditioned"] = inference.counts_statistic(
            refeed - replica, credits.count_by_problem(nonzero), scale=100
        )
    return dict(zip(questions, inference.percentile_intervals(list(questions.values())), strict=True))


def _flips(credits: Credits, name: str, intervals: Mapping[str, Any]) -> dict[str, Any]:
    if name not in credits.passes:
        return {**_nulls(Flips), **dict.fromkeys(("ci95", "problems_upper95"))}
    return _counted(credits, credit.flip_counts(credits, name), intervals[name])


def _counted(credits: Credits, counts: Flips, ci95: Any) -> dict[str, Any]:
    bound = inference.none_bound(counts.flips, credits.clusters)
    return dict(_plain({**asdict(counts), "ci95": ci95, "problems_upper95": bound}))


def _refeed_floor(credits: Credits, intervals: Mapping[str, Any]) -> dict[str, Any]:
    """Refeed's own noise, where it was measured twice."""
    if "refeed_floor" not in intervals:
        return {}
    counts = credit.flip_counts(credits, "refeed_replica", against="refeed")
    return {"refeed_floor": _counted(credits, counts, intervals["refeed_floor"])}


def _excess(credits: Credits, intervals: Mapping[str, Any]) -> dict[str, Any]:
    parts = credit.excess(credits)
    tests = {
        "mean_excess_equal_weight": inference.mean_equal_weight,
        "t_equal_weight": inference.t_equal_weight,
        "t_cr1": inference.t_cr1,
        "t_jackknife": inference.t_jackknife,
        "sign_flip_p": inference.sign_flip_p,
    }
    return {
        "excess_pp": credit.excess_pp(credits),
        "excess_pp_ci95": _plain(intervals.get("excess_pp")),
        **{name: None if parts is None else test(parts) for name, test in tests.items()},
    }


def _conditioned(credits: Credits, intervals: Mapping[str, Any]) -> dict[str, Any]:
    found: Conditioned = credit.conditioned_on_exact(credits)
    rates = {
        f"{name}_rate": None if flips is None else credit.ratio(flips, found.n)
        for name, flips in (("refeed", found.refeed_flips), ("replica", found.replica_flips))
    }
    return {**asdict(found), **rates, "excess_pp_ci95": _plain(intervals.get("conditioned"))}


def _differences(credits: Credits) -> list[dict[str, int]]:
    """Eligible pivots by k · (Â_refeed − Â_exact), ascending."""
    if "refeed" not in credits.passes:
        return []
    moved = (credits.passes["refeed"] - credits.passes["exact"])[credits.eligible]
    values, counts = np.unique(moved, return_counts=True)
    return [{"numerator": int(value), "pivots": int(count)} for value, count in zip(values, counts, strict=True)]


def _jaccard(credits: Credits, thresholds: Sequence[Fraction]) -> list[dict[str, Any]]:
    return [
        {
            "threshold": float(row.threshold),
            **{name: _overlap(getattr(row, name)) for name in selection.PAIRS},
            "exact_size": row.exact_size,
            "gap_ci95": _plain(row.gap_ci95),
        }
        for row in selection.selections(credits, thresholds)
    ]


def _overlap(overlap: Overlap | None) -> dict[str, Any]:
    return _nulls(Overlap) if overlap is None else dict(_plain(asdict(overlap)))


def _probe(frame: pd.DataFrame, name: str) -> dict[str, Any]:
    """The probe's summary over complete pivots. A receipt can hold its verdicts without its deltas, and otherwise."""
    if f"probe_delta_{name}" not in frame.columns:
        return {**_nulls(Probe), "pivots": None}
    complete = frame[frame["complete"]]
    diverged = _present(complete[f"probe_diverged_{name}"], np.bool_)
    deltas = _present(complete[f"probe_delta_{name}"], np.float64)
    summary = credit.probe_summary(np.zeros(len(deltas), dtype=np.bool_), deltas)
    divergence = credit.ratio(int(np.count_nonzero(diverged)), len(diverged))
    return {**asdict(summary), "divergence": divergence, "pivots": max(len(diverged), len(deltas)) or None}


def _readings(readings: Sequence[Reading]) -> list[dict[str, Any]]:
    """By pass, how many measurements each instrument found wrong, and how many it did not look at."""
    table = []
    for name in (name for name in PASSES if any(reading.pass_ == name for reading in readings)):
        own = [reading for reading in readings if reading.pass_ == name]
        row: dict[str, Any] = {"pass": name, "measurements": sum(reading.rows for reading in own)}
        for column, wrong in _INSTRUMENTS.items():
            verdicts = [(wrong(reading), reading.rows) for reading in own]
            unread = sum(rows for verdict, rows in verdicts if verdict is None)
            wrong_ones = sum(rows for verdict, rows in verdicts if verdict)
            row |= {column: None if unread == row["measurements"] else wrong_ones, f"{column}_unknown": unread}
        table.append(row)
    return table


def _present(column: pd.Series, dtype: Any) -> Any:
    return column.dropna().to_numpy(dtype=dtype)


def _per_problem(credits: Credits, clusters: Clusters) -> list[dict[str, Any]]:
    """One row a problem with a complete pivot; numbered problems in the order of their numbers."""
    columns = {name: column.tolist() for name, column in credit.problem_table(credits).items()}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    table = []
    for row in rows:
        source, problem = clusters[row.pop("cluster")]
        refeed, replica, eligible = row.get("refeed_flips"), row.get("replica_flips"), row["eligible"]
        excess = None if refeed is None or replica is None else credit.ratio(100 * (refeed - replica), eligible)
        table.append({"problem": problem, "set": source, **row, "excess_pp": excess})
    return sorted(table, key=_natural)


def _natural(row: Mapping[str, Any]) -> tuple[Any, ...]:
    number = row["problem"].isdecimal()
    return (row["set"] or "", not number, int(row["problem"]) if number else 0, row["problem"])


def _nulls(kind: Any) -> dict[str, Any]:
    return dict.fromkeys(field.name for field in fields(kind))


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
