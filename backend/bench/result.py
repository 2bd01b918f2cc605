"""What the benchmark measures, as records and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Result:
    """One figure, with its budget where the design names one."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    direction: Literal["at least", "at most"] = "at most"
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the budget is kept; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.direction == "at least" else self.value <= self.goal


def peak_memory(pid: int) -> int:
    """Most memory a process has had resident so far, in bytes; its memory now where the system keeps no peak."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            peaks = [int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")]
    except OSError:
        peaks = []
    if peaks:
        return peaks[0]
    import psutil

    return int(psutil.Process(pid).memory_info().rss)
