"""Fixtures that every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


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
