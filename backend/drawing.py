"""How pages draw tables and figures: typed columns, a download beside each table, words under each figure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from backend.report_figures import Panel
from backend.tables import UNDEFINED, Column, Table

STATUS = {
    "pass": ":green[:material/check_circle: pass]",
    "fail": ":red[:material/cancel: fail]",
    "unknown": ":gray[:material/help: unknown]",
}
"""A check's status in words and an icon, as Markdown."""

_FORMATS = {"count": "localized", "percent": "%.1f %%", "points": "%.1f pp", "decimal": "%.3f", "number": "%.4g"}


def plain(text: str) -> str:
    """Somebody else's text as Markdown that reads as it stands."""
    return re.sub(r"([\\`*_{}\[\]()<>#|~:$])", r"\\\1", " ".join(text.split()))


def column_config(table: Table) -> dict[str, Any]:
    """Streamlit's configuration of a table's columns."""
    return {column.key: _config(column) for column in table.columns}


def _config(column: Column) -> Any:
    if column.kind in _FORMATS:
        return st.column_config.NumberColumn(column.label, help=column.help, format=_FORMATS[column.kind])
    return st.column_config.TextColumn(column.label, help=column.help)


def show_table(table: Table, name: str, *, height: int | None = None, config: Mapping[str, Any] | None = None) -> None:
    """A sortable table with its CSV; `name` begins the file's name."""
    st.dataframe(
        table.frame(),
        width="stretch",
        height="auto" if height is None else height,
        hide_index=True,
        column_config={**column_config(table), **(config or {})},
        placeholder=UNDEFINED,
        key=f"table_{table.key}",
        alt=table.title,
    )
    download_csv(table, name)


def download_csv(table: Table, name: str) -> None:
    """A button that hands out the table as CSV, made when it is asked for."""
    st.download_button(
        "Download CSV",
        data=table.csv,
        file_name=f"{file_name(name)}-{table.key}.csv",
        mime="text/csv",
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
        key=f"csv_{table.key}",
        help=f"{table.title}: unrounded numbers, nothing for what is undefined",
    )


def file_name(text: str) -> str:
    """Somebody else's text as the beginning of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:60] or "campaign"


def show_panel(panel: Panel) -> None:
    """A figure under its heading, with what it shows and when not to trust it."""
    st.subheader(panel.title)
    if panel.figure is not None:
        st.plotly_chart(
            panel.figure, width="stretch", key=f"figure_{panel.key}", alt=panel.alt, config={"displaylogo": False}
        )
    st.markdown(panel.shows)
    st.caption(f":material/warning: {panel.doubt}")


def show_checks(document: Mapping[str, Any]) -> None:
    """The checks with their status in words and an icon."""
    rows = [
        {"Status": STATUS[check["status"]], "Check": f"`{check['name']}`", "What was found": plain(check["detail"])}
        for check in document["checks"]
    ]
    st.table(rows, hide_index=True, border="horizontal", alt="The method's preconditions and whether they held")
