"""The audit counts exactly what the published records hold, and the traps one by one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from backend.audit import audit_rollouts
from backend.errors import UserError


def test_the_published_rollouts_give_the_published_counts(shared: Path) -> None:
    oracle = json.loads((shared / "receipts" / "oracle.json").read_text())["rollout_audit"]
    assert audit_rollouts(sorted((shared / "receipts" / "rollouts").glob("*.json"))) == oracle


@pytest.mark.parametrize(
    ("logprobs", "zero", "recorded", "true", "phantom", "tie"),
    [
        # A certain token whose 0.0 was sorted last.
        ([-19.5, -19.75, 0.0], 1, 1, 0, 1, 0),
        ([-0.0, -25.0], 1, 0, 0, 0, 0),
        ([-0.5, -1.25], 0, 1, 1, 0, 0),
        # The threshold itself is not below it.
        ([-0.5, -1.5], 0, 0, 0, 0, 0),
        ([-0.75, -0.75, -3.0], 0, 1, 1, 0, 1),
        ([-5.0, -0.75, -0.75], 0, 1, 1, 0, 1),
        ([0.0, 0.0], 1, 1, 1, 0, 1),
        # A recorded difference far below zero is below one as well.
        ([-19.5, 0.0], 1, 1, 0, 1, 0),
        # What is not finite takes no part.
        ([-math.inf, -0.5], 0, 0, 0, 0, 0),
        ([None, -0.5, -0.75], 0, 0, 1, 0, 0),
        ([math.nan, -0.5], 0, 0, 0, 0, 0),
        ([-0.5], 0, 0, 0, 0, 0),
        ([], 0, 0, 0, 0, 0),
        # In doubles 1.0 − 0.9 is above 0.1; in single precision a margin here would round to 1.
        ([-0.1, -1.0999999999], 0, 1, 1, 0, 0),
    ],
)
def test_each_trap(
    tmp_path: Path, logprobs: list[Any], zero: int, recorded: int, true: int, phantom: int, tie: int
) -> None:
    topk = [{"token_id": i, "text": "x", "logprob": value} for i, value in enumerate(logprobs)]
    token = {"token_id": 0, "text": "x", "logprob": -0.5, "topk": topk}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"model_id": "m", "prompt_token_ids": [1], "tokens": [token, token]}))
    assert audit_rollouts([path]) == {
        "tokens": 2,
        "zero_logprobs": 2 * zero,
        "recorded_low_margin": 2 * recorded,
        "true_low_margin": 2 * true,
        "phantom_pivots": 2 * phantom,
        "ties": 2 * tie,
    }


def test_a_file_that_is_no_rollout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"pivots": []}')
    with pytest.raises(UserError, match="field model_id is missing"):
        audit_rollouts([path])
