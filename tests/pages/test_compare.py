"""The compare page and what it shows: numbers, sentences, pickers and the address, without a browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from backend import compare_metrics, compare_tables, compare_view, dashboard, sides
from backend.compare_columns import aligned, counterpart, parting, read
from backend.errors import UserError
from backend.live import Place
from backend.report import report
from backend.store import Store
from backend.transcript_view import token_text
from tests.pages.compared import fill

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("compare") / "store.duckdb"
    return path, fill(path)


@pytest.fixture
def ids(filled: tuple[Path, dict[str, str]]) -> dict[str, str]:
    return filled[1]


@pytest.fixture
def store(filled: tuple[Path, dict[str, str]]) -> Iterator[Store]:
    with Store(filled[0]) as opened:
        yield opened


@pytest.fixture
def app(filled: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppTest]:
    """The application over a copy of the store."""
    monkeypatch.setenv("PIVOTSCOPE_STORE", str(shutil.copy(filled[0], tmp_path)))
    monkeypatch.setattr("backend.opening.BUNDLED", tmp_path / "nothing-ships")
    yield AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    dashboard.jobs().close()
    st.cache_resource.clear()


def shown(app: AppTest, campaigns: str = "", **address: str) -> AppTest:
    for key, value in {"campaigns": campaigns, **address}.items():
        if value:
            app.query_params[key] = value
    app.switch_page("pages/compare.py").run()
    assert not app.exception, app.exception[0].message
    return app


def said(app: AppTest) -> str:
    kinds = (app.markdown, app.caption, app.info, app.error, app.subheader)
    return "\n".join(str(element.value).replace("\\", "") for kind in kinds for element in kind)


def transcripts(app: AppTest) -> list[dict[str, object]]:
    """What the browser is sent of each drawn transcript, the legend left out."""
    sent = [json.loads(element.proto.json) for element in app.get("bidi_component") if '"view"' in element.proto.json]
    return [data for data in sent if data["show"] == "text"]


# The sides and their tables


def test_a_side_holds_what_the_report_counts(store: Store, ids: dict[str, str]) -> None:
    comparison = sides.compare(store, [ids["Alpha"], "Beta"])
    assert comparison.names == ["Alpha", "Beta"]
    for campaign, side in zip(comparison.campaigns, comparison.sides, strict=True):
        document = report(store, [campaign])
        assert (len(side.credits), int(side.credits.eligible.sum())) == (document["pivots"], document["eligible"])
        assert side.finished.sum() == document["problems"]
        rows = store.problems(campaign)
        assert (side.right.sum(), side.graded.sum()) == (
            sum(row["correct"] for row in rows),
            sum(row["rollouts"] for row in rows),
        )


def test_problems_of_different_sets_are_not_shared(store: Store, ids: dict[str, str]) -> None:
    comparison = sides.compare(store, [ids["Alpha"], ids["receipt"]])
    assert (comparison.shared(0, 1), comparison.unshared(0, 1)) == (0, (4, 3))
    assert "share no problem" in compare_view.shared_sentence(comparison, 0, 1)
    found = sides.differences_of(store, comparison, 0, 1)
    assert compare_view.headline("Alpha", "receipt", found) == "receipt and Alpha share nothing that both measured."


def test_what_is_compared_unasked_shares_most_problems(store: Store, ids: dict[str, str]) -> None:
    assert store.shared_problems(ids["Alpha, fewer"]) == {
        ids["Alpha"]: 3,
        ids["Beta"]: 3,
        ids["Alpha, k = 4"]: 3,
    }
    offered = [ids[name] for name in ("Alpha", "receipt", "Alpha, fewer", "Beta", "Alpha, k = 4")]
    assert sides.proposed(store, offered) == [ids["Alpha"], ids["Beta"]]
    assert sides.proposed(store, offered[1:3]) == offered[1:3]  # nothing shared is no reason to show nothing


def test_unshared_problems_are_said(store: Store, ids: dict[str, str]) -> None:
    comparison = sides.compare(store, [ids["Alpha"], ids["Alpha, fewer"]])
    assert compare_view.shared_sentence(comparison, 0, 1) == (
        "Differences are over the 3 problems that both finished; left out: 1 of Alpha alone."
    )
    found = sides.differences_of(store, comparison, 0, 1)
    assert {one.difference for one in found} == {0}  # over what they share they are the same


@pytest.mark.parametrize("number", [1, 5])
def test_a_comparison_takes_two_to_four(store: Store, ids: dict[str, str], number: int) -> None:
    with pytest.raises(UserError, match=f"2 to 4 different campaigns, not {number}"):
        sides.compare(store, list(ids.values())[:number])


def test_metrics_side_by_side_are_the_reports(store: Store, ids: dict[str, str]) -> None:
    comparison = sides.compare(store, [ids["receipt"], ids["other receipt"]])
    documents = [report(store, [campaign]) for campaign in comparison.campaigns]
    rows = {row["metric"]: row for row in compare_metrics.metrics_beside(comparison, documents)}
    assert rows["refeed"]["receipt"].startswith("100.0 %")
    assert rows["refeed polarity reversals"]["receipt"] == "9"
    assert (rows["refeed"]["other receipt"], rows["eligible"]["other receipt"]) == ("0.0 %", "1")
    table = compare_metrics.metrics_table(comparison, documents)
    assert [row["excess"] for row in table.rows] == [100.0, 0.0]
    assert "refeed_ci95_low" in table.csv().splitlines()[0]


def test_what_was_set_differently(store: Store, ids: dict[str, str]) -> None:
    comparison = sides.compare(store, [ids["Alpha"], ids["Alpha, k = 4"], ids["Beta"]])
    rows = {row["fact"]: row for row in compare_metrics.settings_table(store, comparison).rows}
    assert rows["k"] == {"fact": "k", "Alpha": "2", "Alpha, k = 4": "4", "Beta": "2"}
    assert (rows["model"]["Alpha, k = 4"], rows["model"]["Beta"]) == ("alpha", "beta")


def test_a_difference_reads_with_its_sign() -> None:
    assert compare_tables.signed(0.04, compare_tables.points) == "0.0 pp"
    assert compare_tables.signed(1.0, compare_tables.points) == "+1.0 pp"
    assert compare_tables.signed_range((-1.0, 2.0), compare_tables.points) == "−1.0 to +2.0 pp"


# Columns


def test_transcripts_are_marked_where_they_part(store: Store, ids: dict[str, str]) -> None:
    names = ("Alpha", "Beta", "Alpha, k = 4")
    problem = store.problems(ids["Alpha"])[0]["problem"]
    columns = aligned([read(store, i, name, Place(ids[name], problem, 0)) for i, name in enumerate(names)])
    texts = [b"".join(column.bytes()) for column in columns]
    first = next(i for i, (a, b) in enumerate(zip(*texts[:2], strict=False)) if a != b)
    assert [column.view.parts for column in columns] == [
        columns[0].view.prompt_length + first,
        columns[1].view.prompt_length + first,
        None,  # the same text: the rollouts do not depend on k
    ]
    assert f"Beta parts from Alpha after {first} tokens" in parting(columns)
    assert "Alpha, k = 4 is the same text" in parting(columns)
    at = columns[0].view.prompt_length + first
    assert counterpart(columns[0], at, columns[2]) == at
    assert counterpart(columns[0], at - 1, columns[1]) == at - 1
    assert counterpart(columns[0], at, columns[1]) is None


def test_the_best_and_the_worst_rollout_come_first() -> None:
    def row(number: int, correct: bool | None, tokens: int, finish: str = "stop") -> dict[str, object]:
        return {"rollout": number, "correct": correct, "tokens": tokens, "finish_reason": finish}

    rows = [row(0, False, 10), row(1, True, 30), row(2, True, 20), row(3, False, 90, "length"), row(4, None, 5)]
    assert compare_view.by_merit(rows) == [2, 1, 4, 0, 3]
    assert list(compare_view.offered(rows)) == [2, 3, 0, 1, 4]
    there = {0: rows, 1: rows[:2]}
    assert {label: choice for label, _, choice in compare_view.rollout_choices(there)} == {
        "Best of each": {0: 2, 1: 1},
        "Worst of each": {0: 3, 1: 0},
        "Same number": {0: 1, 1: 1},
    }
    assert compare_view.chosen_rollouts(there, ["4", "0"], False) == {0: 4, 1: 0}
    assert compare_view.chosen_rollouts(there, ["4", "nonsense"], False) == {0: 4, 1: 1}
    assert compare_view.chosen_rollouts(there, [""], True) == {0: 1, 1: 1}


def test_critical_tokens_stand_in_their_text(store: Store, ids: dict[str, str]) -> None:
    comparison = sides.compare(store, [ids["Alpha"], ids["Alpha, k = 4"]])
    found = sides.critical_of(store, comparison, 0, 1, Fraction(1, 4))
    assert found is not None
    assert found.apart == (0, 0)
    assert found.measured == len(comparison.sides[0].credits)
    rows = compare_view.critical_rows(store, comparison, 0, 1, found)
    assert len(rows) == found.both + found.only_first + found.only_second > 0
    for row in rows:
        rollout = store.rollout(ids["Alpha"], row["problem"], row["rollout"])
        token = [*rollout.prompt_ids, *rollout.ids][row["position"]]
        marked = row["text"].partition("⟦")[2].partition("⟧")[0]
        assert marked.encode() == store.token_bytes(ids["Alpha"], [token])[token]
    assert sides.critical_of(store, sides.compare(store, [ids["receipt"], ids["other receipt"]]), 0, 1) is None


# The page


def test_a_store_without_campaigns_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIVOTSCOPE_STORE", str(tmp_path / "empty.duckdb"))
    monkeypatch.setattr("backend.opening.BUNDLED", tmp_path / "nothing-ships")
    app = shown(AppTest.from_file(str(ROOT / "app.py"), default_timeout=60))
    assert "A comparison needs two campaigns." in said(app)
    dashboard.jobs().close()
    st.cache_resource.clear()


def test_every_view_draws(app: AppTest, ids: dict[str, str]) -> None:
    chosen = f"{ids['Alpha']},{ids['Beta']},{ids['Alpha, k = 4']},{ids['receipt']}"
    for view in ("Metrics", "Curves", "Transcripts", "Critical tokens"):
        shown(app, chosen, view=view)
        assert "Beta against Alpha: excess" in said(app), view
    assert len(app.multiselect(key="compare_campaigns").value) == 4


def test_a_receipt_has_numbers_and_no_transcript(app: AppTest, ids: dict[str, str]) -> None:
    shown(app, f"{ids['receipt']},{ids['other receipt']}", view="Transcripts")
    assert "receipt and other receipt hold no transcripts: a receipt has measurements alone." in said(app)
    assert not transcripts(app)
    shown(app, f"{ids['receipt']},{ids['other receipt']}", view="Critical tokens")
    assert "no token in common" in said(app)


def test_the_address_restores_problem_rollouts_and_token(app: AppTest, ids: dict[str, str], store: Store) -> None:
    problem = store.problems(ids["Alpha"])[2]["problem"]
    rollout = store.rollout(ids["Beta"], problem, 1)
    position = next(pivot.position for pivot in rollout.pivots if pivot.measurements)
    chosen = f"{ids['Alpha']},{ids['Beta']}"
    shown(app, chosen, view="Transcripts", problem=problem, rollouts="0,1", picked=f"1-{position}")
    assert app.selectbox(key="compare_problem").value == problem
    assert [app.selectbox(key=f"compare_rollout_{place}").value for place in (0, 1)] == [0, 1]
    drawn = transcripts(app)
    assert drawn[1]["selected"] == position
    assert {data["group"] for data in drawn} == {"compare"}
    assert f"Position {position}" in said(app)


def test_credits_of_a_token_are_beside_what_replaced_it(app: AppTest, ids: dict[str, str], store: Store) -> None:
    problem = store.problems(ids["Alpha"])[0]["problem"]
    picked = read(store, 0, "Alpha", Place(ids["Alpha"], problem, 0)).picked
    pivot = next(pivot for pivot in picked.rollout.pivots if pivot.measurements)
    chosen = f"{ids['Alpha']},{ids['Alpha, k = 4']}"
    shown(app, chosen, view="Transcripts", problem=problem, rollouts="0,0", picked=f"0-{pivot.position}")
    rows = next(table.value for table in app.table if "in its place" in table.value)
    assert list(rows["in its place"]) == [repr(token_text(pivot.alternative, picked.texts))] * 2
    assert list(rows["k"]) == ["2", "4"]


@pytest.mark.parametrize("picked", ["7-90", "1-0", "1-99999", "x", "1-²", "-"])
def test_a_token_that_is_not_there_is_not_picked(app: AppTest, ids: dict[str, str], picked: str) -> None:
    shown(app, f"{ids['Alpha']},{ids['Beta']}", view="Transcripts", picked=picked)
    assert "Click any token of any column" in said(app)


def test_an_unknown_campaign_in_the_address_is_a_sentence(app: AppTest) -> None:
    shown(app, "Alhpa,Beta")
    assert "There is no campaign 'Alhpa'; did you mean Alpha" in said(app)


def test_choosing_one_campaign_asks_for_another(app: AppTest, ids: dict[str, str]) -> None:
    shown(app, f"{ids['Alpha']},{ids['Beta']}")
    app.multiselect(key="compare_campaigns").set_value([ids["Alpha"]]).run()
    assert not app.exception
    assert "Choose 2 to 4 campaigns." in said(app)
    app.multiselect(key="compare_campaigns").set_value([ids["Alpha"], ids["receipt"]]).run()
    assert app.query_params["campaigns"] == f"{ids['Alpha']},{ids['receipt']}"


def test_jumping_to_the_worst_rollouts_writes_the_address(app: AppTest, ids: dict[str, str], store: Store) -> None:
    shown(app, f"{ids['Alpha']},{ids['Beta']}", view="Transcripts")
    problem = app.selectbox(key="compare_problem").value
    app.button(key="compare_Worst of each").click().run()
    worst = [compare_view.by_merit(store.rollouts(ids[name], problem))[-1] for name in ("Alpha", "Beta")]
    assert app.query_params["rollouts"] == ",".join(map(str, worst))
