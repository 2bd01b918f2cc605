"""Receipts written for tests, and a store that holds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.importers import import_path
from backend.store import Store

Row = tuple[object, int | None, int | None, int | None]
"""Problem, and the numerators of exact, replica and refeed; None for a pivot that is not complete."""


def receipt(rows: Sequence[Row], k: int = 4, *, first: int = 0, **config: Any) -> dict[str, Any]:
    """A receipt with these pivots at distinct positions from `first` on."""
    return {
        "config": {
            "model": "toy/model",
            "k": k,
            "rollouts": 8,
            "temperature": 0.7,
            "top_p": 0.95,
            "margin_lt": 1.0,
            "boundary_slack": 2,
            "max_pivots_per_rollout": 5,
            "max_trunk_tokens": 512,
            "max_cont_tokens": 400,
            **config,
        },
        "final": True,
        "pivots": [
            {
                "problem_id": problem,
                "rollout": 0,
                "abs_pos": first + place,
                **{
                    f"A_{name}": None if value is None else value / k
                    for name, value in zip(("exact1", "exact2", "refeed"), values, strict=True)
                },
            }
            for place, (problem, *values) in enumerate(rows)
        ],
    }


def hold(store: Store, folder: Path, data: dict[str, Any], name: str = "receipt") -> str:
    """Write a receipt and import it; gives the campaign's id."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data))
    return import_path(store, path)[0]["campaign"]
