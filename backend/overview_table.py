"""The overview: one row a configuration, as in the study's main table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from backend.report import report
from backend.report_figures import at_half
from backend.store import Store
from backend.tables import Column, Table
from backend.wording import engine_name, machine

COLUMNS = (
    Column("link", "campaign", help="Opens the campaign's page"),
    Column("name", "name"),
    Column("refeed_rate", "refeed", "percent", "Flips of refeed / eligible"),
    Column("replica_rate", "floor", "percent", "Flips of the replica / eligible: an identical measurement's own noise"),
    Column("excess_pp", "excess", "points", "Refeed less its floor, percentage points"),
    Column("excess_pp_ci95", "95 % interval", "points95", "Percentile bootstrap over problems"),
    Column("checks", "checks", help="What the method rests on: how many failed, else how many were made and passed"),
    Column("eligible", "eligible", "count", "Pivots where exact, replica or refeed has Â ≠ 0"),
    Column("clusters", "problems", "count", "Problems with an eligible pivot: what intervals and tests count"),
    Column("k", "k", "count", "Continuations an arm"),
    Column("model", "model"),
    Column("engine", "engine"),
    Column("dtype", "dtype"),
    Column("attention_backend", "attention"),
    Column("machine", "machine", help="What it was measured on"),
    Column("t_equal_weight", "t", "number", "Of the problems' own excess rates, equal weights"),
    Column("refeed_jaccard", "Jaccard", "decimal", "Refeed–exact at |Â| ≥ 0.5, or the next threshold that k allows"),
    Column("replica_jaccard", "ceiling", "decimal", "Replica–exact at the same threshold"),
    Column("remarks", "remarks"),
)


def overview(store: Store) -> Table:
    """Every campaign with pivots, the largest excess first and undefined ones last."""
    rows = [_row(report(store, [row["campaign"]]), row) for row in store.campaigns() if row["pivots"]]
    rows.sort(key=lambda row: (-(row["excess_pp"] if row["excess_pp"] is not None else -math.inf), row["name"]))
    return Table("overview", "Overview", COLUMNS, rows)


def _row(document: Mapping[str, Any], campaign: Mapping[str, Any]) -> dict[str, Any]:
    half = at_half(document["jaccard"])
    shared = ("model", "dtype", "attention_backend", "k", "eligible", "clusters")
    sure = ("excess_pp", "excess_pp_ci95", "t_equal_weight")
    return {
        **{key: document[key] for key in (*shared, *sure)},
        "engine": _each(engine_name, document) or document["engine"],
        "machine": _each(machine, document),
        "checks": _verdict([check["status"] for check in document["checks"]]),
        "campaign": campaign["campaign"],
        "name": campaign["name"],
        # The name rides along behind the # for the link's text.
        "link": f"campaign?campaign={quote(campaign['campaign'])}#{quote(campaign['name'], safe='')}",
        "refeed_rate": document["refeed"]["rate"],
        "replica_rate": document["replica"]["rate"],
        "refeed_jaccard": half and half["refeed"]["jaccard"],
        "replica_jaccard": half and half["replica"]["jaccard"],
        "remarks": ", ".join(remarks(campaign["origin"], campaign["final"], campaign["state"])) or None,
    }


def _each(fact: Callable[[Mapping[str, Any]], str | None], document: Mapping[str, Any]) -> str | None:
    """A fact of the engines that measured, each value once."""
    return ", ".join(dict.fromkeys(filter(None, map(fact, document["engines"].values())))) or None


def _verdict(states: Sequence[str]) -> str:
    """What failed, or else what passed and what could not be looked at."""
    failed, unknown, passed = (states.count(status) for status in ("fail", "unknown", "pass"))
    if failed:
        return f"{failed} failed"
    return f"{passed} passed, {unknown} unknown" if unknown else f"{passed} passed"


def remarks(origin: str, final: bool | None, state: str) -> list[str]:
    """What a reader should know of a campaign before its numbers: where it comes from and whether it is whole."""
    found = {"bundled": ["bundled"], "import": ["imported"]}.get(origin, [])
    cut = ["cut off"] if final is False else []
    return [*found, *cut, *([] if state in {"done", "imported"} else [state])]
