"""Figures about logprobs: the probe's perturbation, a continuation's trace, the margin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from backend.charts.style import NEUTRAL, escaped, faded, finished, label_of, style_of

_MOST_POINTS: Final = 2_000
"""Points a curve is thinned to: more than a screen has pixels across."""


def probe_ecdf(deltas: Mapping[str, Iterable[float]]) -> go.Figure:
    """Share of pivots whose first-token logprob moved by at most x, a curve a pass.

    `deltas`: pass → |logprob difference to exact| in nats, ≥ 0. Exact zeros (bit-exact) have no place on a logarithmic
    axis and stand in bars of their own; the curves start at those bars' heights.
    """
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, column_widths=[0.16, 0.84], horizontal_spacing=0.03)
    for name, values in deltas.items():
        sizes = np.sort(np.abs(np.asarray(list(values), dtype=np.float64)))
        if sizes.size == 0:
            continue
        style, label = style_of(name), label_of(name)
        zeros = int(np.count_nonzero(sizes == 0.0))
        figure.add_bar(
            x=[name],
            y=[zeros / sizes.size],
            marker={"color": faded(style.colour, 0.75)},
            showlegend=False,
            hovertemplate=f"{label}: {zeros:,} of {sizes.size:,} bit-exact (%{{y:.1%}})<extra></extra>",
            row=1,
            col=1,
        )
        index = np.unique(np.linspace(zeros, sizes.size - 1, num=_MOST_POINTS).astype(np.int64))
        index = index[index >= zeros] if zeros < sizes.size else index[:0]
        figure.add_scatter(
            x=sizes[index],
            y=(index + 1) / sizes.size,
            mode="lines",
            line={"color": style.colour, "dash": style.dash, "width": 2.5, "shape": "hv"},
            name=f"{label}, {sizes.size:,} pivots",
            hovertemplate="|Δ| ≤ %{x:.3g} nats: %{y:.1%}<extra>" + label + "</extra>",
            row=1,
            col=2,
        )
    figure.update_xaxes(title="exactly 0", showgrid=False, row=1, col=1)
    figure.update_xaxes(title="|Δ logprob| of the first token, nats", type="log", exponentformat="power", row=1, col=2)
    figure.update_yaxes(range=[0, 1.02], tickformat=".0%", row=1, col=1)
    figure.update_yaxes(range=[0, 1.02], row=1, col=2)
    figure.update_yaxes(title="share of pivots", row=1, col=1)
    return finished(figure, 360)


def logprob_trace(
    traces: Mapping[str, Sequence[float | None]], *, tokens: Sequence[str] | None = None, difference: int | None = None
) -> go.Figure:
    """Logprob of each token along a continuation, a line a pass.

    `traces`: pass → raw logprobs in nats (≤ 0; 0.0 is probability 1); `tokens`: exact's token texts, for the tooltip;
    `difference`: index of the first token that differs from exact's, marked.
    """
    figure = go.Figure()
    for name, values in traces.items():
        style = style_of(name)
        texts = [escaped(tokens[i]) if tokens is not None and i < len(tokens) else "" for i in range(len(values))]
        figure.add_scatter(
            x=list(range(len(values))),
            y=list(values),
            mode="lines+markers",
            connectgaps=False,
            cliponaxis=False,  # certainty is 0, the upper edge
            line={
                "color": faded(style.colour, 0.55) if name == "exact" else style.colour,
                "dash": style.dash,
                "width": 6 if name == "exact" else 1.75,  # wide and pale: a pass that coincides with it stays visible
            },
            marker={"symbol": style.symbol, "size": 6 if name == "exact" else 5, "color": style.colour},
            name=label_of(name),
            text=texts,
            hovertemplate="token %{x} %{text}: %{y:.4f} nats<extra>" + label_of(name) + "</extra>",
        )
    if difference is not None:
        figure.add_vline(
            x=difference,
            line={"color": NEUTRAL, "dash": "dot", "width": 1.5},
            annotation={"text": "first difference", "yanchor": "bottom"},
            annotation_position="bottom right",
        )
    figure.update_xaxes(title="token of the continuation", showgrid=False)
    figure.update_yaxes(title="logprob, nats", rangemode="tozero")
    return finished(figure, 290)


def margin_credit(margins: Sequence[float | None], credits: Sequence[float], flips: Sequence[bool | None]) -> go.Figure:
    """Each pivot's margin (nats, ≥ 0) against its Â of exact in [−1, 1], pivots whose sign flips under refeed apart.

    The three columns are aligned, a row a pivot; a pivot without a margin is left out, one without a flip is drawn as
    not compared. Drawn by WebGL, because there can be a hundred thousand.
    """
    figure = go.Figure()
    groups: tuple[tuple[str, bool | None, str, str], ...] = (
        ("sign agrees", False, style_of("exact").colour, "circle-open"),
        ("sign flips under refeed", True, style_of("refeed").colour, "x"),
        ("not compared", None, NEUTRAL, "circle-open"),
    )
    pivots = list(zip(margins, credits, flips, strict=True))
    for name, flip, colour, symbol in groups:
        group = [(margin, credit) for margin, credit, flipped in pivots if margin is not None and flipped is flip]
        if group:
            figure.add_scattergl(
                x=[margin for margin, _ in group],
                y=[credit for _, credit in group],
                mode="markers",
                name=f"{name}, {len(group):,}",
                marker={"color": colour, "symbol": symbol, "size": 7, "opacity": 0.7},
                hovertemplate="margin %{x:.3f} nats, Â %{y:+.2f}<extra>" + name + "</extra>",
            )
    figure.update_xaxes(title="margin top1 − top2, nats", rangemode="tozero")
    figure.update_yaxes(title="Â exact", range=[-1.08, 1.08])
    return finished(figure, 340)
