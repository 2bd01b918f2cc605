"""The processor's name: its kernels follow it, so that results do, too."""

from __future__ import annotations

import contextlib
import platform


def processor_name() -> str | None:
    """As Linux tells it, elsewhere what Python knows; None where neither does."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as facts:
        for line in facts:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None
