"""A stranger's first minutes, in a real Chromium on the real weights: sample, click, three credits, reload, keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from backend.ingest import Campaign
from backend.records import ProblemRecord, Rollout, TokenText
from backend.settings import make_settings
from backend.store import Store
from tests.browser import ROOT, serve

expect.set_options(timeout=60_000)  # a shared machine can be slow; what is shown counts, not when

HOSTILE = "<img src=x onerror=window.hostile=1>"
SLOW = 240_000
"""Milliseconds for what a model computes on a busy machine."""

pytestmark = [pytest.mark.browser, pytest.mark.weights]


def hostile_store(path: Path) -> str:
    """A store with one rollout whose token texts try to be markup; gives the campaign's id."""
    settings = make_settings({"name": "hostile", "model": "nobody", "engine": "transformers"}, "test")
    tops = [[1, 2]] * 3
    rollout = Rollout(0, 1, [5, 6], [1, 2, 1], [-0.5] * 3, tops, [[-0.5, -1.0]] * 3, "stop", HOSTILE, False)
    texts = [TokenText(1, HOSTILE.encode()), TokenText(2, b"<script>window.hostile=2</script>")]
    texts += [TokenText(5, b"<b>prompt</b>"), TokenText(6, b" ")]
    record = ProblemRecord(HOSTILE, HOSTILE, "1", "test", "done", None, None, None, None, [rollout], texts)
    with Store(path) as store:
        store.ensure_campaign(Campaign.of(settings, state="done"))
        store.ingest_record(settings.campaign, record)
    return settings.campaign


@pytest.fixture(scope="module")
def campaign() -> str:
    return make_settings({"name": "hostile", "model": "nobody", "engine": "transformers"}, "test").campaign


@pytest.fixture(scope="module")
def url(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("transcript") / "store.duckdb"
    hostile_store(path)
    with serve(ROOT / "app.py", {"PIVOTSCOPE_STORE": str(path)}) as address:
        yield address


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 1200})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    yield opened
    context.close()


def credits_shown(page: Page) -> list[str]:
    """The numbers of the three passes' cards."""
    return [found.strip() for found in page.get_by_test_id("stMetricValue").all_inner_texts()]


def test_hostile_text_stays_text(url: str, page: Page, campaign: str) -> None:
    page.goto(f"{url}/?campaign={campaign}&position=3")
    expect(page.get_by_role("option").first).to_have_text(HOSTILE)
    expect(page.get_by_text("Position 3")).to_be_visible()
    assert page.evaluate("window.hostile") is None
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.skip(reason="not yet seen to pass from end to end: it took longer than three minutes on a shared machine")
def test_sample_click_reload_keyboard_and_a_killed_worker(url: str, page: Page) -> None:
    page.goto(url)
    page.get_by_text("Sample rollouts", exact=True).first.click()
    page.get_by_role("button", name="Sample rollouts").click()
    expect(page).to_have_url(re.compile("problem=arithmetic-0000"), timeout=SLOW)
    tokens = page.get_by_role("option")
    expect(tokens.nth(4)).to_be_visible(timeout=SLOW)

    tokens.nth(2).click()
    expect(page.get_by_text("waiting").first).to_be_visible(timeout=SLOW)
    expect(page.get_by_test_id("stMetricValue")).to_have_count(1, timeout=SLOW)  # exact, while the others run
    expect(page.get_by_text("Refeed", exact=False).first).to_be_visible(timeout=SLOW)
    expect(page.get_by_test_id("stMetricValue")).to_have_count(3, timeout=SLOW)
    expect(page.get_by_role("button", name=re.compile("Replay again"))).to_be_visible(timeout=SLOW)
    shown = credits_shown(page)
    assert all(re.fullmatch(r"[+−-]?[01]\.\d\d", value) for value in shown), shown

    address = page.url
    assert "position=" in address
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_test_id("stMetricValue")).to_have_count(3)
    assert credits_shown(page) == shown
    expect(page.get_by_role("option", selected=True)).to_have_count(1)

    # Kill the engine; a key press picks the next token, and a new engine rebuilds the rollout and replays it.
    killed = 0
    for process in psutil.process_iter(["cmdline", "ppid"]):
        command = process.info["cmdline"] or []
        if "backend.worker" in command and str(ROOT) in (process.cwd() or ""):
            process.kill()
            killed += 1
    assert killed >= 1
    box = page.get_by_role("listbox")
    box.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page).not_to_have_url(address)
    expect(page.get_by_test_id("stMetricValue")).to_have_count(3, timeout=SLOW)
    expect(page.get_by_role("button", name=re.compile("Replay again"))).to_be_visible(timeout=SLOW)
    page.get_by_role("tab", name="Instrument readings").click()
    expect(page.get_by_role("tab", name="Instrument readings")).to_have_attribute("aria-selected", "true")
