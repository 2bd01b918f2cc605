"""Figures: plain values in, a plotly figure out. Nothing here reads a store or computes a statistic.

Colours hold on a light and on a dark page and in all common kinds of colour blindness; every series also differs by
symbol, dash or pattern. Backgrounds are transparent and text colours are left to the page's theme. A figure carries no
title: `TITLES` has them, for the page to set as a heading. None is undefined and drawn as a gap, never as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

Interval = tuple[float, float]

TITLES: Final[Mapping[str, str]] = {
    "flip_rate_bars": "How often the sign of the credit flips",
    "jaccard_curves": "Agreement of the selected pivots",
    "credit_delta_histogram": "What re-feeding does to the credit",
    "probe_ecdf": "Perturbation of the first logprob",
    "logprob_trace": "Logprobs along a continuation",
    "per_problem_excess": "Excess flips by problem",
    "margin_credit": "Margin against credit",
}


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str
    dash: str
    symbol: str


_STYLES: Final[Mapping[str, _Style]] = {
    "exact": _Style("#0B8F6A", "solid", "circle"),
    "replica": _Style("#7A869A", "dash", "square"),
    "refeed": _Style("#D55E00", "solid", "diamond"),
    "refeed_replica": _Style("#C2609B", "dashdot", "triangle-up"),
    "shuffled": _Style("#3F8FD2", "dot", "cross"),
    "serial": _Style("#C98A00", "longdash", "x"),
}
_NEUTRAL: Final = "#7A869A"
_GRID: Final = "rgba(128, 138, 150, 0.22)"
_MOST_POINTS: Final = 2_000
"""Points a curve is thinned to: more than a screen has pixels across."""


def _style(name: str) -> _Style:
    return _STYLES.get(name, _Style(_NEUTRAL, "solid", "circle"))


def _label(name: str) -> str:
    return {"replica": "replica (floor)", "refeed_replica": "refeed twice"}.get(name, name)


def _faded(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {alpha})"


def _finished(figure: go.Figure, height: int) -> go.Figure:
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom", "traceorder": "normal"},
        hoverlabel={"namelength": -1},
        bargap=0.35,
    )
    figure.update_xaxes(automargin=True, gridcolor=_GRID, zeroline=False)
    figure.update_yaxes(automargin=True, gridcolor=_GRID, zeroline=False)
    return figure


@dataclass(frozen=True, slots=True)
class FlipRate:
    """One pass's flips against exact."""

    name: str
    """The pass."""
    eligible: int
    """The common denominator, in pivots."""
    zero_crossings: int
    polarity_reversals: int
    ci95: Interval | None = None
    """95 % interval of the rate, as fractions; None where it is undefined."""


