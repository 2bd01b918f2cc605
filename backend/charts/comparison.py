"""Figures that put two to four campaigns beside each other, one colour and symbol a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from backend.charts.selection import jaccard_curves
from backend.charts.style import NEUTRAL, Interval, Style, escaped, faded, finished

CAMPAIGNS: Final[tuple[Style, ...]] = (
    Style("#3F8FD2", "solid", "circle"),
    Style("#D55E00", "solid", "diamond"),
    Style("#0B8F6A", "solid", "square"),
    Style("#C2609B", "solid", "triangle-up"),
)
"""By place in the comparison. Ceilings and floors are drawn in the campaign's own colour, dashed."""


def compared_jaccard_curves(curves: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> go.Figure:
    """Jaccard index over the threshold, a refeed–exact curve a campaign with its own replica–exact ceiling dashed.

    `curves`: name and the report's `jaccard` list of each campaign.
    """
    figure = go.Figure()
    for (name, rows), style in zip(curves, CAMPAIGNS, strict=False):
        label = _named(name)
        for what, dash, width in (("replica", "dot", 1.75), ("refeed", "solid", 2.75)):
            x, y = _staircase(rows, what)
            if all(value is None for value in y):
                continue
            series = f"{label} {'ceiling' if what == 'replica' else 'refeed'}"
            figure.add_scatter(
                x=x,
                y=y,
                mode="lines",
                line={"color": style.colour, "dash": dash, "width": width},
                name=series,
                legendgroup=series,
                hoverinfo="skip",
            )
            known = [(float(row["threshold"]), row[what]["jaccard"]) for row in rows]
            known = [(threshold, value) for threshold, value in known if value is not None]
            figure.add_scatter(
                x=[threshold for threshold, _ in known],
                y=[value for _, value in known],
                mode="markers",
                marker={
                    "color": style.colour,
                    "symbol": style.symbol if what == "refeed" else f"{style.symbol}-open",
                    "size": 8 if what == "refeed" else 7,
                },
                name=series,
                legendgroup=series,
                showlegend=False,
                hovertemplate="|Â| ≥ %{x:.3g}: %{y:.3f}<extra>" + series + "</extra>",
            )
    figure.update_xaxes(title="threshold on |Â|", range=[0, 1.02])
    figure.update_yaxes(title="Jaccard index", range=[0, 1.03])
    return finished(figure, 400)


def jaccard_multiples(curves: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> go.Figure:
    """The same as small multiples on one scale, each with its band and with chance, where one chart is crowded."""
    figure = make_subplots(
        rows=1,
        cols=len(curves),
        shared_yaxes=True,
        horizontal_spacing=0.03,
        subplot_titles=[_named(name) for name, _ in curves],
    )
    seen: set[str] = set()
    for column, (_, rows) in enumerate(curves, 1):
        for trace in jaccard_curves(rows).data:
            shown = trace.showlegend is not False and trace.name not in seen
            if shown:
                seen.add(trace.name)
            figure.add_trace(trace.update(showlegend=shown), row=1, col=column)
    figure.update_xaxes(title="|Â| ≥", range=[0, 1.02])
    figure.update_yaxes(range=[0, 1.03])
    figure.update_yaxes(title="Jaccard index", row=1, col=1)
    figure = finished(figure, 400)
    figure.update_layout(margin_t=24, legend_y=1.1)
    return figure


@dataclass(frozen=True, slots=True)
class Contrast:
    """A difference of two campaigns in one quantity."""

    label: str
    points: bool
    """Whether it counts percentage points; otherwise it is a plain number."""
    difference: float | None
    ci95: Interval | None


def difference_forest(contrasts: Sequence[tuple[int, str, Sequence[Contrast]]]) -> go.Figure:
    """Each quantity's difference with its 95 % interval about 0: percentage points on the left, numbers on the right.

    `contrasts`: the campaign's place in the comparison, its name, and its differences from the first campaign.
    """
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.24, column_widths=[0.54, 0.46])
    height = 0
    for column, points in ((1, True), (2, False)):
        labels = list(
            dict.fromkeys(
                one.label
                for _, _, found in contrasts
                for one in found
                if one.points is points and one.difference is not None
            )
        )
        height = max(height, len(labels))
        for order, (place, name, found) in enumerate(contrasts):
            style = CAMPAIGNS[place]
            rows = [one for one in found if one.points is points and one.difference is not None]
            shift = 0.0 if len(contrasts) == 1 else 0.24 * (order - (len(contrasts) - 1) / 2)
            values = [float(one.difference or 0.0) for one in rows]
            lows = [value - (one.ci95[0] if one.ci95 else value) for one, value in zip(rows, values, strict=True)]
            highs = [(one.ci95[1] if one.ci95 else value) - value for one, value in zip(rows, values, strict=True)]
            unit = " pp" if points else ""
            form = "+.1f" if points else "+.3f"
            figure.add_scatter(
                x=values,
                y=[labels.index(one.label) + shift for one in rows],
                mode="markers",
                name=f"{_named(name)}",
                legendgroup=name,
                showlegend=points and len(contrasts) > 1,
                marker={
                    "color": style.colour,
                    "size": 9,
                    "symbol": [
                        style.symbol if one.ci95 and not one.ci95[0] <= 0 <= one.ci95[1] else f"{style.symbol}-open"
                        for one in rows
                    ],
                    "line": {"width": 2, "color": style.colour},
                },
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": highs,
                    "arrayminus": lows,
                    "color": style.colour,
                    "thickness": 1.75,
                    "width": 4,
                },
                customdata=[
                    [one.label, f"{one.ci95[0]:{form}} to {one.ci95[1]:{form}}{unit}" if one.ci95 else "no interval"]
                    for one in rows
                ],
                hovertemplate=f"%{{customdata[0]}}: %{{x:{form}}}{unit}<br>95 % %{{customdata[1]}}"
                f"<extra>{_named(name)}</extra>",
                row=1,
                col=column,
            )
        figure.add_vline(x=0, line={"color": NEUTRAL, "width": 1.5}, row=1, col=column)
        figure.update_yaxes(
            tickvals=list(range(len(labels))),
            ticktext=labels,
            range=[len(labels) - 0.4, -0.6],
            row=1,
            col=column,
        )
    figure.update_xaxes(title="difference, percentage points", ticksuffix=" pp", row=1, col=1)
    figure.update_xaxes(title="difference", row=1, col=2)
    return finished(figure, 110 + 34 * max(height, 3))


