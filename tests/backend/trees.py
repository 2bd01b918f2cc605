"""Small trees of records for tests that store, export or import them."""

from __future__ import annotations

import math
from typing import Any

from backend.ingest import Campaign
from backend.records import (
    ARMS,
    STANDARD_PASSES,
    ContinuationRecord,
    Measurement,
    Pass,
    Pivot,
    ProblemRecord,
    Rollout,
    TokenText,
)

ENGINE = "5f2c9a1be0d34477"
ENGINE_INFO = '{"attention_backend": "TRITON_ATTN", "batch_invariant": true, "engine": "scripted"}'


def measurement(name: Pass = "exact", **changed: Any) -> Measurement:
    """A complete measurement with k = 2, its numerator following from the arms."""
    n_actual, n_alternative = changed.pop("arms", (2, 1))
    fields: dict[str, Any] = {
        "pass_": name,
        "run": "campaign",
        "k": 2,
        "n_actual": n_actual,
        "n_alternative": n_alternative,
        "numerator": n_actual - n_alternative,
        "truncated_actual": 0,
        "truncated_alternative": 1,
        "provenance": "live",
        "started": "2026-11-30T10:00:00Z",
        "seconds": 0.25,
        "output_sha256": "ab" * 32,
        "requests": 6,
        "cache_misses": 0,
        "warm_requests": 6,
        "preemptions": 0,
        "logprobs_equal": True,
        "logprobs_max_difference": 0.0,
        "seeds_sha256": "cd" * 32,
        "engine": ENGINE,
        "probe_diverged": None if name == "exact" else False,
        "probe_delta": None if name == "exact" else 0.125,
        "continuations": [continuation(arm, i) for arm in ARMS for i in (-1, 0, 1)],
    }
    return Measurement(**fields | changed)


def continuation(arm: Any, i: int) -> ContinuationRecord:
    answered = None if i < 0 else "4"
    correct = None if i < 0 else i == 0
    return ContinuationRecord(arm, i, 7 + i, [5, 6], [-0.5, -0.0], "stop", answered, correct, 3, 3)


def pivot(position: int = 3, *, planned: bool = True, measurements: list[Measurement] | None = None) -> Pivot:
    """Measured by the standard passes unless told otherwise."""
    measured = [measurement(name) for name in STANDARD_PASSES] if measurements is None else measurements
    return Pivot(position, 4, 5, 0.1 + position / 100, planned, measured)


def rollout(index: int = 0, *, pivots: list[Pivot] | None = None) -> Rollout:
    """Two prompt tokens and three generated ones, with the doubles that are easily lost."""
    return Rollout(
        rollout=index,
        seed=100 + index,
        prompt_ids=[1, 2],
        ids=[3, 4, 5],
        logprobs=[-0.0, 0.0, -1e-300],
        topk_ids=[[3, 4], [4, 5], []],
        topk_logprobs=[[-0.0, -math.inf], [-0.1, -0.30000000000000004], []],
        finish_reason="stop",
        answer="4",
        correct=index == 0,
        pivots=[pivot()] if pivots is None else pivots,
    )


def tokens(last: int) -> list[TokenText]:
    """Texts of the tokens 1 to `last`, each an incomplete character."""
    return [TokenText(token, bytes([0xE2, token])) for token in range(1, last + 1)]


def record(problem: str = "sum-001", *, rollouts: list[Rollout] | None = None, **changed: Any) -> ProblemRecord:
    """A finished problem with two rollouts of one pivot each."""
    fields: dict[str, Any] = {
        "problem": problem,
        "question": "What is 2 + 2?",
        "gold": "4",
        "source": "arithmetic",
        "state": "done",
        "error": None,
        "seconds": 1.5,
        "engine": ENGINE,
        "engine_info": ENGINE_INFO,
        "rollouts": [rollout(0), rollout(1)] if rollouts is None else rollouts,
        "tokens": tokens(6),
    }
    return ProblemRecord(**fields | changed)


def campaign(campaign: str = "c1", **changed: Any) -> Campaign:
    """A row that fits the records."""
    fields: dict[str, Any] = {
        "campaign": campaign,
        "name": "small",
        "origin": "run",
        "state": "running",
        "model": "toy",
        "engine": "scripted",
        "k": 2,
        "passes": STANDARD_PASSES,
        "settings": {"model": "toy", "k": 2, "temperature": 0.7},
    }
    return Campaign(**fields | changed)
