"""The figure about which pivots a threshold selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from backend.charts.style import NEUTRAL, faded, finished, style_of


def jaccard_curves(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Jaccard index of the selected pivots over the threshold: refeed–exact under the replica–exact ceiling.

    `rows` is the report's `jaccard` list: `threshold` in (0, 1]; `refeed`, `replica` and `refeed_replica`, each with
    `jaccard` (fraction or None) and `chance`; `gap_ci95`, the interval of ceiling − refeed, drawn as the band in which
    refeed would lie below its ceiling. The index is constant between attainable thresholds, so these are steps.
    """
    rows = sorted(rows, key=lambda row: float(row["threshold"]))
    edges = [0.0, *(float(row["threshold"]) for row in rows)]
    figure = go.Figure()

    def values(name: str, what: str = "jaccard") -> list[float | None]:
        return [(row.get(name) or {}).get(what) for row in rows]

    low, high = _band(rows, values("replica"))
    for index, (bottom, top) in enumerate(zip(low, high, strict=True)):
        if bottom is not None and top is not None:
            figure.add_scatter(
                x=[edges[index], edges[index + 1], edges[index + 1], edges[index]],
                y=[bottom, bottom, top, top],
                fill="toself",
                mode="none",
                fillcolor=faded(style_of("refeed").colour, 0.14),
                hoverinfo="skip",
                name="ceiling − gap, 95 %",
                legendgroup="band",
                showlegend=all(value is None for value in low[:index]),
            )
    for name in ("replica", "refeed", "refeed_replica"):
        series = values(name)
        if all(value is None for value in series):
            continue
        style = style_of(name)
        x, y = _steps(edges, series)
        shown = [(edges[i + 1], value) for i, value in enumerate(series) if value is not None]
        label = {
            "replica": "replica – exact (ceiling)",
            "refeed": "refeed – exact",
            "refeed_replica": "refeed – replica",
        }[name]
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line={"color": style.colour, "dash": style.dash, "width": 1.75 if name == "refeed_replica" else 2.5},
            name=label,
            legendgroup=name,
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=[point[0] for point in shown],
            y=[point[1] for point in shown],
            mode="markers",
            marker={"color": style.colour, "symbol": style.symbol, "size": 8},
            name=label,
            legendgroup=name,
            showlegend=False,
            hovertemplate="|Â| ≥ %{x:.3g}: %{y:.3f}<extra>" + label + "</extra>",
        )
    x, y = _steps(edges, values("refeed", "chance"))
    if any(value is not None for value in y):
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            name="chance",
            line={"color": NEUTRAL, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    figure.update_xaxes(title="threshold on |Â|", range=[0, 1.02], tickvals=edges[1:] if len(edges) < 10 else None)
    figure.update_yaxes(title="Jaccard index", range=[0, 1.03])
    return finished(figure, 380)


def _band(
    rows: Sequence[Mapping[str, Any]], ceiling: Sequence[float | None]
) -> tuple[list[float | None], list[float | None]]:
    low: list[float | None] = []
    high: list[float | None] = []
    for row, top in zip(rows, ceiling, strict=True):
        gap = row.get("gap_ci95")
        low.append(None if gap is None or top is None else top - gap[1])
        high.append(None if gap is None or top is None else top - gap[0])
    return low, high


def _steps(edges: Sequence[float], values: Sequence[float | None]) -> tuple[list[float | None], list[float | None]]:
    """The corners of a step function that has values[i] on (edges[i], edges[i+1]]; None breaks the line."""
    x: list[float | None] = []
    y: list[float | None] = []
    for (left, right), value in zip(pairwise(edges), values, strict=True):
        x += [None] if value is None else [left, right]
        y += [None] if value is None else [value, value]
    return x, y