def flip_rate_bars(rates: Sequence[FlipRate]) -> go.Figure:
    """Flip rate a pass in percent of eligible pivots: zero crossings, then polarity reversals, and the interval."""
    shown = [rate for rate in rates if rate.eligible > 0]
    names = [_label(rate.name) for rate in shown]
    colours = [_style(rate.name).colour for rate in shown]
    figure = go.Figure()
    parts = (("zero crossing", "zero_crossings", ""), ("polarity reversal", "polarity_reversals", "/"))
    for part, attribute, pattern in parts:
        counts = [getattr(rate, attribute) for rate in shown]
        figure.add_bar(
            y=names,
            x=[100 * count / rate.eligible for count, rate in zip(counts, shown, strict=True)],
            orientation="h",
            name=part,
            showlegend=False,
            marker={
                "color": [_faded(colour, 0.75) for colour in colours],
                "line": {"color": colours, "width": 1},
                "pattern": {"shape": pattern, "fgcolor": colours, "fillmode": "overlay", "size": 6, "solidity": 0.35},
            },
            customdata=[[count, rate.eligible] for count, rate in zip(counts, shown, strict=True)],
            hovertemplate="%{y}: %{customdata[0]} of %{customdata[1]} (%{x:.1f} %)<extra>" + part + "</extra>",
        )
        # One grey key for both passes: the pattern says what kind of flip, the colour which pass.
        figure.add_bar(
            y=[None],
            x=[None],
            orientation="h",
            name=part,
            marker={
                "color": _faded(_NEUTRAL, 0.45),
                "pattern": {"shape": pattern, "fgcolor": _NEUTRAL, "fillmode": "overlay", "size": 6, "solidity": 0.35},
            },
        )
    totals = [100 * (rate.zero_crossings + rate.polarity_reversals) / rate.eligible for rate in shown]
    known = [index for index, rate in enumerate(shown) if rate.ci95 is not None]
    intervals = [rate.ci95 for rate in shown if rate.ci95 is not None]
    figure.add_scatter(
        y=[names[index] for index in known],
        x=[totals[index] for index in known],
        mode="markers",
        name="rate, 95 % interval",
        marker={"color": _NEUTRAL, "size": 7, "symbol": "line-ns-open", "line": {"width": 2, "color": _NEUTRAL}},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [100 * high - totals[i] for i, (_, high) in zip(known, intervals, strict=True)],
            "arrayminus": [totals[i] - 100 * low for i, (low, _) in zip(known, intervals, strict=True)],
            "color": _NEUTRAL,
            "thickness": 2,
            "width": 7,
        },
        customdata=[[100 * low, 100 * high] for low, high in intervals],
        hovertemplate="%{y}: %{x:.1f} % (%{customdata[0]:.1f} to %{customdata[1]:.1f})<extra></extra>",
    )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="flips, % of eligible pivots", rangemode="tozero", ticksuffix=" %")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return _finished(figure, 110 + 56 * max(1, len(shown)))


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
                fillcolor=_faded(_style("refeed").colour, 0.14),
                hoverinfo="skip",
                name="ceiling − gap, 95 %",
                legendgroup="band",
                showlegend=all(value is None for value in low[:index]),
            )
    for name in ("replica", "refeed", "refeed_replica"):
        series = values(name)
        if all(value is None for value in series):
            continue
        style = _style(name)
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
            line={"color": style.colour, "dash": style.dash, "width": 2.5},
            name=label,
            legendgroup=name,
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_scatter(
            x=[point[0] for point in shown],
            y=[point[1] for point in shown],
            mode="markers+lines",
            line={"color": "rgba(0,0,0,0)", "width": 0},
            marker={"color": style.colour, "symbol": style.symbol, "size": 8},
            name=label,
            legendgroup=name,
            hovertemplate="|Â| ≥ %{x:.3g}: %{y:.3f}<extra>" + label + "</extra>",
        )
    x, y = _steps(edges, values("refeed", "chance"))
    if any(value is not None for value in y):
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines",
            name="chance",
            line={"color": _NEUTRAL, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    figure.update_xaxes(title="threshold on |Â|", range=[0, 1.02], tickvals=edges[1:] if len(edges) < 10 else None)
    figure.update_yaxes(title="Jaccard index", range=[0, 1.03])
    return _finished(figure, 380)


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


def credit_delta_histogram(
    counts: Mapping[int, int],
    k: int,
    *,
    mean: float | None = None,
    ci95: Interval | None = None,
    margin: float | None = None,
) -> go.Figure:
    """Pivots by Â_refeed − Â_exact, on its own grid of j/k.

    `counts`: numerator j (of the difference, −2k…2k) → eligible pivots; `mean` and `ci95` of the difference, in units
    of credit; `margin`: half-width of the equivalence region, shaded.
    """
    if k < 1:
        raise ValueError(f"k is {k}, but an arm has at least one continuation")
    reach = max((abs(j) for j in counts), default=1) or 1
    grid = list(range(-reach, reach + 1))
    up, down = _style("refeed").colour, "#2F73B5"
    figure = go.Figure()
    figure.add_bar(
        x=[j / k for j in grid],
        y=[counts.get(j, 0) for j in grid],
        width=0.8 / k,
        marker={"color": [_faded(up if j > 0 else down if j < 0 else _NEUTRAL, 0.75) for j in grid]},
        text=[f"{counts.get(j, 0):,}" if counts.get(j, 0) else "" for j in grid],
        textposition="outside",
        cliponaxis=False,
        customdata=[f"{j:+d}/{k}" if j else "0" for j in grid],
        hovertemplate="%{customdata}: %{y:,} pivots<extra></extra>",
        showlegend=False,
    )
    if margin is not None:
        figure.add_vrect(
            x0=-margin, x1=margin, fillcolor=_faded(_style("exact").colour, 0.2), line_width=0, layer="below"
        )
    if mean is not None:
        figure.add_scatter(
            x=[mean],
            y=[0],
            mode="markers",
            name=f"mean {_signed(mean)}" + ("" if ci95 is None else f", 95 % {_signed(ci95[0])} to {_signed(ci95[1])}"),
            marker={"symbol": "diamond", "size": 10, "color": _style("exact").colour},
            error_x=None
            if ci95 is None
            else {
                "type": "data",
                "symmetric": False,
                "array": [ci95[1] - mean],
                "arrayminus": [mean - ci95[0]],
                "thickness": 2,
                "width": 6,
                "color": _style("exact").colour,
            },
            cliponaxis=False,
            hovertemplate="mean %{x:.4f}<extra></extra>",
        )
    ticks = [j for j in grid if reach <= 8 or j % -(-reach // 8) == 0]
    figure.update_xaxes(
        title="Â refeed − Â exact",
        showgrid=False,
        tickvals=[j / k for j in ticks],
        ticktext=[f"{j / k:+.3g}".replace("-", "−") if j else "0" for j in ticks],
    )
    figure.update_yaxes(title="eligible pivots", rangemode="tozero")
    return _finished(figure, 320)


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


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
        style, label = _style(name), _label(name)
        zeros = int(np.count_nonzero(sizes == 0.0))
        figure.add_bar(
            x=[name],
            y=[zeros / sizes.size],
            marker={"color": _faded(style.colour, 0.75)},
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
    return _finished(figure, 360)


def logprob_trace(
    traces: Mapping[str, Sequence[float | None]], *, tokens: Sequence[str] | None = None, difference: int | None = None
) -> go.Figure:
    """Logprob of each token along a continuation, a line a pass.

    `traces`: pass → raw logprobs in nats (≤ 0; 0.0 is probability 1); `tokens`: exact's token texts, for the tooltip;
    `difference`: index of the first token that differs from exact's, marked.
    """
    figure = go.Figure()
    for name, values in traces.items():
        style = _style(name)
        texts = [_shown(tokens[i]) if tokens is not None and i < len(tokens) else "" for i in range(len(values))]
        figure.add_scatter(
            x=list(range(len(values))),
            y=list(values),
            mode="lines+markers",
            connectgaps=False,
            line={
                "color": _faded(style.colour, 0.45) if name == "exact" else style.colour,
                "dash": style.dash,
                "width": 6 if name == "exact" else 1.75,  # wide and pale: a pass that coincides with it stays visible
            },
            marker={"symbol": style.symbol, "size": 6 if name == "exact" else 5, "color": style.colour},
            name=_label(name),
            text=texts,
            hovertemplate="token %{x} %{text}: %{y:.4f} nats<extra>" + _label(name) + "</extra>",
        )
    if difference is not None:
        figure.add_vline(
            x=difference,
            line={"color": _NEUTRAL, "dash": "dot", "width": 1.5},
            annotation={"text": "first difference", "yanchor": "bottom"},
            annotation_position="top",
        )
    figure.update_xaxes(title="token of the continuation", showgrid=False)
    figure.update_yaxes(title="logprob, nats", rangemode="tozero")
    figure = _finished(figure, 290)
    if difference is not None:
        figure.update_layout(
            margin_t=24, legend={"y": 1.0, "yanchor": "top", "x": 1, "xanchor": "right", "orientation": "v"}
        )
    return figure


def _shown(token: str) -> str:
    """A token's text for a plotly label, which would read `<` as mark-up and show nothing for a line break."""
    return repr(token).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


@dataclass(frozen=True, slots=True)
class ProblemFlips:
    """One problem's flips."""

    problem: str
    eligible: int
    """Eligible pivots, ≥ 1 for the problem to be drawn."""
    refeed_flips: int
    replica_flips: int | None
    """None without a replica: the problem then has no excess and is left out."""


def per_problem_excess(rows: Sequence[ProblemFlips], *, mean: float | None = None) -> go.Figure:
    """Excess flip rate (refeed − replica) of each problem in percentage points, a dot a problem.

    A dot's area grows with the problem's eligible pivots; `mean` is the equal-weight mean excess as a fraction.
    """
    known = [
        (row, row.refeed_flips - row.replica_flips)
        for row in rows
        if row.eligible > 0 and row.replica_flips is not None
    ]
    known.sort(key=lambda pair: (pair[1] / pair[0].eligible, pair[0].problem))
    excess = [100 * flips / row.eligible for row, flips in known]
    up, down = _style("refeed").colour, "#2F73B5"
    largest = max((row.eligible for row, _ in known), default=1)
    figure = go.Figure()
    figure.add_scatter(
        x=excess,
        y=list(range(len(known))),
        mode="markers",
        marker={
            "color": [up if value > 0 else down if value < 0 else _NEUTRAL for value in excess],
            "symbol": ["circle" if value > 0 else "diamond" if value < 0 else "circle-open" for value in excess],
            "size": [5 + 11 * (row.eligible / largest) ** 0.5 for row, _ in known],
            "opacity": 0.85,
        },
        customdata=[[_shown(row.problem)[1:-1], row.eligible, row.refeed_flips, row.replica_flips] for row, _ in known],
        hovertemplate="%{customdata[0]}: %{x:+.1f} pp<br>refeed %{customdata[2]}, replica %{customdata[3]} "
        "of %{customdata[1]} eligible<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(x=0, line={"color": _NEUTRAL, "width": 1.5})
    if mean is not None:
        figure.add_vline(
            x=100 * mean,
            line={"color": up, "dash": "dash", "width": 1.5},
            annotation={"text": f"mean {100 * mean:+.1f} pp".replace("-", "−"), "yanchor": "bottom"},
            annotation_position="top",
        )
    few = len(known) <= 40
    figure.update_xaxes(title="excess flips, percentage points", ticksuffix=" pp")
    figure.update_yaxes(
        title=None if few else f"{len(known):,} problems, sorted",
        tickvals=list(range(len(known))) if few else [],
        ticktext=[_shown(row.problem)[1:-1] for row, _ in known] if few else [],
        range=[-0.8, len(known) - 0.2],
    )
    figure = _finished(figure, 120 + 18 * min(40, max(4, len(known))))
    figure.update_layout(margin_t=28)
    return figure


def margin_credit(margins: Sequence[float | None], credits: Sequence[float], flips: Sequence[bool | None]) -> go.Figure:
    """Each pivot's margin (nats, ≥ 0) against its Â of exact in [−1, 1], pivots whose sign flips under refeed apart.

    The three columns are aligned, a row a pivot; a pivot without a margin is left out, one without a flip is drawn as
    not compared. Drawn by WebGL, because there can be a hundred thousand.
    """
    figure = go.Figure()
    groups: tuple[tuple[str, bool | None, str, str], ...] = (
        ("sign agrees", False, _style("exact").colour, "circle-open"),
        ("sign flips under refeed", True, _style("refeed").colour, "x"),
        ("not compared", None, _NEUTRAL, "circle-open"),
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
    return _finished(figure, 340)
