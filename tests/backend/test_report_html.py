"""The report as one page: whole, escaped, and without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from backend.exporters import export
from backend.report import probe_deltas, report
from backend.report_html import html
from backend.store import Store
from tests.backend.pools import BY_HAND
from tests.backend.receipts import hold, receipt

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as store:
        yield store


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] != "script":
            self.texts.append(data)


def test_the_page_holds_the_numbers_the_figures_and_nothing_from_elsewhere(store: Store, tmp_path: Path) -> None:
    data = receipt(BY_HAND)
    for place, pivot in enumerate(data["pivots"]):
        pivot["greedy_first_logprob_delta_refeed"] = place / 100
    campaign = hold(store, tmp_path, data, "by-hand")
    page = Page(html(report(store, [campaign]), probe_deltas(store, [campaign])))
    text = " ".join(page.texts)
    assert "42.9 % of 7 eligible pivots; an identical repeat flips 28.6 %" in text
    assert "Only 3 problems have an eligible pivot" in text
    assert len([tag for tag, _ in page.tags if tag == "figure"]) == 5
    assert not [attributes for _, attributes in page.tags if {"src", "href"} & attributes.keys()]
    (policy,) = (found["content"] for _, found in page.tags if found.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_somebody_elses_text_stays_text(store: Store, tmp_path: Path) -> None:
    rows = [(HOSTILE if problem == 7 else problem, *values) for problem, *values in BY_HAND]
    campaign = hold(store, tmp_path, receipt(rows, model=HOSTILE), "hostile")  # type: ignore[arg-type]
    text = html(report(store, [campaign]))
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert HOSTILE not in text
    assert HOSTILE in "".join(page.texts)


def test_a_campaign_without_pivots_has_a_page_too(store: Store, shared: Path, tmp_path: Path) -> None:
    from backend.importers import import_path

    (row,) = import_path(store, shared / "receipts" / "rollouts" / "rollout-0.json")
    (path,) = export(store, row["campaign"], "html", tmp_path / "out")
    page = Page(path.read_text())
    assert "There are no pivots yet" in " ".join(page.texts)
    assert not [tag for tag, _ in page.tags if tag == "figure"]
    assert re.search(r"–", " ".join(page.texts))
