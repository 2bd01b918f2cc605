"""How long a stage of training lasts and how its learning rate falls."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

WARM_UP = 5
"""Steps over which the learning rate rises to its peak."""
FLOOR = 0.1
"""What is left of the peak at the end."""


class Schedule:
    """Steps until their number or the time is used up; the rate falls along with whichever is used faster."""

    def __init__(self, steps: int, seconds: float, optimiser: torch.optim.Optimizer, peak: float) -> None:
        self._steps, self._seconds, self._optimiser, self._peak = steps, seconds, optimiser, peak
        self._started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the stage began."""
        return time.monotonic() - self._started

    def __iter__(self) -> Iterator[int]:
        """Count steps from 1, with the optimiser's learning rate set for each."""
        for step in range(1, self._steps + 1):
            used = max((step - 1) / self._steps, self.elapsed / self._seconds)
            if used >= 1:
                return
            for group in self._optimiser.param_groups:
                group["lr"] = self._peak * min(1.0, step / WARM_UP) * max(FLOOR, 1 - used)
            yield step
