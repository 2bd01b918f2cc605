"""What the campaign page shows, put together from the store and the report; no Streamlit in here."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from backend import report_figures
from backend.exporters import export
from backend.overview_table import remarks
from backend.pooling import poolable
from backend.report import probe_deltas, report
from backend.report_figures import Panel, at_half
from backend.report_html import html
from backend.store import Store
from backend.tables import count, decimal, interval, percent, points
from backend.wording import bounded

Colour = Literal["red", "orange", "blue", "gray", "green"]


def choices(store: Store) -> dict[str, str]:
    """Names of all campaigns by id, those with pivots first."""
    rows = sorted(store.campaigns(), key=lambda row: not row["pivots"])
    return {row["campaign"]: row["name"] for row in rows}


def asked(values: Sequence[str]) -> list[str]:
    """The campaigns of an address: `campaign=A&campaign=B` or `campaign=A,B`."""
    parts = [part.strip() for value in values for part in value.split(",")]
    return list(dict.fromkeys(part for part in parts if part))


def resolve(store: Store, names: Sequence[str]) -> list[str]:
    """Ids of campaigns given by id or unique name. Raises `UserError` for one that is not there."""
    return list(dict.fromkeys(store.find_campaign(name) for name in names))


def partners(store: Store, campaigns: Sequence[str]) -> list[str]:
    """Ids of campaigns that could join the pool."""
    return poolable(store, campaigns)


def document(store: Store, campaigns: Sequence[str], thresholds: str | None) -> dict[str, Any]:
    """The report with further thresholds, a text like `0.3, 0.6`. Raises `UserError` as `report.report` does."""
    return report(store, campaigns, thresholds=(thresholds or "").replace(",", " ").split())


def panels(store: Store, campaigns: Sequence[str], thresholds: str | None) -> dict[str, Panel]:
    """The figures by key. Drawing a million probes takes a while, so the latest few sets are kept."""
    return _panels(store, tuple(campaigns), thresholds or "", store.revision(campaigns))


@lru_cache(maxsize=8)
def _panels(store: Store, campaigns: tuple[str, ...], thresholds: str, _revision: tuple[Any, ...]) -> dict[str, Panel]:
    told = document(store, campaigns, thresholds)
    return {panel.key: panel for panel in report_figures.panels(told, probe_deltas(store, campaigns))}


def badges(document: Mapping[str, Any]) -> list[tuple[str, str, Colour]]:
    """Label, icon and colour of what a reader should know first."""
    looks: dict[str, tuple[str, Colour]] = {
        "bundled": (":material/inventory_2:", "blue"),
        "imported": (":material/upload_file:", "blue"),
        "cut off": (":material/content_cut:", "red"),
        "running": (":material/play_circle:", "orange"),
    }
    campaigns = zip(document["origins"], document["states"], strict=True)
    found = [remark for origin, state in campaigns for remark in remarks(origin, document["final"], state)]
    shown = [(remark, *looks.get(remark, (":material/info:", "orange"))) for remark in dict.fromkeys(found)]
    if len(document["campaigns"]) > 1:
        shown.insert(0, (f"pool of {len(document['campaigns'])}", ":material/join:", "gray"))
    states = [check["status"] for check in document["checks"]]
    verdicts: list[tuple[str, str, str, Colour]] = [
        ("fail", "failed", ":material/cancel:", "red"),
        ("unknown", "unknown", ":material/help:", "gray"),
        ("pass", "passed", ":material/check_circle:", "green"),
    ]
    for status, word, icon, colour in verdicts:
        number = states.count(status)
        if number:
            shown.append((f"{number} {'check' if number == 1 else 'checks'} {word}", icon, colour))
    return shown


def figures_of_merit(document: Mapping[str, Any]) -> list[tuple[str, str, str | None, str]]:
    """The numbers on top: label, value, interval and what they mean; each rate beside its floor."""
    refeed, replica, half = document["refeed"], document["replica"], at_half(document["jaccard"])
    threshold = f"|Â| ≥ {half['threshold']:g}" if half else "|Â| ≥ 0.5"
    eligible = f"of {count(document['eligible'])} eligible pivots"
    return [
        ("Refeed flips", percent(refeed["rate"]), _sure(refeed), f"{refeed['flips']} {eligible}"),
        ("Floor", percent(replica["rate"]), _sure(replica), f"{replica['flips']} {eligible}: noise"),
        (
            "Excess",
            points(document["excess_pp"]),
            _range(document["excess_pp_ci95"], points),
            "Refeed less its floor, in percentage points, with its 95 % interval over problems",
        ),
        (
            f"Jaccard, {threshold}",
            decimal(half["refeed"]["jaccard"] if half else None),
            _range(half["refeed"]["ci95"] if half else None, decimal),
            "Agreement of refeed and exact on which pivots to select",
        ),
        (
            "Its ceiling",
            decimal(half["replica"]["jaccard"] if half else None),
            _range(half["replica"]["ci95"] if half else None, decimal),
            "Agreement of exact with an identical measurement",
        ),
    ]


def _sure(flips: Mapping[str, Any]) -> str:
    bound = bounded(flips)
    return _range(flips["ci95"], percent) if bound is None else bound


def _range(ci95: Sequence[float] | None, form: Any) -> str:
    return "no interval" if ci95 is None else interval(ci95, form)


def html_page(store: Store, document: Mapping[str, Any]) -> str:
    """The report as one HTML page."""
    return html(document, probe_deltas(store, document["campaigns"]))


def has_receipt(document: Mapping[str, Any]) -> bool:
    """Whether the study's receipt can say what these campaigns hold."""
    needed = {"exact", "replica", "refeed"} <= set(document["passes"])
    return bool(needed and document["pivots"] and document["model"] is not None and document["k"] is not None)


def receipt(store: Store, campaign: str) -> bytes:
    """A campaign as the study's receipt."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = export(store, campaign, "receipt", Path(folder))
        return path.read_bytes()
