"""A stranger's first minutes, in a real Chromium on the real weights: sample, click, three credits, reload, keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import duckdb
import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from backend.files import file_sha256
from backend.ingest import Campaign
from backend.records import ProblemRecord, Rollout, TokenText
from backend.settings import make_settings
from backend.store import Store
from tests.browser import ROOT, serve

expect.set_options(timeout=60_000)  # a shared machine can be slow; what is shown counts, not when

BUNDLE = ROOT / "data" / "demo" / "smollm2-stock.parquet"
HOSTILE = "<img src=x onerror=window.hostile=1>"
SLOW = 240_000
"""Milliseconds for what a model computes on a busy machine."""

pytestmark = [pytest.mark.browser, pytest.mark.weights]


def hostile_store(path: Path) -> str:
    """A store with one rollout whose token texts try to be markup; gives the campaign's id."""
    settings = make_settings({"name": "hostile", "model": "nobody", "engine": "transformers"}, "test")
    tops = [[1, 2, 5]] * 3
    rollout = Rollout(0, 1, [5, 6], [1, 2, 1], [-0.5] * 3, tops, [[-0.5, -1.0, -2.0]] * 3, "stop", HOSTILE, False)
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
def stock() -> str:
    """The address of a bundled rollout made by vLLM on an H200: the shortest with pivots, to be rebuilt soon."""
    query = """
        SELECT problem, r.rollout FROM (SELECT problem, unnest(rollouts) AS r FROM read_parquet(?))
        WHERE len(r.pivots) > 0 ORDER BY len(r.ids), problem LIMIT 1
    """
    ((problem, rollout),) = duckdb.connect().execute(query, [str(BUNDLE)]).fetchall()
    return f"campaign={file_sha256(BUNDLE)[:12]}&problem={problem}&rollout={rollout}"


