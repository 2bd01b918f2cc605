"""Take the README's pictures anew: `python -m tests.pictures`. Look at them before they are committed."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect

from backend.files import file_sha256
from tests.browser import ROOT, chromium, serve

PICTURES = ROOT / "data" / "pictures"
PATIENCE = 120_000


def main() -> None:
    """Over the campaigns that ship, in a store of its own."""
    expect.set_options(timeout=PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        store = {"PIVOTSCOPE_STORE": str(Path(folder) / "store.duckdb")}
        with chromium() as browser, serve(ROOT / "app.py", store) as url:
            base, sft, grpo = (bundled(name) for name in ("stock", "sft", "grpo"))
            page = opened(browser, url)
            take(page, "transcript")  # a first visit opens on a picked token
            page.goto(f"{url}/campaign?campaign={base}")
            take(page, "campaign")
            page.goto(f"{url}/compare?campaigns={sft},{grpo}&view=Transcripts")
            take(page, "compare")


def bundled(name: str) -> str:
    """The id of a campaign that ships."""
    return file_sha256(ROOT / "data" / "demo" / f"smollm2-{name}.parquet")[:12]


def opened(browser: Browser, url: str) -> Page:
    """A page on which every bundled campaign has come in."""
    page = browser.new_page(viewport={"width": 1400, "height": 1250}, color_scheme="light")
    page.set_default_timeout(PATIENCE)
    page.goto(url)
    expect(page.get_by_role("option").first).to_be_visible()
    expect(page.get_by_text("Loading bundled campaigns")).to_have_count(0)
    return page


def take(page: Page, name: str) -> None:
    """A picture of what is on the screen once nothing on it is still being drawn."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)
    page.wait_for_timeout(2_000)  # charts and tables draw themselves after they are there
    expect(page.get_by_test_id("stSkeleton")).to_have_count(0)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
