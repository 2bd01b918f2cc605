"""Figures about flips and about what re-feeding does to the credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from backend.charts.style import FALLING, NEUTRAL, RISING, Interval, escaped, faded, finished, label_of, style_of


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
    names = [label_of(rate.name) for rate in shown]
    colours = [style_of(rate.name).colour for rate in shown]
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
                "color": [faded(colour, 0.75) for colour in colours],
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
                "color": faded(NEUTRAL, 0.45),
                "pattern": {"shape": pattern, "fgcolor": NEUTRAL, "fillmode": "overlay", "size": 6, "solidity": 0.35},
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
        marker={"color": NEUTRAL, "size": 7, "symbol": "line-ns-open", "line": {"width": 2, "color": NEUTRAL}},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [100 * high - totals[i] for i, (_, high) in zip(known, intervals, strict=True)],
            "arrayminus": [totals[i] - 100 * low for i, (low, _) in zip(known, intervals, strict=True)],
            "color": NEUTRAL,
            "thickness": 2,
            "width": 7,
        },
        customdata=[[100 * low, 100 * high] for low, high in intervals],
        hovertemplate="%{y}: %{x:.1f} % (%{customdata[0]:.1f} to %{customdata[1]:.1f})<extra></extra>",
    )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="flips, % of eligible pivots", rangemode="tozero", ticksuffix=" %")
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return finished(figure, 110 + 56 * max(1, len(shown)))


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
    largest = max((row.eligible for row, _ in known), default=1)
    figure = go.Figure()
    figure.add_scatter(
        x=excess,
        y=list(range(len(known))),
        mode="markers",
        marker={
            "color": [RISING if value > 0 else FALLING if value < 0 else NEUTRAL for value in excess],
            "symbol": ["circle" if value > 0 else "diamond" if value < 0 else "circle-open" for value in excess],
            "size": [5 + 11 * (row.eligible / largest) ** 0.5 for row, _ in known],
            "opacity": 0.85,
        },
        customdata=[
            [escaped(row.problem)[1:-1], row.eligible, row.refeed_flips, row.replica_flips] for row, _ in known
        ],
        hovertemplate="%{customdata[0]}: %{x:+.1f} pp<br>refeed %{customdata[2]}, replica %{customdata[3]} "
        "of %{customdata[1]} eligible<extra></extra>",
        showlegend=False,
    )
    figure.add_vline(x=0, line={"color": NEUTRAL, "width": 1.5})
    if mean is not None:
        figure.add_vline(
            x=100 * mean,
            line={"color": RISING, "dash": "dash", "width": 1.5},
            annotation={"text": f"mean {100 * mean:+.1f} pp".replace("-", "−"), "yanchor": "bottom"},
            annotation_position="top",
        )
    few = len(known) <= 40
    figure.update_xaxes(title="excess flips, percentage points", ticksuffix=" pp")
    figure.update_yaxes(
        title=None if few else f"{len(known):,} problems, sorted",
        tickvals=list(range(len(known))) if few else [],
        ticktext=[escaped(row.problem)[1:-1] for row, _ in known] if few else [],
        range=[-0.8, len(known) - 0.2],
    )
    figure = finished(figure, 120 + 18 * min(40, max(4, len(known))))
    figure.update_layout(margin_t=28)
    return figure


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
    figure = go.Figure()
    figure.add_bar(
        x=[j / k for j in grid],
        y=[counts.get(j, 0) for j in grid],
        width=0.8 / k,
        marker={"color": [faded(RISING if j > 0 else FALLING if j < 0 else NEUTRAL, 0.75) for j in grid]},
        text=[f"{counts.get(j, 0):,}" if counts.get(j, 0) else "" for j in grid],
        textposition="outside",
        cliponaxis=False,
        customdata=[f"{j:+d}/{k}".replace("-", "−") if j else "0" for j in grid],
        hovertemplate="%{customdata}: %{y:,} pivots<extra></extra>",
        showlegend=False,
    )
    if margin is not None:
        figure.add_vrect(
            x0=-margin, x1=margin, fillcolor=faded(style_of("exact").colour, 0.2), line_width=0, layer="below"
        )
    if mean is not None:
        figure.add_scatter(
            x=[mean],
            y=[0],
            mode="markers",
            name=f"mean {_signed(mean)}" + ("" if ci95 is None else f", 95 % {_signed(ci95[0])} to {_signed(ci95[1])}"),
            marker={"symbol": "diamond", "size": 10, "color": style_of("exact").colour},
            error_x=None
            if ci95 is None
            else {
                "type": "data",
                "symmetric": False,
                "array": [ci95[1] - mean],
                "arrayminus": [mean - ci95[0]],
                "thickness": 2,
                "width": 6,
                "color": style_of("exact").colour,
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
    return finished(figure, 320)


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")
