"""What a report says in a terminal: its tables, its sentence, and its warnings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.report import report, reports
from backend.report_tables import as_text, method_table, problem_table, readings_table, selection_table
from backend.store import Store
from backend.wording import cautions, headline
from tests.backend.pools import BY_HAND
from tests.backend.receipts import hold, receipt


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as store:
        yield store


@pytest.fixture
def document(store: Store, tmp_path: Path) -> dict[str, Any]:
    return report(store, [hold(store, tmp_path, receipt(BY_HAND), "by-hand")])


def test_the_text_begins_with_the_result_and_its_floor(document: dict[str, Any]) -> None:
    text = as_text(document)
    assert text.startswith("by-hand: toy/model, engine unknown, k = 4\n")
    assert "flips the sign of 42.9 % of 7 eligible pivots; an identical repeat flips 28.6 %." in text
    assert "Excess over that floor: 14.3 pp" in text
    assert "! Only 3 problems have an eligible pivot" in text
    lines = text.splitlines()
    assert "  refeed               3               2          1            7  42.9 %" in "\n".join(lines)
    assert any(line.split()[:2] == ["exact_cache_hits", "unknown"] for line in lines)
    assert any(line.split()[:4] == ["t,", "equal", "weight", "0.3592"] for line in lines)


def test_several_reports_are_told_one_after_the_other(store: Store, tmp_path: Path, document: dict[str, Any]) -> None:
    other = hold(store, tmp_path, receipt(BY_HAND, 8), "eight")
    text = as_text(reports(store, [*document["campaigns"], other]))
    assert text.index("by-hand: ") < text.index("eight: ")


def test_every_row_of_a_selection_has_its_ceiling_and_chance(document: dict[str, Any]) -> None:
    table = selection_table(document)
    assert [row[0] for row in table.texts()] == ["0.25", "0.5", "0.75", "1"]
    assert table.rows[0]["refeed_jaccard"] == 5 / 7
    assert table.rows[-1]["replica_jaccard"] == 0.0


def test_problems_stand_in_their_numbers_order_with_their_floor(document: dict[str, Any]) -> None:
    table = problem_table(document)
    assert [row["problem"] for row in table.rows] == ["1", "4", "7", "9"]
    assert table.texts()[0] == ["1", "1", "0", "0", "0", "–", "–", "–"]
    assert table.rows[2]["refeed_rate"] == 1.0


def test_unknown_facts_and_readings_are_said_to_be_unknown(document: dict[str, Any]) -> None:
    facts = {row["fact"]: row["value"] for row in method_table(document).rows}
    assert facts["engine"] == facts["dtype"] == facts["batch_invariant"] == "unknown"
    assert (facts["temperature"], facts["k"], facts["bootstrap draws"]) == ("0.7", "4", "10000")
    assert [row[2] for row in readings_table(document).texts()] == ["–", "–", "–"]


def changed(document: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**document, **values}


def test_each_reason_for_doubt_is_told(document: dict[str, Any]) -> None:
    assert cautions(changed(document, clusters=12)) == []
    failed = [{"name": "rows", "status": "fail", "detail": "1 of 27 measurements lack a continuation."}]
    reasons = {
        "The check rows failed: 1 of 27": {"checks": failed},
        "cut off": {"final": False},
        "The campaign is running": {"states": ["running"]},
        "There is no replica pass": {"replica": {"rate": None}},
        "2 of 9 pivots are incomplete": {"incomplete": 2},
        "Only one problem has": {"clusters": 1},
        "With k = 1": {"k": 1},
    }
    for told, values in reasons.items():
        (found,) = cautions(changed(document, **{"clusters": 12, **values}))
        assert told in found


def test_the_headline_says_what_is_undefined(document: dict[str, Any]) -> None:
    nothing = {"flips": 0, "zero_crossings": 0, "polarity_reversals": 0, "rate": None}
    assert "no pivots yet" in headline(changed(document, pivots=0))
    assert "the rates are undefined" in headline(changed(document, eligible=0, refeed=nothing, replica=nothing))
    assert "how much of that is noise is unknown" in headline(changed(document, replica=nothing))
    assert "(95 % interval undefined)" in headline(changed(document, excess_pp_ci95=None))
