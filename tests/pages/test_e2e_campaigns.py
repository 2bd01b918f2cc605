"""Campaigns and imports in a real browser against the running application, which is killed on the way."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, Locator, Page, TimeoutError, expect

from backend.campaign_jobs import submit_campaign
from backend.jobs import Jobs
from backend.runs import RunFolder
from backend.settings import CampaignSettings, to_toml
from backend.store import Store
from tests.backend.play import PROBLEMS, campaign_settings, comparable
from tests.browser import ROOT, serve

pytestmark = pytest.mark.browser
PATIENCE = 60.0


def dashboard(store: Path) -> AbstractContextManager[str]:
    """The application over a store of its own, without the campaigns that ship; gives its address."""
    return serve(ROOT / "app.py", {"PIVOTSCOPE_STORE": str(store), "PIVOTSCOPE_BUNDLED": ""})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a problem file, for the store and its runs."""
    folder = tmp_path_factory.mktemp("campaigns")
    rows = [{"problem": one.problem, "question": one.question, "answer": one.gold} for one in PROBLEMS]
    (folder / "sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The running application over a store of its own."""
    with dashboard(folder / "store.duckdb") as url:
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(accept_downloads=True) as context:
        context.set_default_timeout(PATIENCE * 1000)
        expect.set_options(timeout=PATIENCE * 1000)
        yield context.new_page()


def scripted(folder: Path, name: str, count: int) -> CampaignSettings:
    """A campaign whose engine can be held: `hold`."""
    problems = {"file": str(folder / "sums.jsonl"), "count": count}
    return campaign_settings(name=name, problems=problems, engine_options={"hold": str(folder / f"{name}.hold")})


def hold(settings: CampaignSettings, where: str) -> None:
    """Let a campaign wait at a call of its engine, so that there is something to see however slow the machine is."""
    file = Path(settings.engine_options["hold"])
    file.with_suffix(".new").write_text(where, encoding="utf-8")
    file.with_suffix(".new").replace(file)


def let_go(settings: CampaignSettings) -> None:
    Path(settings.engine_options["hold"]).unlink()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail("nothing happened in time")


def start(page: Page, settings: CampaignSettings) -> Callable[[], None]:
    """Paste a campaign's file; gives what presses the button."""
    page.get_by_text("Start a campaign", exact=True).click()
    way, text = page.get_by_role("radio", name="Campaign file"), page.get_by_label("Or its text")
    for _ in range(3):
        way.click()
        try:
            text.wait_for(timeout=PATIENCE * 1000 / 3)
            break
        except TimeoutError:
            continue  # the box was still opening, and moved away between press and release
    text.fill(to_toml(settings))
    text.press("Control+Enter")
    button = page.get_by_role("button", name="Start campaign")
    expect(button).to_be_enabled()
    return button.click


def box(page: Page, settings: CampaignSettings) -> Locator:
    """A campaign's box in the list."""
    return page.locator(f".st-key-campaign-{settings.campaign}")


def badge(mine: Locator, word: str) -> Locator:
    """Where a campaign stands; the icon before the word is text, too."""
    return mine.get_by_text(re.compile(f"{word}$"))


def workers(process: psutil.Process) -> set[int]:
    """Engine processes below a process."""
    try:
        return {one.pid for one in process.children(recursive=True) if "backend.worker" in one.cmdline()}
    except psutil.NoSuchProcess:
        return set()


def server_of(url: str) -> psutil.Process:
    port = url.rpartition(":")[2]
    return next(one for one in psutil.Process().children() if f"--server.port={port}" in one.cmdline())


def test_started_from_a_pasted_file_watched_cancelled_resumed(page: Page, url: str, folder: Path) -> None:
    settings = scripted(folder, "watched", 4)
    hold(settings, "rollouts 3")
    page.goto(f"{url}/campaigns")
    # The first visitor of a new server comes by a deep link, and sees the whole application all the same.
    expect(page.get_by_role("link", name="Overview")).to_be_visible()
    start(page, settings)()
    expect(page.get_by_text("Campaign watched was put in the queue; see below.")).to_be_visible()
    mine = box(page, settings)
    expect(mine.get_by_text("sampling rollouts · 2 of 4 problems")).to_be_visible()
    assert mine.get_by_role("progressbar").count() == 1
    mine.get_by_role("button", name="Cancel").click()
    expect(badge(mine, "cancelled")).to_be_visible()
    expect(mine.get_by_text("k = 2 · 2 of 4 problems")).to_be_visible()

    let_go(settings)
    mine.get_by_role("button", name="Resume").click()
    expect(badge(mine, "done")).to_be_visible()
    expect(mine.get_by_text("k = 2 · 4 of 4 problems")).to_be_visible()
    mine.get_by_text("Log, problems and settings").click()
    expect(mine.get_by_role("button", name="Download CSV")).to_be_visible()
    mine.get_by_role("link", name="watched").click()
    expect(page.get_by_role("heading", name="watched", level=1)).to_be_visible()
    assert f"campaign={settings.campaign}" in page.url


def test_two_browsers_and_a_command_line_share_one_run(browser: Browser, page: Page, url: str, folder: Path) -> None:
    settings = scripted(folder, "shared", 4)
    file = folder / "shared.toml"
    file.write_text(to_toml(settings), encoding="utf-8")
    with browser.new_context() as second_context:
        second_context.set_default_timeout(PATIENCE * 1000)
        pages = [page, second_context.new_page()]
        presses = []
        for one in pages:
            one.goto(f"{url}/campaigns")
            presses.append(start(one, settings))
        hold(settings, "rollouts 2")
        before = workers(server_of(url))
        command = [sys.executable, "-m", "backend", "run", str(file), "--store", str(folder / "store.duckdb"), "--json"]
        terminal = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        for press in presses:
            press()
        loaded: set[int] = set()
        for done in (1, 2):
            for one in pages:
                expect(box(one, settings).get_by_text(f"sampling rollouts · {done} of 4 problems")).to_be_visible()
            loaded |= (workers(psutil.Process(terminal.pid)) | workers(server_of(url))) - before
            hold(settings, f"rollouts {done + 2}")
        let_go(settings)
        out, err = terminal.communicate(timeout=PATIENCE)
        assert terminal.returncode == 0, err
        document = json.loads(out)
        assert (document["state"], document["done"]) == ("done", 4)
        for one in pages:
            expect(badge(box(one, settings), "done")).to_be_visible()
            expect(box(one, settings).get_by_text("k = 2 · 4 of 4 problems")).to_be_visible()
        assert len(loaded) == 1
        run = RunFolder.of(folder / "store.duckdb", settings.campaign)
        assert [entry["kind"] for entry in run.log_entries()].count("start") == 1


def test_a_killed_dashboard_takes_its_worker_along_and_loses_nothing(
    page: Page, browser: Browser, folder: Path, tmp_path: Path
) -> None:
    store, settings = tmp_path / "store.duckdb", scripted(folder, "killed", 3)
    run = RunFolder.of(store, settings.campaign)
    hold(settings, "exact 4")
    with dashboard(store) as url:
        page.goto(f"{url}/campaigns")
        start(page, settings)()
        expect(page.get_by_text("Campaign killed was put in the queue; see below.")).to_be_visible()
        until(lambda: (progress := run.progress()) is not None and progress.phase == "replica" and progress.done == 1)
        server = server_of(url)
        (worker,) = workers(server)
        server.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: not psutil.pid_exists(worker))
        assert time.monotonic() - killed < 10
    let_go(settings)
    kept = {path.name: path.stat().st_mtime_ns for path in run.shards.glob("*.parquet")}
    assert run.state() == "interrupted"
    Store(store).close()

    with dashboard(store) as url, browser.new_context() as context:
        context.set_default_timeout(PATIENCE * 1000)
        again = context.new_page()
        again.goto(f"{url}/campaigns")
        mine = box(again, settings)
        expect(badge(mine, "interrupted")).to_be_visible()
        mine.get_by_role("button", name="Resume").click()
        expect(badge(mine, "done")).to_be_visible()
    assert {name: (run.shards / name).stat().st_mtime_ns for name in kept} == kept

    jobs = Jobs(Store(tmp_path / "undisturbed.duckdb"))
    number = submit_campaign(jobs, settings)
    until(lambda: (job := jobs.job(number)) is not None and job.over)
    with Store(store) as resumed:
        assert contents(resumed, settings.campaign) == contents(jobs.store, settings.campaign)
    jobs.close()


