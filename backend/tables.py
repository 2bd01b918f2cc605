"""Tables with typed columns, so that a terminal, a web page, HTML and CSV show the same numbers.

A cell holds the number itself; how it reads is the column's kind. None is undefined and shown as –, never as 0.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["text", "count", "percent", "points", "decimal", "number", "percent95", "points95", "decimal95"]
"""`percent`: a fraction; `points`: percentage points; `decimal`: three places; `number`: four significant digits;
`…95`: an interval [low, high] of the kind before it."""

UNDEFINED = "–"


def percent(value: float | None) -> str:
    """A fraction as 33.8 %."""
    return UNDEFINED if value is None else f"{_minus(100 * value, 1)} %"


def points(value: float | None) -> str:
    """Percentage points as 18.7 pp."""
    return UNDEFINED if value is None else f"{_minus(value, 1)} pp"


def decimal(value: float | None) -> str:
    """Three places."""
    return UNDEFINED if value is None else _minus(value, 3)


def number(value: float | None) -> str:
    """Four significant digits."""
    return UNDEFINED if value is None else f"{value:.4g}".replace("-", "−")


def count(value: int | None) -> str:
    """With thousands separators."""
    return UNDEFINED if value is None else f"{value:,}".replace("-", "−")


def interval(value: Sequence[float] | None, form: Callable[[float | None], str]) -> str:
    """11.6 to 26.1 pp: the unit once, at the end."""
    if value is None:
        return UNDEFINED
    low, high = form(value[0]), form(value[1])
    unit = high.partition(" ")[2]
    return f"{low.removesuffix(f' {unit}')} to {high}" if unit else f"{low} to {high}"


def _minus(value: float, places: int) -> str:
    # A negative number that rounds to nothing reads 0, not −0.
    text = f"{value:.{places}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "text": lambda value: UNDEFINED if value is None else str(value),
    "count": count,
    "percent": percent,
    "points": points,
    "decimal": decimal,
    "number": number,
    "percent95": lambda value: interval(value, percent),
    "points95": lambda value: interval(value, points),
    "decimal95": lambda value: interval(value, decimal),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the key of its cells, its heading, how a cell reads, and what it means."""

    key: str
    label: str
    kind: Kind = "text"
    help: str | None = None

    @property
    def is_interval(self) -> bool:
        return self.kind.endswith("95")


@dataclass(frozen=True)
class Table:
    """Rows under typed columns."""

    key: str
    """Short name, for files and widget keys."""
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]

    def texts(self) -> list[list[str]]:
        """The cells as people read them."""
        return [[_FORMS[column.kind](row.get(column.key)) for column in self.columns] for row in self.rows]

    def frame(self) -> pd.DataFrame:
        """The cells as numbers that sort, under the columns' keys; fractions in percent, intervals as text."""
        import pandas as pd  # as in `backend.store`: most that import this module draw no frame

        return pd.DataFrame({column.key: _series(column, self.rows) for column in self.columns})

    def csv(self) -> str:
        """The numbers unrounded, nothing for what is undefined, an interval in two columns."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(
            name
            for column in self.columns
            for name in ((f"{column.key}_low", f"{column.key}_high") if column.is_interval else (column.key,))
        )
        for row in self.rows:
            writer.writerow(
                value
                for column in self.columns
                for value in (
                    (row.get(column.key) or (None, None)) if column.is_interval else (_plain(row.get(column.key)),)
                )
            )
        return out.getvalue()

    def text(self) -> str:
        """The table for a terminal: the title, the headings, a line a row; numbers to the right."""
        cells = [[column.label for column in self.columns], *self.texts()]
        widths = [max(len(line[place]) for line in cells) for place in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.ljust(width) if column.kind == "text" else cell.rjust(width)
                for cell, width, column in zip(line, widths, self.columns, strict=True)
            ).rstrip()
            for line in cells
        ]
        return "\n".join([self.title, *(f"  {line}" for line in lines)])


def _series(column: Column, rows: Sequence[Mapping[str, Any]]) -> pd.Series:
    import pandas as pd

    values = [row.get(column.key) for row in rows]
    if column.is_interval:
        return pd.Series([_FORMS[column.kind](value) for value in values], dtype="str")
    if column.kind == "text":
        return pd.Series([None if value is None else str(value) for value in values], dtype="str")
    if column.kind == "percent":
        values = [None if value is None else 100 * value for value in values]
    return pd.Series(values, dtype="Int64" if column.kind == "count" else "Float64")


def _plain(value: Any) -> Any:
    # A spreadsheet runs a cell that begins like a formula; whoever named a problem in a file is not to be trusted.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return None if isinstance(value, float) and not math.isfinite(value) else value
