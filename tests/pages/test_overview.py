"""The overview page: a row a campaign, a way in for one and for a pool, and a way out of an empty store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from backend import dashboard
from tests.backend.pools import BY_HAND
from tests.backend.receipts import hold, receipt

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppTest]:
    """The application over a new store."""
    monkeypatch.setenv("PIVOTSCOPE_STORE", str(tmp_path / "store.duckdb"))
    monkeypatch.setattr("backend.opening.BUNDLED", tmp_path / "nothing-ships")
    yield AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    dashboard.jobs().close()
    st.cache_resource.clear()


def shown(app: AppTest) -> AppTest:
    app.switch_page("pages/overview.py").run()
    assert not app.exception
    return app


def tick(app: AppTest, *rows: int) -> AppTest:
    """Tick rows of the table, as the browser would."""
    app.session_state["table_overview"] = {"selection": {"rows": list(rows), "columns": [], "cells": []}}
    app.run()
    assert not app.exception
    return app


def links(app: AppTest) -> list[Any]:
    return [element.proto for element in app.get("page_link")]


def test_an_empty_store_says_what_to_do(app: AppTest) -> None:
    shown(app)
    assert "No campaign has pivots yet" in app.info[0].value
    assert [link.label for link in links(app)] == ["Import files", "Start a campaign"]
    assert not app.dataframe


def test_every_campaign_has_a_row_with_its_floor_and_its_link(app: AppTest, tmp_path: Path) -> None:
    held = dashboard.store()
    hold(held, tmp_path, receipt([(1, 1, 1, 1), (2, 1, 1, 1)]), "steady")
    moved = hold(held, tmp_path, receipt(BY_HAND), "moved")
    frame = shown(app).dataframe[0].value
    assert frame["name"].tolist() == ["moved", "steady"]
    assert frame["link"][0] == f"campaign?campaign={moved}#moved"
    assert frame["refeed_rate"].tolist() == pytest.approx([300 / 7, 0.0])
    assert frame["replica_rate"].tolist() == pytest.approx([200 / 7, 0.0])
    assert frame["excess_pp"].tolist() == pytest.approx([100 / 7, 0.0])
    assert frame["t_equal_weight"].isna().tolist() == [False, True]


def test_ticked_rows_open_as_one_campaign_or_as_a_pool(app: AppTest, tmp_path: Path) -> None:
    held = dashboard.store()
    first = hold(held, tmp_path, receipt(BY_HAND), "first")
    second = hold(held, tmp_path, receipt(BY_HAND, scan_start=20), "second")
    hold(held, tmp_path, receipt([(1, 0, 0, 0)], 8), "eight")
    tick(shown(app), 0)
    (link,) = links(app)
    assert (link.label, link.query_string) == ("Open first", f"campaign={first}")
    (link,) = links(tick(app, 0, 1))
    assert (link.label, link.query_string) == ("Open first + second", f"campaign={first}&campaign={second}")
    assert not links(tick(app, 0, 2))
    assert any("cannot be pooled\\: k is 4 in first and 8 in eight" in caption.value for caption in app.caption)
