"""Campaigns compared in a real browser: aligned transcripts, a token replayed by its column's model, a shared link."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from backend.engines.scripted_model import END, SPECIAL_IDS
from backend.errors import UserError
from backend.files import file_sha256
from backend.pivots import pivot_at
from backend.store import Store
from tests.browser import ROOT, serve
from tests.pages.compared import fill

pytestmark = pytest.mark.browser
PATIENCE = 90_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("compare") / "store.duckdb"
    return path, fill(path)


@pytest.fixture(scope="module")
def targets(filled: tuple[Path, dict[str, str]]) -> list[tuple[str, int]]:
    """Problems, and positions of rollout 1 in the text that Alpha and Beta share, which nobody measured yet."""
    path, ids = filled
    found = []
    with Store(path) as store:
        for row in store.problems(ids["Beta"]):
            mine, other = (store.rollout(ids[name], row["problem"], 1) for name in ("Beta", "Alpha"))
            first, measured = len(mine.prompt_ids), {pivot.position for pivot in mine.pivots}
            for position in range(first, first + len(mine.ids)):
                until = position - first + 1
                if position in measured or mine.ids[:until] != other.ids[:until]:
                    continue
                with contextlib.suppress(UserError):  # a certain token has no alternative
                    pivot_at(mine, position, special_ids=SPECIAL_IDS, eos_ids=[END])
                    found.append((row["problem"], position))
    assert len(found) >= 2, "Alpha and Beta share no two tokens that could be cut"
    return found


@pytest.fixture(scope="module")
def url(filled: tuple[Path, dict[str, str]], targets: list[tuple[str, int]]) -> Iterator[str]:
    """The application over the filled store; the store is closed by then."""
    with serve(ROOT / "app.py", {"PIVOTSCOPE_STORE": str(filled[0])}) as url:
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1500, "height": 1400}) as context:
        context.set_default_timeout(PATIENCE)
        yield context.new_page()


def columns(page: Page) -> Locator:
    return page.get_by_role("listbox", name="Generated tokens")


def test_compare_click_replay_share(
    browser: Browser, page: Page, url: str, filled: tuple[Path, dict[str, str]], targets: list[tuple[str, int]]
) -> None:
    expect.set_options(timeout=PATIENCE)
    _, ids = filled
    problem, position = targets[0]
    page.goto(url)
    page.goto(f"{url}/compare?campaigns=Alpha,Beta&problem={problem}&rollouts=1,1")
    expect(page.get_by_role("heading", name=re.compile("Beta against Alpha: excess"))).to_be_visible()
    expect(page.get_by_text("Differences are over the 4 problems that both finished.")).to_be_visible()
    page.get_by_role("tab", name="Transcripts").click()

    # Aligned: two columns that begin alike, each marked at one token, and these tokens differ.
    shown = columns(page).filter(has=page.get_by_role("option"))
    expect(shown).to_have_count(2)
    parts = [column.locator(".t.parts") for column in (shown.nth(0), shown.nth(1))]
    for part in parts:
        expect(part).to_have_count(1)
    assert parts[0].text_content() != parts[1].text_content()

    # A click in the second column is replayed by the second column's model.
    token = shown.nth(1).locator(f"#t{position}")
    token.click()
    expect(shown.nth(0).locator(f"#t{position}")).to_have_attribute("aria-selected", "true")  # the same token there
    expect(page.get_by_text(f"Position {position}", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Replay again"))).to_be_visible()
    expect(page.get_by_role("tab", name="Checks")).to_have_count(1)
    for name in ("exact", "replica", "refeed"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    expect(token).to_have_attribute("aria-selected", "true")
    expect(page).to_have_url(re.compile(f"picked=1-{position}"))
    link, texts = page.url, columns(page).all_text_contents()

    # Behind the parting no token of the first column is the same one.
    parts[1].click()
    expect(parts[1]).to_have_attribute("aria-selected", "true")
    expect(shown.nth(0).locator("[aria-selected=true]")).to_have_count(0)

    # The link shows a stranger the same.
    with browser.new_context(viewport={"width": 1500, "height": 1400}) as context:
        context.set_default_timeout(PATIENCE)
        other = context.new_page()
        other.goto(link)
        expect(other.get_by_text(f"Position {position}", exact=True)).to_be_visible()
        selected = columns(other).locator("[aria-selected=true]")
        expect(selected).to_have_count(2)
        assert [token.get_attribute("id") for token in selected.all()] == [f"t{position}", f"t{position}"]
        expect(other.get_by_role("tab", name="Transcripts")).to_have_attribute("aria-selected", "true")
        expect(other.get_by_role("button", name=re.compile("Replay again"))).to_be_visible()
        assert columns(other).all_text_contents() == texts
    assert ids["Beta"] in link  # ids, which no renaming changes


def test_a_token_that_another_reader_has_replayed_meanwhile_is_not_replayed_again(
    browser: Browser, page: Page, url: str, targets: list[tuple[str, int]]
) -> None:
    """Also how it looks when a replay is over before its page first looks at it."""
    expect.set_options(timeout=PATIENCE)
    problem, position = targets[-1]
    address = f"{url}/compare?campaigns=Alpha,Beta&problem={problem}&rollouts=1,1&view=Transcripts"
    with browser.new_context(viewport={"width": 1500, "height": 1400}) as context:
        context.set_default_timeout(PATIENCE)
        other = context.new_page()
        for reader in (page, other):
            reader.goto(address)
            expect(columns(reader).nth(1).locator(f"#t{position}")).to_be_visible()
        for reader in (page, other):
            columns(reader).nth(1).locator(f"#t{position}").click()
            expect(reader.get_by_role("button", name=re.compile("Replay again"))).to_be_visible()
            expect(reader.get_by_text("Run", exact=True)).to_have_count(0)  # a choice between two replays


def test_two_bundled_models_side_by_side(browser: Browser, page: Page, tmp_path: Path) -> None:
    """The campaigns of two models that ship: measured tokens show what was recorded, and the link restores it."""
    expect.set_options(timeout=PATIENCE)
    bundles = [ROOT / "data" / "demo" / f"smollm2-{name}.parquet" for name in ("sft", "grpo")]
    (tmp_path / "bundled").mkdir()
    for bundle in bundles:
        (tmp_path / "bundled" / bundle.name).symlink_to(bundle)
    ids = ",".join(file_sha256(bundle)[:12] for bundle in bundles)
    environment = {"PIVOTSCOPE_STORE": str(tmp_path / "s.duckdb"), "PIVOTSCOPE_BUNDLED": str(tmp_path / "bundled")}
    with serve(ROOT / "app.py", environment) as url:
        page.goto(url)
        # Somebody who just came sees a picked token that refeed turns, beside its floor.
        expect(page.get_by_role("option", selected=True)).to_have_class(re.compile("disagrees"))
        expect(page.get_by_text(re.compile(r"Measured by vllm [\d.]+, bfloat16, NVIDIA H200"))).to_be_visible()
        expect(page.get_by_text("Loading bundled campaigns")).to_have_count(0)
        page.goto(f"{url}/compare?campaigns={ids}&view=Transcripts")
        expect(page.get_by_role("heading", name=re.compile("GRPO.* against .*SFT.*: excess"))).to_be_visible()
        shown = columns(page).filter(has=page.get_by_role("option"))
        expect(shown).to_have_count(2)
        token = shown.nth(1).locator("[role=option].measured").first
        token.click()
        expect(token).to_have_attribute("aria-selected", "true")
        expect(page.get_by_text(re.compile(r"Measured by vllm [\d.]+, bfloat16, NVIDIA H200"))).to_be_visible()
        for name in ("exact", "replica", "refeed", "shuffled"):
            expect(page.get_by_text(name, exact=True).first).to_be_visible()
        with browser.new_context(viewport={"width": 1500, "height": 1400}) as context:
            context.set_default_timeout(PATIENCE)
            other = context.new_page()
            other.goto(page.url)
            expect(other.get_by_text(re.compile("Measured by vllm"))).to_be_visible()
            selected = columns(other).nth(1).locator("[aria-selected=true]")
            expect(selected).to_have_attribute("id", token.get_attribute("id") or "")


def test_a_critical_token_opens_in_both_transcripts(page: Page, url: str, filled: tuple[Path, dict[str, str]]) -> None:
    expect.set_options(timeout=PATIENCE)
    _, ids = filled
    page.goto(url)
    chosen = f"{ids['Alpha']},{ids['Alpha, k = 4']}"
    page.goto(f"{url}/compare?campaigns={chosen}&view=Critical+tokens")
    expect(page.get_by_role("heading", name=re.compile("pivots in common text that both measured"))).to_be_visible()
    grid = page.get_by_test_id("stDataFrame")
    grid.click(position={"x": 18, "y": 52})
    page.get_by_role("button", name="See it in both transcripts").click()
    shown = columns(page).filter(has=page.get_by_role("option"))
    expect(shown).to_have_count(2)
    selected = shown.nth(0).locator("[aria-selected=true]")
    expect(selected).to_have_count(1)
    assert selected.get_attribute("id") == shown.nth(1).locator("[aria-selected=true]").get_attribute("id")
