"""The campaign page: the address decides what is shown, every number has its floor, pools of one setting only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from backend import dashboard
from backend.importers import import_path
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


def shown(app: AppTest, *campaigns: str) -> AppTest:
    app.switch_page("pages/campaign.py")
    if campaigns:
        app.query_params["campaign"] = list(campaigns)
    app.run()
    assert not app.exception
    return app


def title(app: AppTest) -> str:
    return str(app.title[0].value)


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def words(app: AppTest) -> str:
    return "\n".join(element.value for kind in (app.markdown, app.caption, app.warning) for element in kind)


def test_the_pool_is_read_off_the_page(app: AppTest, shared: Path) -> None:
    held = dashboard.store()
    folder = shared / "receipts" / "campaign-2026-06-11"
    primary, screened, k8 = (
        import_path(held, folder / f"{name}.json")[0]["campaign"] for name in ("primary", "screened", "k8")
    )
    shown(app, f"{primary},{screened}")
    assert title(app) == "primary + screened"
    assert metrics(app) == {
        "Refeed flips": "33.8 %",
        "Floor": "15.1 %",
        "Excess": "18.7 pp",
        "Jaccard, |Â| ≥ 0.5": "0.684",
        "Its ceiling": "0.837",
    }
    assert [metric.delta for metric in app.metric][2] == "11.6 to 26.1 pp"
    tables = [frame.value for frame in app.dataframe]
    assert tables[0]["flips"].tolist() == [215, 96]
    assert tables[0]["zero_crossings"].tolist() == [190, 89]
    assert tables[2]["exact_size"].tolist() == [515, 229, 123, 78]
    assert len(app.get("plotly_chart")) == 4
    # The other k is not on offer.
    assert k8 not in app.multiselect(key="campaign_pool").options
    assert "k8" not in app.multiselect(key="campaign_pool").options
    for tab in range(1, 4):
        app.session_state["campaign_tab"] = app.tabs[tab].label
        app.run()
        assert not app.exception
    assert [button.proto.label for button in app.get("download_button")][-4:] == [
        "Report (JSON)",
        "Report (HTML)",
        "Receipt of primary",
        "Receipt of screened",
    ]


def test_choosing_changes_the_address_and_the_page(app: AppTest, tmp_path: Path) -> None:
    held = dashboard.store()
    first = hold(held, tmp_path, receipt(BY_HAND), "first")
    second = hold(held, tmp_path, receipt(BY_HAND, scan_start=20), "second")
    other = hold(held, tmp_path, receipt(BY_HAND, 8), "eight")
    shown(app)
    assert title(app) == "first"
    app.multiselect(key="campaign_pool").select(second).run()
    assert title(app) == "first + second"
    assert app.query_params["campaign"] == [first, second]
    app.selectbox(key="campaign_first").select(other).run()
    assert title(app) == "eight"
    assert app.query_params["campaign"] == other
    assert app.multiselect(key="campaign_pool").disabled
    # Coming back without an address shows what was seen last.
    app.switch_page("pages/overview.py").run()
    app.query_params.clear()
    assert title(shown(app)) == "eight"


def test_a_further_threshold_gets_its_row_and_a_wrong_one_a_sentence(app: AppTest, tmp_path: Path) -> None:
    shown(app, hold(dashboard.store(), tmp_path, receipt(BY_HAND)))
    app.text_input(key="campaign_thresholds").set_value("0.3 0.6").run()
    assert app.dataframe[2].value["threshold"].tolist() == [0.25, 0.3, 0.5, 0.6, 0.75, 1.0]
    app.text_input(key="campaign_thresholds").set_value("half").run()
    assert "is not a decimal from 0 to 1" in app.error[0].value
    assert not app.exception


def test_an_address_of_no_campaign_is_told_and_left(app: AppTest, tmp_path: Path) -> None:
    held = dashboard.store()
    hold(held, tmp_path, receipt(BY_HAND), "first")
    eight = hold(held, tmp_path, receipt(BY_HAND, 8), "eight")
    shown(app, "firts")
    assert "did you mean first" in app.error[0].value
    assert [link.proto.label for link in app.get("page_link")] == ["All campaigns"]
    shown(app, "first", eight)
    assert "cannot be pooled" in app.error[0].value


def test_an_empty_store_and_a_campaign_without_pivots_lead_on(app: AppTest, shared: Path) -> None:
    shown(app)
    assert "no campaign yet" in app.info[0].value
    import_path(dashboard.store(), shared / "receipts" / "rollouts" / "rollout-0.json")
    shown(app)
    assert title(app) == "rollout-0"
    assert "There are no pivots yet" in words(app)
    assert [link.proto.label for link in app.get("page_link")] == ["Open its transcripts"]
    assert not app.metric


def test_doubts_come_before_the_figures_and_undefined_is_never_zero(app: AppTest, shared: Path) -> None:
    held = dashboard.store()
    cut = import_path(held, shared / "receipts" / "campaign-2026-06-10" / "k8.json")[0]["campaign"]
    greedy = import_path(held, shared / "receipts" / "campaign-2026-06-10" / "temp0.json")[0]["campaign"]
    still = import_path(held, shared / "receipts" / "campaign-2026-06-11" / "batchinv.json")[0]["campaign"]
    shown(app, cut)
    assert ["cut off" in warning.value for warning in app.warning] == [True, False]
    assert "-badge[:material/content_cut: cut off]" in words(app)
    assert "k = 1" in shown(app, greedy).warning[0].value
    assert "one changed answer moves Â by 1" in words(app)
    shown(app, still)
    assert metrics(app)["Refeed flips"] == metrics(app)["Floor"] == "0.0 %"
    bound = "under 25.9 % of problems"  # none of ten
    assert [metric.delta for metric in app.metric] == [bound, bound, *["no interval"] * 3]
    assert app.dataframe[0].value["problems_upper95"].round(1).tolist() == [25.9, 25.9]
    statistics = app.dataframe[1].value.set_index("quantity")["value"]
    assert statistics[["t, equal weight", "t, CR1", "t, jackknife", "sign-flip p"]].isna().all()


def test_a_name_from_a_file_is_no_markdown(app: AppTest, tmp_path: Path) -> None:
    rows = [("<b>[x](y)</b>", *values) for _, *values in BY_HAND]
    campaign = hold(dashboard.store(), tmp_path, receipt(rows, model="**bold** $x$"), "a_b [c](d)")  # type: ignore[arg-type]
    shown(app, campaign)
    assert title(app) == r"a\_b \[c\]\(d\)"
    assert r"\*\*bold\*\* \$x\$" in words(app)