@dataclass(frozen=True, slots=True)
class PlaceRate:
    """One campaign's flip rate in one bin."""

    rate: float | None
    """Fraction of the eligible pivots there; None without any."""
    ci95: Interval | None
    floor: float | None
    flips: int | None
    eligible: int


def flips_by_place(
    labels: Sequence[str], campaigns: Sequence[tuple[str, Sequence[PlaceRate]]], *, axis: str
) -> go.Figure:
    """Refeed's flip rate in each bin with its interval, a line a campaign, its floor dashed in the same colour."""
    figure = go.Figure()
    for place, (name, rates) in enumerate(campaigns):
        style, label = CAMPAIGNS[place], _named(name)
        shift = 0.0 if len(campaigns) == 1 else 0.12 * (place - (len(campaigns) - 1) / 2)
        x = [index + shift for index in range(len(labels))]
        floors = [None if rate.floor is None else 100 * rate.floor for rate in rates]
        figure.add_scatter(
            x=x,
            y=floors,
            mode="lines",
            line={"color": faded(style.colour, 0.7), "dash": "dot", "width": 1.75},
            name=f"{label} floor",
            hovertemplate="floor %{y:.1f} %<extra>" + label + "</extra>",
        )
        figure.add_scatter(
            x=x,
            y=[None if rate.rate is None else 100 * rate.rate for rate in rates],
            mode="lines+markers",
            line={"color": style.colour, "width": 2.25},
            marker={"symbol": style.symbol, "size": 8, "color": style.colour},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [_reach(rate, 1) for rate in rates],
                "arrayminus": [_reach(rate, 0) for rate in rates],
                "thickness": 1.25,
                "width": 3,
                "color": faded(style.colour, 0.75),
            },
            cliponaxis=False,
            name=f"{label} refeed",
            customdata=[[rate.flips, rate.eligible] for rate in rates],
            hovertemplate="refeed %{y:.1f} %: %{customdata[0]} of %{customdata[1]}<extra>" + label + "</extra>",
        )
    figure.update_xaxes(title=axis, tickvals=list(range(len(labels))), ticktext=list(labels), showgrid=False)
    figure.update_yaxes(title="flips, % of eligible pivots", rangemode="tozero", ticksuffix=" %")
    return finished(figure, 340)


def _reach(rate: PlaceRate, end: int) -> float:
    """How far the interval reaches beyond the rate, in percent."""
    if rate.rate is None or rate.ci95 is None:
        return 0.0
    return 100 * abs(rate.ci95[end] - rate.rate)


def _staircase(rows: Sequence[Mapping[str, Any]], what: str) -> tuple[list[float | None], list[float | None]]:
    rows = sorted(rows, key=lambda row: float(row["threshold"]))
    edges = [0.0, *(float(row["threshold"]) for row in rows)]
    x: list[float | None] = []
    y: list[float | None] = []
    for (left, right), row in zip(pairwise(edges), rows, strict=True):
        value = (row.get(what) or {}).get("jaccard")
        x += [None] if value is None else [left, right]
        y += [None] if value is None else [value, value]
    return x, y


def _named(name: str) -> str:
    """A campaign's name as plotly shows it as it stands."""
    text = escaped(name)[1:-1]
    return text if len(text) <= 32 else f"{text[:31]}…"
