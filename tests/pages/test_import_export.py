"""Importing and exporting: what a file is before it is stored, its faults by its own name, one file out."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from backend import dashboard
from backend.errors import UserError
from backend.exchange import FORMATS, MAX_FILES, Upload, exported, inspect, take_in
from backend.shards import to_table
from backend.store import Store
from tests.backend.trees import campaign, record

ROOT = Path(__file__).resolve().parents[2]


def receipt(**changed: Any) -> bytes:
    """A receipt of one pivot."""
    pivot = {"problem_id": 7, "rollout": 0, "abs_pos": 12, "A_exact1": 0.5, "A_exact2": 0.5, "A_refeed": -0.25}
    document = {"config": {"model": "toy", "k": 4}, "pivots": [pivot | changed.pop("pivot", {})], **changed}
    return json.dumps(document).encode()


ROLLOUT = json.dumps(
    {
        "model_id": "toy",
        "prompt_token_ids": [1, 2],
        "tokens": [
            {
                "token_id": 3,
                "text": "a",
                "logprob": 0.0,
                "topk": [
                    {"token_id": 4, "text": "b", "logprob": -20.0},
                    {"token_id": 5, "text": "c", "logprob": -20.5},
                    {"token_id": 3, "text": "a", "logprob": 0.0},
                ],
            }
        ],
    }
).encode()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as store:
        yield store


def test_each_file_is_named_for_what_it_is_and_nothing_is_stored(store: Store) -> None:
    found = inspect(store, [Upload("run.json", receipt(final=False)), Upload("one.json", ROLLOUT)])
    first, second = found
    assert (first.kind, first.name, first.facts, first.error) == ("receipt", "run", "toy · k = 4", None)
    assert (first.problems, first.rollouts, first.pivots, first.known) == (1, 1, 1, False)
    assert list(first.notes) == ["The file says of itself that its run was cut off: problems are missing."]
    assert (second.kind, second.name, second.rollouts, second.pivots) == ("rollout", "one", 1, 0)
    assert list(second.notes) == [
        "1 of its 1 low-margin positions are phantoms of a top-k in which the logprob 0.0 was sorted last; "
        "margins here are sorted numerically."
    ]
    assert store.campaigns() == []


def test_what_was_shown_is_what_is_stored(store: Store) -> None:
    uploads = [Upload("run.json", receipt()), Upload("run.json", receipt(pivot={"A_refeed": 0.0}))]
    found = inspect(store, uploads)
    stored = take_in(store, uploads)
    assert [one["path"] for one in stored] == ["run.json", "run.json"]
    assert [one["campaign"] for one in stored] == [one.campaign for one in found]
    assert sorted(row["name"] for row in store.campaigns()) == sorted(["run", f"run ({found[1].campaign[:6]})"])  # type: ignore[index]
    again = inspect(store, uploads)
    assert [one.known for one in again] == [True, True]
    assert [one.name for one in again] == ["run", f"run ({found[1].campaign[:6]})"]  # type: ignore[index]
    take_in(store, uploads)
    assert len(store.campaigns()) == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "mine.json: is empty; give a receipt, a rollout, or a Parquet export"),
        (b"{", "mine.json: is not JSON: EOF while parsing an object at line 1 column 1; give"),
        (b"[1]", "mine.json: holds a JSON list; a receipt or a rollout is an object"),
        (b"{}", "mine.json: has neither `pivots` (a receipt) nor `tokens` (a rollout); give one of the two"),
        (receipt(pivot={"A_refeed": 0.3}), "mine.json: pivots[0].A_refeed is 0.3; with k = 4 it must be a multiple"),
        (b"PAR1 torn", "mine.json"),
    ],
)
def test_a_fault_is_a_sentence_with_the_uploads_own_name(store: Store, content: bytes, sentence: str) -> None:
    upload = Upload("mine.json", content)
    (found,) = inspect(store, [upload])
    assert found.kind == "unusable"
    assert str(found.error).startswith(sentence)
    assert "/" not in str(found.error).partition(";")[0].replace("mine.json", ""), "no folder of ours shows"
    with pytest.raises(UserError) as refused:
        take_in(store, [upload])
    assert str(refused.value) == found.error
    assert store.campaigns() == []


@pytest.mark.parametrize("name", ["../../x.json", "a\\b\\x.json", "/etc/x.json", "é" * 200 + ".json", ".json", ""])
def test_a_name_leads_nowhere(store: Store, name: str) -> None:
    (found,) = inspect(store, [Upload(name, receipt())])
    assert found.error is None
    assert found.name
    assert "/" not in found.name


def test_too_many_files_are_refused(store: Store) -> None:
    with pytest.raises(UserError, match=f"these are {MAX_FILES + 1} files; drop at most {MAX_FILES} at once"):
        inspect(store, [Upload("run.json", b"{}")] * (MAX_FILES + 1))


def test_every_format_is_one_file(store: Store) -> None:
    store.add_campaign(campaign(state="done"), [to_table([record("1"), record("2")])], "here")
    names = {format: exported(store, "c1", format) for format in FORMATS}
    assert {format: name for format, (name, _) in names.items()} == {
        "parquet": "small-c1.parquet",
        "csv": "small-c1.zip",
        "receipt": "small-c1.json",
        "html": "small-c1.html",
    }
    with zipfile.ZipFile(io.BytesIO(names["csv"][1])) as archive:
        assert "small-c1-measurement.csv" in archive.namelist()
    assert names["html"][1].lstrip()[:15].lower() == b"<!doctype html>"
    found = inspect(store, [Upload("back.parquet", names["parquet"][1]), Upload("back.json", names["receipt"][1])])
    assert [(one.kind, one.error, one.pivots) for one in found] == [("export", None, 4), ("receipt", None, 4)]
    assert found[0].name == "small (" + str(found[0].campaign)[:6] + ")"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppTest]:
    """The application on its import and export page, over a new store."""
    monkeypatch.setenv("PIVOTSCOPE_STORE", str(tmp_path / "store.duckdb"))
    monkeypatch.setattr("backend.opening.BUNDLED", tmp_path / "nothing-ships")
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    app.switch_page("pages/import_export.py").run()
    assert not app.exception
    yield app
    dashboard.jobs().close()
    st.cache_resource.clear()


def markdown(app: AppTest) -> str:
    return "\n".join(element.value for element in app.markdown)


def test_files_are_looked_into_stored_and_taken_away_again(app: AppTest) -> None:
    assert app.info[0].value == "There is nothing to export yet."
    uploader = app.file_uploader(key="import-files")
    uploader.set_value([("run.json", receipt(), "application/json"), ("bad.json", b"{", "application/json")]).run()
    assert not app.exception
    assert "Will be stored as campaign **run**" in markdown(app)
    assert "Is not JSON\\:" in markdown(app)
    assert dashboard.store().campaigns() == []
    app.button(key="import-store").click().run()
    assert app.success[0].value == "1 file is in the store."
    assert "In the store as campaign **run**" in markdown(app)
    assert "import-store" not in {button.key for button in app.button}
    assert [row["name"] for row in dashboard.store().campaigns()] == ["run"]

    app.selectbox(key="export-format").set_value("csv").run()
    app.button(key="export-prepare").click().run()
    assert not app.exception
    assert [error.value for error in app.error] == []
    assert app.download_button(key="export-download").label.startswith("Download run-")
    app.selectbox(key="export-format").set_value("receipt").run()
    assert not app.download_button, "what was prepared is not the format that is chosen now"