def contents(store: Store, campaign: str) -> list[Any]:
    """Everything stored of a campaign, without the times."""
    return [comparable(store.record(campaign, one["problem"])) for one in store.problems(campaign)]


def test_dropped_receipts_give_the_published_pooled_excess(page: Page, url: str, shared: Path, tmp_path: Path) -> None:
    receipts = shared / "receipts"
    oracle = json.loads((receipts / "oracle.json").read_text(encoding="utf-8"))["pooled"]
    page.goto(f"{url}/import_export")
    page.get_by_role("heading", name="Import", exact=True).wait_for()
    page.locator("input[type=file]").set_input_files([receipts / name for name in oracle["files"]])
    expect(page.get_by_text(re.compile("Will be stored as campaign primary"))).to_be_visible()
    page.get_by_role("button", name="Store 2 files").click()
    expect(page.get_by_text("2 files are in the store.")).to_be_visible()
    page.get_by_role("link", name="Open all 2 pooled").click()
    expect(page.get_by_role("heading", name="primary + screened", level=1)).to_be_visible()
    expect(page.get_by_text(f"{oracle['excess_pp']:.1f} pp").first).to_be_visible()

    with page.expect_download() as waiting:
        page.locator(".st-key-csv_flips").get_by_role("button").click()
    waiting.value.save_as(tmp_path / "flips.csv")
    with (tmp_path / "flips.csv").open(encoding="utf-8") as file:
        rows = {row["pass"].partition(" ")[0]: row for row in csv.DictReader(file)}
    for name in ("refeed", "replica"):
        for key in ("flips", "zero_crossings", "polarity_reversals"):
            assert int(rows[name][key]) == oracle[name][key]
