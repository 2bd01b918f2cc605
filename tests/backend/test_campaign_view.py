"""What the campaign page is given: the campaigns of an address, partners for a pool, figures and badges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend import campaign_view as view
from backend.drawing import file_name, plain
from backend.errors import UserError
from backend.importers import import_path
from backend.report_figures import MOST_PROBLEMS
from backend.store import Store
from tests.backend.pools import BY_HAND
from tests.backend.receipts import hold, receipt


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as store:
        yield store


def test_an_address_names_campaigns_repeated_or_with_commas() -> None:
    assert view.asked(["a", "b"]) == view.asked(["a,b"]) == view.asked(["a, b", "a"]) == ["a", "b"]
    assert view.asked([]) == view.asked([""]) == []


def test_only_campaigns_of_the_same_setting_are_offered(store: Store, tmp_path: Path, shared: Path) -> None:
    first = hold(store, tmp_path, receipt(BY_HAND), "first")
    second = hold(store, tmp_path, receipt(BY_HAND, scan_start=20), "second")
    hold(store, tmp_path, receipt(BY_HAND, 8), "eight")
    import_path(store, shared / "receipts" / "rollouts" / "rollout-0.json")
    assert view.partners(store, [first]) == [second]
    assert view.partners(store, [first, second]) == []
    assert list(view.choices(store).values())[-1] == "rollout-0"
    assert view.resolve(store, ["first", first, "second"]) == [first, second]
    with pytest.raises(UserError, match="there is no campaign"):
        view.resolve(store, ["nobody"])


def test_every_panel_says_what_it_shows_and_when_to_doubt_it(store: Store, tmp_path: Path) -> None:
    campaign = hold(store, tmp_path, receipt(BY_HAND))
    panels = view.panels(store, [campaign], None)
    assert list(panels) == ["flips", "selection", "difference", "probe", "problems"]
    assert [key for key, panel in panels.items() if panel.figure is None] == ["probe"]
    assert panels["probe"].shows == "No probe was recorded."
    assert all(panel.alt and panel.shows and panel.doubt for panel in panels.values())
    assert "3 problems: too few to lean on" in panels["flips"].doubt
    assert "exact selects 1 pivots" in panels["selection"].doubt
    assert view.panels(store, [campaign], "") is panels  # drawn once
    assert len(view.document(store, [campaign], "0.3, .6")["jaccard"]) == 6
    with pytest.raises(UserError, match="threshold"):
        view.document(store, [campaign], "half")


def test_panels_of_nothing_say_so(store: Store, tmp_path: Path) -> None:
    campaign = hold(store, tmp_path, receipt([(1, 0, 0, 0), (2, 0, 0, 0)]))
    panels = view.panels(store, [campaign], None)
    assert {panel.figure for panel in panels.values()} == {None}
    assert "no rate is defined" in panels["flips"].shows
    assert "no agreement is defined" in panels["selection"].shows
    values = [value for _, value, *_ in view.figures_of_merit(view.document(store, [campaign], None))]
    assert values == ["–"] * 5


def test_too_many_problems_are_left_to_the_table(store: Store, tmp_path: Path) -> None:
    campaign = hold(store, tmp_path, receipt([(number, 1, 1, 0) for number in range(MOST_PROBLEMS + 1)]))
    panel = view.panels(store, [campaign], None)["problems"]
    assert panel.figure is None
    assert "2,001 problems are too many to draw" in panel.shows


def test_figures_of_merit_stand_beside_their_floor(store: Store, tmp_path: Path) -> None:
    document = view.document(store, [hold(store, tmp_path, receipt(BY_HAND))], None)
    merit = {label: value for label, value, *_ in view.figures_of_merit(document)}
    assert merit == {
        "Refeed flips": "42.9 %",
        "Floor": "28.6 %",
        "Excess": "14.3 pp",
        "Jaccard, |Â| ≥ 0.5": "0.200",
        "Its ceiling": "1.000",
    }


def test_badges_tell_where_it_comes_from_and_what_the_checks_found(store: Store, shared: Path) -> None:
    (row,) = import_path(store, shared / "receipts" / "campaign-2026-06-10" / "k8.json")
    document = view.document(store, [row["campaign"]], None)
    labels = [label for label, *_ in view.badges(document)]
    assert labels == ["imported", "cut off", "7 checks unknown", "1 check passed"]


def test_a_receipt_comes_back_out(store: Store, tmp_path: Path) -> None:
    data = receipt(BY_HAND)
    campaign = hold(store, tmp_path, data)
    assert view.has_receipt(view.document(store, [campaign], None))
    back = json.loads(view.receipt(store, campaign))
    assert [pivot["A_refeed"] for pivot in back["pivots"]] == [
        pivot["A_refeed"] for pivot in sorted(data["pivots"], key=lambda pivot: pivot["problem_id"])
    ]
    assert "<h1>receipt</h1>" in view.html_page(store, view.document(store, [campaign], None))


def test_somebody_elses_text_is_no_markdown_and_no_path() -> None:
    assert plain("a_b [x](y)\n:red[z] $1$") == r"a\_b \[x\]\(y\) \:red\[z\] \$1\$"
    assert file_name("../a b/c + d") == "a-b-c-d"
    assert file_name("..") == "campaign"
