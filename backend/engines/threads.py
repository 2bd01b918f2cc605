"""How many processor threads the embedded engine uses unless told otherwise; known without loading torch."""

from __future__ import annotations

import os


def default_threads() -> int:
    """Half the cores: a step is too short to wait for more."""
    return max((os.cpu_count() or 2) // 2, 1)
