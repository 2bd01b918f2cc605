"""What holds for every test of the backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def nothing_ships() -> Iterator[None]:
    """New stores begin empty; tests of the campaigns that ship say so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIVOTSCOPE_BUNDLED", "")
        yield
