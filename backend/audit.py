"""How many recorded low-margin positions of a rollout are phantoms of a mis-sorted top-k.

Where a record sorts a logprob of exactly 0.0 (probability 1) last, as if it were a missing value, the first two
entries are both improbable and close together, and a certain token looks like a pivot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from backend.importers.rollouts import load_rollout
from backend.pivots import margin

LOW_MARGIN = 1.0
"""Nats: a margin below this is low (the study's pivot filter)."""


def audit_rollouts(paths: Iterable[Path]) -> dict[str, int]:
    """Counts over the tokens of rollout files, in float64. Raises `UserError` for a file that is no rollout.

    `zero_logprobs`: any of the top-k is 0.0. `recorded_low_margin`: top-k[0] − top-k[1] < 1 as stored.
    `true_low_margin`: the same after sorting. `phantom_pivots`: recorded and not true. `ties`: the sorted top two are
    equal. What is not finite takes no part in a margin.
    """
    counts = dict.fromkeys(
        ("tokens", "zero_logprobs", "recorded_low_margin", "true_low_margin", "phantom_pivots", "ties"), 0
    )
    for path in paths:
        for token in load_rollout(path).tokens:
            logprobs = [candidate.logprob for candidate in token.topk]
            true = margin(logprobs)
            is_recorded = _low(_recorded_margin(logprobs))
            is_true = _low(true)
            counts["tokens"] += 1
            counts["zero_logprobs"] += any(value == 0.0 for value in logprobs)
            counts["recorded_low_margin"] += is_recorded
            counts["true_low_margin"] += is_true
            counts["phantom_pivots"] += is_recorded and not is_true
            counts["ties"] += true == 0.0
    return counts


def _recorded_margin(logprobs: Sequence[float | None]) -> float | None:
    if len(logprobs) < 2:
        return None
    first, second = logprobs[:2]
    if first is None or second is None or not (math.isfinite(first) and math.isfinite(second)):
        return None
    return first - second


def _low(value: float | None) -> bool:
    return value is not None and value < LOW_MARGIN