@pytest.fixture(scope="module")
def url(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("transcript")
    hostile_store(folder / "store.duckdb")
    (folder / "bundled").mkdir()
    (folder / "bundled" / BUNDLE.name).symlink_to(BUNDLE)
    env = {"PIVOTSCOPE_STORE": str(folder / "store.duckdb"), "PIVOTSCOPE_BUNDLED": str(folder / "bundled")}
    with serve(ROOT / "app.py", env) as address:
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


def slide(page: Page, name: str, keys: str) -> None:
    """Press keys on a slider, and wait until the page has taken each in."""
    slider = page.get_by_role("slider", name=name)
    slider.focus()
    for key in keys.split():
        before = slider.get_attribute("aria-valuenow")
        page.keyboard.press(key)
        expect(slider).not_to_have_attribute("aria-valuenow", before or "")
    settled(page)


def settled(page: Page) -> None:
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")


def short_replays(page: Page) -> None:
    """Two continuations of sixteen tokens an arm: a reload asks for the usual four of sixty-four again."""
    opener = page.get_by_role("button", name="Replay settings")
    opener.click()
    slide(page, "Tokens a continuation", "Home")
    slide(page, "Continuations an arm", "ArrowLeft")
    opener.click()
    expect(page.get_by_role("slider", name="Tokens a continuation")).to_have_count(0)


def engine_processes(url: str) -> list[psutil.Process]:
    """The engine processes of the server at an address, and of no other."""
    port = f"--server.port={urlsplit(url).port}"
    (server,) = [one for one in psutil.process_iter(["cmdline"]) if port in (one.info["cmdline"] or [])]
    return [child for child in server.children(recursive=True) if "backend.worker" in child.cmdline()]


def finished(page: Page) -> list[str]:
    """Wait for a replay's end; the three credits."""
    expect(page.get_by_role("button", name=re.compile("Replay again"))).to_be_visible(timeout=SLOW)
    expect(page.get_by_test_id("stMetricValue")).to_have_count(3)
    shown = credits_shown(page)
    assert all(re.fullmatch(r"0\.00|[+−][01]\.\d\d", value) for value in shown), shown
    return shown


def test_hostile_text_stays_text(url: str, page: Page, campaign: str) -> None:
    page.goto(f"{url}/?campaign={campaign}&position=3")
    expect(page.get_by_role("option").first).to_have_text(HOSTILE)
    expect(page.get_by_text("Position 3")).to_be_visible()
    page.get_by_role("combobox", name="In its place").click()
    expect(page.get_by_role("option", name="<b>prompt</b>")).to_be_visible()
    assert page.evaluate("window.hostile") is None
    assert page.locator("img[src=x]").count() == 0


def test_sample_click_reload_keyboard_and_a_killed_engine(url: str, page: Page) -> None:
    page.goto(url)
    page.get_by_text("Sample rollouts", exact=True).first.click()
    page.get_by_role("combobox", name="Model").click()
    page.get_by_role("option", name="smollm2-135m", exact=True).click()
    settled(page)
    slide(page, "Rollouts", "Home")
    slide(page, "Tokens a rollout, at most", "Home")
    page.get_by_role("button", name="Sample rollouts").click()
    expect(page).to_have_url(re.compile("problem=arithmetic-0000&rollout=0"), timeout=SLOW)
    tokens = page.get_by_role("option")
    expect(tokens.nth(20)).to_be_visible()

    # A click: the passes arrive one by one.
    short_replays(page)
    page.evaluate(
        """() => {
            window.counts = new Set();
            const look = () => window.counts.add(document.querySelectorAll("[data-testid=stMetricValue]").length);
            new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
        }"""
    )
    tokens.nth(2).click()
    shown = finished(page)
    assert 1 in page.evaluate("[...window.counts]"), "the exact pass was not shown before the others"
    expect(page.get_by_text("Live: exact resumed the very state")).to_be_visible()

    # A reload, as a stranger would open the link, shows the same without computing anything.
    address = page.url
    assert "position=" in address
    page.goto("about:blank")
    page.goto(address)
    assert finished(page) == shown
    expect(page.get_by_role("option", selected=True)).to_have_count(1)
    expect(tokens.nth(2)).to_have_attribute("aria-selected", "true")

    # n and p walk the pivots, arrows the tokens; Enter replays.
    short_replays(page)
    box = page.get_by_role("listbox", name="Generated tokens")
    box.focus()
    here = box.get_attribute("aria-activedescendant")
    assert here == tokens.nth(2).get_attribute("id")
    page.keyboard.press("n")
    pivot = box.get_attribute("aria-activedescendant")
    assert pivot is not None
    assert pivot != here
    expect(page.locator(f"#{pivot}")).to_have_class(re.compile("candidate"))
    page.keyboard.press("p")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert box.get_attribute("aria-activedescendant") == tokens.nth(3).get_attribute("id")
    page.keyboard.press("Enter")
    expect(page).not_to_have_url(address)
    expect(page.get_by_text("waiting")).not_to_have_count(0)

    # The engine is killed at work: the page says so, and the next click has another engine bring the rollout back.
    (engine,) = engine_processes(url)
    engine.kill()
    expect(page.get_by_text(re.compile(f"The engine process {engine.pid} ended by signal 9"))).to_be_visible()
    tokens.nth(3).click()
    finished(page)
    expect(page.get_by_text("Rebuilt, verified:")).to_be_visible()
    expect(page.get_by_text("ended by signal 9")).to_have_count(0)
    (other,) = engine_processes(url)
    assert other.pid != engine.pid


def test_a_campaign_of_another_engine_is_replayed_on_the_readers_own(url: str, page: Page, stock: str) -> None:
    off = page.get_by_text(re.compile(r"Rebuilt, off by [\d.]+ nats: this rollout was sampled by another engine"))
    theirs = page.get_by_text(re.compile(r"Measured by vllm [\d.]+, bfloat16, NVIDIA H200"))
    page.goto(f"{url}/?{stock}")
    short_replays(page)
    page.locator("[role=option]:not(.measured):not(.special)").first.click()
    finished(page)
    expect(page.get_by_text("Measured by transformers")).to_be_visible()
    expect(off).to_be_visible()
    page.get_by_role("tab", name="Checks").click()
    expect(
        page.get_by_text(re.compile("exact_logprobs_bitwise: fail.*found other next-token logprobs"))
    ).to_be_visible()

    # A token that the campaign measured shows what was recorded.
    page.locator("[role=option].measured.candidate").last.click()
    expect(theirs).to_be_visible()
    expect(page.get_by_text("Live: exact resumed the very state")).to_be_visible()
    recorded = credits_shown(page)
    assert len(recorded) >= 3

    # Replayed all the same, the new run stands beside it.
    page.get_by_role("button", name=re.compile("Replay again")).click()
    expect(page.get_by_text("Run", exact=True)).to_be_visible(timeout=SLOW)
    finished(page)
    expect(off).to_be_visible()
    expect(theirs).to_have_count(0)
    page.get_by_role("combobox", name="Run").click()
    page.get_by_role("option", name=re.compile("^Campaign, vllm")).click()
    expect(theirs).to_be_visible()
    expect(page.get_by_test_id("stMetricValue")).to_have_count(len(recorded))
    assert credits_shown(page) == recorded

    # With another token in its place the pivot's own alternative stays what it was.
    heading = page.get_by_text(re.compile("^actual .* margin"))
    own = heading.inner_text()
    page.get_by_role("combobox", name="In its place").click()
    another = page.get_by_role("option", name=re.compile(r"%$")).nth(1)
    other = another.inner_text()
    another.click()
    page.get_by_role("button", name=re.compile("Replay again")).click()
    expect(heading.filter(has_not_text=own)).to_have_count(1)  # the old one may still be on its way out
    finished(page)
    expect(page.get_by_role("combobox", name="In its place")).to_have_value(other)
    page.get_by_role("combobox", name="Run").click()
    expect(page.get_by_role("option", name=re.compile("^Replay .* with '.*', transformers"))).to_have_count(1)
    page.get_by_role("option", name=re.compile("^Campaign, vllm")).click()
    expect(heading.filter(has_text=own)).to_have_count(1)


def test_a_link_to_a_campaign_that_is_not_there_says_so_and_keeps_its_address(
    url: str, page: Page, campaign: str
) -> None:
    page.goto(f"{url}/?campaign=nowhere")
    warning = page.get_by_text("Campaign nowhere of the address has no transcripts here.")
    expect(warning).to_be_visible()
    expect(page).to_have_url(re.compile("campaign=nowhere$"))
    page.get_by_role("combobox", name="Campaign").click()
    page.get_by_role("option", name="hostile").click()
    expect(page.get_by_role("option", name=HOSTILE).first).to_be_visible()
    expect(page).to_have_url(re.compile(f"campaign={campaign}"))
    expect(warning).to_have_count(0)
