"""Learning curves: a CSV that grows as training goes, and its drawing as an SVG."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 340, 220
"""Of one panel, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 30, 36
LINE, GRID, INK = "#1f5f99", "#d9dde2", "#30363d"


class Curve:
    """A CSV file with one row a step; a row is on the disk once `add` returns."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self._columns = path, tuple(columns)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(",".join(columns) + "\n", encoding="utf-8")

    def add(self, *values: float | int | None) -> None:
        """Append a row and say it; None is an empty cell."""
        cells = ["" if value is None else f"{value:.6g}" for value in values]
        with self.path.open("a", encoding="utf-8") as file:
            file.write(",".join(cells) + "\n")
        told = zip(self._columns, cells, strict=True)
        print("  ".join(f"{name} {cell}" for name, cell in told if cell), flush=True)


def draw(curve: Path, panels: dict[str, str], drawing: Path) -> None:
    """Draw columns of a CSV against its `step`, one panel a column side by side: column name to title."""
    with curve.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    parts = []
    for place, (column, title) in enumerate(panels.items()):
        points = [(float(row["step"]), float(row[column])) for row in rows if row[column]]
        parts.append(f'<g transform="translate({place * WIDTH},0)">{_panel(title, points)}</g>')
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}" viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}"'
    drawing.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11" fill="{INK}">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n",
        encoding="utf-8",
    )


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round numbers from at most `low` to at least `high`."""
    span = max(high - low, 1e-9)
    unit = 10.0 ** math.floor(math.log10(span))
    step = next(unit * factor for factor in (0.2, 0.5, 1, 2, 5) if span / (unit * factor) <= 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


def _panel(title: str, points: list[tuple[float, float]]) -> str:
    """Axes, ticks and the line of one column."""
    heading = f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>'
    if not points:
        return heading + f'<text x="{LEFT}" y="{HEIGHT // 2}">not measured</text>'
    across = ticks(0, max(x for x, _ in points))
    up = ticks(min(y for _, y in points), max(y for _, y in points))
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        share_x = (x - across[0]) / (across[-1] - across[0])
        share_y = (y - up[0]) / (up[-1] - up[0])
        return round(LEFT + share_x * inner_width, 1), round(TOP + (1 - share_y) * inner_height, 1)

    marks = [heading, f'<text x="{LEFT + inner_width / 2}" y="{HEIGHT - 6}" text-anchor="middle">step</text>']
    for value in up:
        _, y = at(across[0], value)
        marks.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="{GRID}"/>')
        marks.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>')
    for value in across:
        x, _ = at(value, up[0])
        marks.append(f'<text x="{x}" y="{HEIGHT - 20}" text-anchor="middle">{value:g}</text>')
    line = " ".join(f"{x},{y}" for x, y in (at(*point) for point in points))
    marks.append(f'<polyline points="{line}" fill="none" stroke="{LINE}" stroke-width="1.5"/>')
    if len(points) <= 20:
        marks += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{LINE}"/>' for x, y in (at(*point) for point in points)]
    return "".join(marks)
