"""Numbers as people read them, undefined ones as –, and CSV that a program can read back."""

from __future__ import annotations

import csv
import io

import pytest

from backend.tables import Column, Table, count, decimal, interval, number, percent, points

TABLE = Table(
    "numbers",
    "Numbers",
    (
        Column("name", "name"),
        Column("n", "n", "count"),
        Column("rate", "rate", "percent"),
        Column("ci95", "interval", "percent95"),
    ),
    [
        {"name": "one", "n": 1234, "rate": 1 / 3, "ci95": [0.25, 0.5]},
        {"name": "=1+1", "n": 0, "rate": None, "ci95": None},
    ],
)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (percent(0.33805), "33.8 %"),
        (percent(0.0), "0.0 %"),
        (percent(None), "–"),
        (points(-50.0), "−50.0 pp"),
        (points(-0.01), "0.0 pp"),
        (decimal(0.6840148), "0.684"),
        (number(3.814697265625e-06), "3.815e−06"),
        (number(0), "0"),
        (count(1567), "1,567"),
        (count(None), "–"),
        (interval([0.1, 0.25], percent), "10.0 to 25.0 %"),
        (interval([-0.1129, 0.0839], decimal), "−0.113 to 0.084"),
        (interval(None, points), "–"),
    ],
)
def test_numbers_read_as_people_write_them(text: str, read: str) -> None:
    assert text == read


def test_a_terminal_has_numbers_to_the_right_and_undefined_as_a_dash() -> None:
    assert TABLE.text().splitlines() == [
        "Numbers",
        "  name      n    rate        interval",
        "  one   1,234  33.3 %  25.0 to 50.0 %",
        "  =1+1      0       –               –",
    ]


def test_csv_keeps_every_digit_and_runs_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert rows[0] == {"name": "one", "n": "1234", "rate": str(1 / 3), "ci95_low": "0.25", "ci95_high": "0.5"}
    assert rows[1] == {"name": "'=1+1", "n": "0", "rate": "", "ci95_low": "", "ci95_high": ""}


def test_a_frame_sorts_by_number_and_keeps_what_is_missing() -> None:
    frame = TABLE.frame()
    assert frame["n"].tolist() == [1234, 0]
    assert frame["rate"].isna().tolist() == [False, True]
    assert frame["rate"][0] == pytest.approx(100 / 3)
    assert frame["ci95"].tolist() == ["25.0 to 50.0 %", "–"]
    assert TABLE.__class__("empty", "Empty", TABLE.columns, []).frame().empty
