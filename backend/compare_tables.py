"""What a comparison finds as tables: the differences of two campaigns, and the flips by place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from backend.binning import Bin, BinFlips
from backend.comparing import Difference
from backend.inference import Interval
from backend.tables import UNDEFINED, Column, Table, decimal, percent, points

Form = Callable[[Any], str]


def differences_table(first: str, second: str, found: Sequence[Difference]) -> Table:
    """The differences of two campaigns as numbers: what a download holds."""
    return Table(
        "differences",
        f"{second} against {first}",
        (
            Column("quantity", "quantity"),
            Column("unit", "unit"),
            Column("first", first, "number"),
            Column("second", second, "number"),
            Column("difference", "difference", "number"),
            Column("low", "95 % low", "number"),
            Column("high", "95 % high", "number"),
        ),
        [
            {
                "quantity": one.label,
                "unit": "pp" if one.kind == "points" else None,
                "first": one.first,
                "second": one.second,
                "difference": one.difference,
                "low": one.ci95 and one.ci95[0],
                "high": one.ci95 and one.ci95[1],
            }
            for one in found
        ],
    )


def differences_beside(first: str, second: str, found: Sequence[Difference]) -> list[dict[str, str]]:
    """The same as people read it; a difference whose interval leaves out 0 is in bold."""
    rows = []
    for one in found:
        if one.first is None and one.second is None:
            continue
        value, moved = (_percentage, points) if one.kind == "points" else (decimal, decimal)
        text = signed(one.difference, moved)
        rows.append(
            {
                "quantity": one.label,
                first: value(one.first),
                second: value(one.second),
                "difference": f"**{text}**" if one.clear else text,
                "95 % interval": signed_range(one.ci95, moved),
            }
        )
    return rows


def _percentage(value: float | None) -> str:
    return percent(None if value is None else value / 100)


def signed(value: float | None, form: Form) -> str:
    """A difference with its sign, unless it reads 0."""
    text = form(value)
    return f"+{text}" if value is not None and value > 0 and any(digit in text for digit in "123456789") else text


def signed_range(ci95: Interval | None, form: Form) -> str:
    """An interval of a difference: −1.9 to +17.4 pp."""
    if ci95 is None:
        return UNDEFINED
    low, high = (signed(end, form) for end in ci95)
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}')} to {high}" if unit else f"{low} to {high}"


def bin_label(one: Bin) -> str:
    """A bin as an axis shows it: whole positions, or nats."""
    if one.high is None:
        return f"≥ {one.low:g}"
    if isinstance(one.low, int):
        return f"{one.low}" if one.high == one.low + 1 else f"{one.low}–{int(one.high) - 1}"
    return f"{one.low:g}–{one.high:g}"


def places_table(
    key: str, title: str, bins: Sequence[Bin], campaigns: Sequence[tuple[str, Sequence[BinFlips]]]
) -> Table:
    """A row a bin and campaign: its flips, its floor and their intervals."""
    rows = [
        {
            "bin": bin_label(one),
            "campaign": name,
            "pivots": flips.pivots,
            "eligible": flips.eligible,
            "refeed": flips.refeed and flips.refeed.flips,
            "replica": flips.replica and flips.replica.flips,
            "refeed_rate": flips.refeed and flips.refeed.rate,
            "refeed_ci95": flips.refeed_ci95,
            "replica_rate": flips.replica and flips.replica.rate,
            "replica_ci95": flips.replica_ci95,
        }
        for index, one in enumerate(bins)
        for name, found in campaigns
        for flips in [found[index]]
    ]
    return Table(
        key,
        title,
        (
            Column("bin", title),
            Column("campaign", "campaign"),
            Column("pivots", "pivots", "count"),
            Column("eligible", "eligible", "count"),
            Column("refeed", "refeed flips", "count"),
            Column("replica", "floor flips", "count"),
            Column("refeed_rate", "refeed rate", "percent"),
            Column("refeed_ci95", "95 % interval", "percent95"),
            Column("replica_rate", "floor", "percent"),
            Column("replica_ci95", "95 % interval", "percent95"),
        ),
        rows,
    )
