"""Pools of credits that several test modules use, and every number that comes out of one."""

from __future__ import annotations

import json
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from backend import credit, inference, selection
from backend.credit import Credits
from backend.inference import Bootstrap

# Three problems with eligible pivots and one without, k = 4. Columns: problem, exact, replica, refeed.
BY_HAND = [
    (7, 2, 2, 0),  # refeed crosses to zero
    (7, 0, 0, 0),  # not eligible
    (7, -1, 1, 1),  # both reverse
    (9, 0, 0, -3),  # refeed makes it eligible, and crosses from zero
    (9, 4, 3, 4),
    (9, 1, 1, 1),
    (4, 1, 0, 2),  # replica crosses to zero
    (4, -2, -2, -1),
    (1, 0, 0, 0),  # not eligible
]

QUICK = Bootstrap(draws=200)


def by_hand() -> Credits:
    return pool(4, BY_HAND)


def pool(k: int, rows: list[tuple[int, int, int, int]]) -> Credits:
    """Credits from (problem, exact, replica, refeed) rows."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return Credits(k, columns[:, 0], {"exact": columns[:, 1], "replica": columns[:, 2], "refeed": columns[:, 3]})


@st.composite
def pools(draw: st.DrawFn) -> Credits:
    """Up to 40 pivots of up to 8 problems, zeros as common as in real campaigns."""
    k = draw(st.sampled_from([1, 4, 10]))
    value = st.one_of(st.just(0), st.integers(-k, k))
    return pool(k, draw(st.lists(st.tuples(st.integers(0, 7), value, value, value), max_size=40)))


def take(credits: Credits, rows: Any) -> Credits:
    """The pivots at `rows`, in that order."""
    return Credits(credits.k, credits.cluster[rows], {name: values[rows] for name, values in credits.passes.items()})


def everything(credits: Credits, settings: Bootstrap = QUICK) -> dict[str, Any]:
    """All the numbers of a pool, by name."""
    excess = credit.excess(credits)
    numbers: dict[str, Any] = {
        "pivots": len(credits),
        "problems": credits.problems,
        "eligible": int(credits.eligible.sum()),
        "clusters": credits.clusters,
        "excess_pp": credit.excess_pp(credits),
        "conditioned_on_exact": asdict(credit.conditioned_on_exact(credits)),
        "bias": asdict(inference.bias(credit.difference(credits))),
        "jaccard": [asdict(row) for row in selection.selections(credits, [Fraction(3, 10)], settings)],
    }
    statistics = {}
    for name in credits.passes.keys() - {"exact"}:
        numbers[name] = asdict(credit.flip_counts(credits, name))
        statistics[f"{name}_ci95"] = inference.ratio_statistic(credit.flip_rate(credits, name))
    if excess is not None:
        numbers |= {
            "mean_excess_equal_weight": inference.mean_equal_weight(excess),
            "t_equal_weight": inference.t_equal_weight(excess),
            "t_cr1": inference.t_cr1(excess),
            "t_jackknife": inference.t_jackknife(excess),
            "sign_flip_p": inference.sign_flip_p(excess, settings),
        }
        statistics["excess_pp_ci95"] = inference.ratio_statistic(excess, scale=100)
    intervals = inference.percentile_intervals(list(statistics.values()), settings)
    return numbers | dict(zip(statistics, intervals, strict=True))


def published(folder: Path, files: list[str]) -> tuple[Credits, list[dict[str, Any]]]:
    """The pooled credits of published receipts, and their pivots as they stand in the files."""
    receipts = [json.loads((folder / file).read_text()) for file in files]
    pivots = [pivot for receipt in receipts for pivot in receipt["pivots"]]
    k = receipts[0]["config"]["k"]
    assert all(receipt["config"]["k"] == k for receipt in receipts)
    fields = {"exact": "A_exact1", "replica": "A_exact2", "refeed": "A_refeed"}
    return Credits(
        k,
        np.array([pivot["problem_id"] for pivot in pivots], dtype=np.int64),
        {name: np.array([_on_grid(pivot[field], k) for pivot in pivots]) for name, field in fields.items()},
    ), pivots


def _on_grid(value: float, k: int) -> int:
    numerator = round(value * k)
    assert numerator / k == value, f"{value} is not a multiple of 1/{k}"
    return numerator
