"""What all figures share: a colour, dash and symbol a pass, and the frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Style:
    """How a pass is drawn."""

    colour: str
    dash: str
    symbol: str


STYLES: Final[Mapping[str, Style]] = {
    "exact": Style("#0B8F6A", "solid", "circle"),
    "replica": Style("#7A869A", "dash", "square"),
    "refeed": Style("#D55E00", "solid", "diamond"),
    "refeed_replica": Style("#C2609B", "dashdot", "triangle-up"),
    "shuffled": Style("#3F8FD2", "dot", "cross"),
    "serial": Style("#C98A00", "longdash", "x"),
}
RISING: Final = "#D55E00"
FALLING: Final = "#2F73B5"
NEUTRAL: Final = "#7A869A"
_GRID: Final = "rgba(128, 138, 150, 0.22)"


def style_of(name: str) -> Style:
    return STYLES.get(name, Style(NEUTRAL, "solid", "circle"))


def label_of(name: str) -> str:
    return {"replica": "replica (floor)", "refeed_replica": "refeed twice"}.get(name, name)


def faded(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {alpha})"


def finished(figure: go.Figure, height: int) -> go.Figure:
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


def escaped(text: str) -> str:
    """Somebody else's text as a plotly label, quoted: plotly would read `<` as mark-up and drop a line break."""
    return repr(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
