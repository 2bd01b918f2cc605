"""A report as one HTML page that needs nothing else: no network, no server, figures and all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from backend.inference import Floats
from backend.report_figures import Panel, panels
from backend.report_tables import (
    checks_table,
    flips_table,
    method_table,
    probe_table,
    problem_table,
    readings_table,
    selection_table,
    statistics_table,
)
from backend.tables import Table
from backend.wording import cautions, headline, setting

_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "assets"), autoescape=True, undefined=StrictUndefined
)


@dataclass(frozen=True)
class _Section:
    title: str
    tables: Sequence[Table]
    figure: Markup | None = None
    alt: str = ""
    shows: str = ""
    doubt: str = ""


def html(document: Mapping[str, Any], deltas: Mapping[str, Floats] | None = None) -> str:
    """The page. `deltas` are of `report.probe_deltas`; without them the probe's figure is left out."""
    tables = {
        "flips": [flips_table(document), statistics_table(document)],
        "selection": [selection_table(document)],
        "difference": [],
        "probe": [probe_table(document)],
        "problems": [problem_table(document)],
    }
    drawn = [panel for panel in panels(document, deltas or {}) if panel.figure or tables[panel.key]]
    first = next((panel for panel in drawn if panel.figure), None)
    figures = [_figure(panel.figure, first=panel is first) for panel in drawn]
    rest = [checks_table(document), readings_table(document), method_table(document)]
    return _TEMPLATES.get_template("report.html").render(
        title=" + ".join(document["names"]),
        subject=setting(document),
        headline=headline(document),
        cautions=cautions(document),
        campaigns=document["campaigns"],
        sections=[_section(panel, figure, tables[panel.key]) for panel, figure in zip(drawn, figures, strict=True)]
        + [_Section(table.title, [table]) for table in rest if table.rows],
        zip=zip,
    )


def _section(panel: Panel, figure: Markup | None, tables: Sequence[Table]) -> _Section:
    filled = [table for table in tables if table.rows]
    return _Section(panel.title, filled, figure, panel.alt, panel.shows, panel.doubt)


def _figure(figure: go.Figure | None, *, first: bool) -> Markup | None:
    """The figure's mark-up, by plotly, which escapes what stands in it; the first brings the library along."""
    if figure is None:
        return None
    themed = go.Figure(figure).update_layout(template="plotly_white")
    text = plotly.io.to_html(
        themed,
        full_html=False,
        include_plotlyjs=first,
        config={"displayModeBar": False, "responsive": True},
        default_width="100%",
    )
    return Markup(text)  # noqa: S704 (plotly's own output)
