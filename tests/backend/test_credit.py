"""Counts and rates: the published numbers, a case counted by hand, and what may not change them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import by_hand, everything, pool, pools, published, take

from backend import credit
from backend.credit import ClusteredRatio, Credits, Flips

ENTRIES = ["pooled", "primary", "screened", "k8", "greedy", "batchinv", "truncated_k8"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_published_records_give_the_published_numbers(shared: Path, entry: str) -> None:
    folder = shared / "receipts"
    oracle = json.loads((folder / "oracle.json").read_text())[entry]
    credits, pivots = published(folder, oracle.pop("files"))
    assert credits.k == oracle.pop("k")
    probes = {name: _probe(pivots, field) for name, field in {"refeed": "refeed", "replica": "exact2"}.items()}
    numbers = everything(credits) | {"probe": probes}
    if oracle["sign_flip_p"] is None:
        # Too many patterns to go through (or no spread): the oracle does not say what drawing them should give.
        del oracle["sign_flip_p"]
    numbers["jaccard"] = [row for row in numbers["jaccard"] if row["threshold"].denominator != 10]
    _assert_contains(numbers, oracle, entry)


def test_the_oracle_is_used_whole(shared: Path) -> None:
    oracle = json.loads((shared / "receipts" / "oracle.json").read_text())
    assert set(oracle) == {*ENTRIES, "rollout_audit"}


def test_counts_of_the_case_by_hand() -> None:
    credits = by_hand()
    assert (len(credits), credits.problems, credits.clusters) == (9, 4, 3)
    assert credits.eligible.tolist() == [True, False, True, True, True, True, True, True, False]
    assert credit.flip_counts(credits, "refeed") == Flips(3, 2, 1, 3 / 7)
    assert credit.flip_counts(credits, "replica") == Flips(2, 1, 1, 2 / 7)
    assert credit.excess_pp(credits) == 100 / 7
    assert credit.conditioned_on_exact(credits) == credit.Conditioned(6, 2, 2, 0.0)
    assert credit.difference(credits).estimate == -1 / 28


def test_each_problem_of_the_case_by_hand() -> None:
    table = {name: column.tolist() for name, column in credit.problem_table(by_hand()).items()}
    assert table == {
        "cluster": [7, 9, 4, 1],
        "pivots": [3, 3, 2, 1],
        "eligible": [2, 3, 2, 0],
        "replica_flips": [1, 0, 1, 0],
        "refeed_flips": [2, 1, 0, 0],
    }


def test_further_passes_share_the_denominator_and_do_not_add_to_it() -> None:
    credits = by_hand()
    ones = np.ones(len(credits), dtype=np.int64)
    wider = Credits(4, credits.cluster, {**credits.passes, "serial": ones})
    assert wider.eligible.tolist() == credits.eligible.tolist()
    # Against exact's 2 0 −1 0 4 1 1 −2 0: of the seven eligible pivots, one is crossed from zero, two are reversed.
    assert credit.flip_counts(wider, "serial") == Flips(3, 1, 2, 3 / 7)
    assert credit.flip_counts(wider, "serial", against="refeed") == Flips(3, 1, 2, 3 / 7)


def test_without_a_replica_there_is_no_excess() -> None:
    full = by_hand()
    credits = Credits(4, full.cluster, {name: full.passes[name] for name in ("exact", "refeed")})
    numbers = everything(credits)
    assert numbers["refeed"]["flips"] == 3
    assert credit.excess(credits) is None
    assert numbers["excess_pp"] is None
    assert numbers["conditioned_on_exact"] == {"n": 6, "refeed_flips": 2, "replica_flips": None, "excess_pp": None}
    assert [(row["replica"], row["refeed_replica"], row["gap_ci95"]) for row in numbers["jaccard"]] == [(None,) * 3] * 5


@pytest.mark.parametrize("rows", [[], [(0, 0, 0, 0)], [(0, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0)]])
def test_all_zero_credits_give_nulls(rows: list[tuple[int, int, int, int]]) -> None:
    numbers = everything(pool(10, rows))
    assert (numbers["pivots"], numbers["eligible"], numbers["clusters"]) == (len(rows), 0, 0)
    undefined = {name: value for name, value in numbers.items() if name.startswith(("t_", "sign", "mean", "excess"))}
    assert set(undefined.values()) == {None}
    assert numbers["refeed_ci95"] is numbers["replica_ci95"] is None
    assert numbers["refeed"] == {"flips": 0, "zero_crossings": 0, "polarity_reversals": 0, "rate": None}
    assert numbers["conditioned_on_exact"] == {"n": 0, "refeed_flips": 0, "replica_flips": 0, "excess_pp": None}
    assert numbers["bias"] == {"mean": None, "ci95": None, "margin": 0.02, "p": None, "equivalent": None}
    empty = {"intersection": 0, "union": 0, "jaccard": None, "size": 0, "chance": None, "ci95": None}
    assert all(row[pair] == empty for row in numbers["jaccard"] for pair in ("refeed", "replica", "refeed_replica"))


@settings(deadline=None)
@given(pools(), st.randoms(use_true_random=False), st.integers(0, 40))
def test_names_order_and_splitting_change_nothing(credits: Credits, random: Any, cut: int) -> None:
    numbers = everything(credits)
    names = np.array(random.sample(range(-(10**12), 10**12), 8), dtype=np.int64)
    renamed = Credits(credits.k, names[credits.cluster], credits.passes)
    assert everything(renamed) == numbers
    order = random.sample(range(len(credits)), len(credits))
    assert everything(take(credits, np.array(order, dtype=np.int64))) == numbers
    rows = np.arange(len(credits))
    parts = [take(credits, rows[cut:]), take(credits, rows[:cut])]
    pooled = Credits(
        credits.k,
        np.concatenate([part.cluster for part in parts]),
        {name: np.concatenate([part.passes[name] for part in parts]) for name in credits.passes},
    )
    assert everything(pooled) == numbers


@settings(deadline=None)
@given(pools())
def test_swapping_replica_and_refeed_swaps_their_numbers(credits: Credits) -> None:
    passes = credits.passes
    swapped = Credits(
        credits.k,
        credits.cluster,
        {"exact": passes["exact"], "replica": passes["refeed"], "refeed": passes["replica"]},
    )
    before, after = everything(credits), everything(swapped)
    for name in ("pivots", "problems", "eligible", "clusters", "sign_flip_p"):
        assert after[name] == before[name]
    for one, other in (("refeed", "replica"), ("refeed_ci95", "replica_ci95")):
        assert (after[one], after[other]) == (before[other], before[one])
    for name in ("excess_pp", "mean_excess_equal_weight", "t_equal_weight", "t_cr1", "t_jackknife"):
        assert after[name] == _opposite(before[name]), name
    assert after["excess_pp_ci95"] == _opposite(before["excess_pp_ci95"])
    for was, now in zip(before["jaccard"], after["jaccard"], strict=True):
        assert (now["refeed"], now["replica"]) == (was["replica"], was["refeed"])
        assert now["gap_ci95"] == _opposite(was["gap_ci95"])
        assert now["refeed_replica"] == was["refeed_replica"] | {"size": was["replica"]["size"]}


@settings(deadline=None)
@given(pools())
def test_what_is_undefined_is_none_and_never_nan(credits: Credits) -> None:
    def leaves(value: Any) -> list[Any]:
        if isinstance(value, dict | list | tuple):
            parts = value.values() if isinstance(value, dict) else value
            return [leaf for part in parts for leaf in leaves(part)]
        return [value]

    for leaf in leaves(everything(credits)):
        assert leaf is None or np.isfinite(float(leaf))


@pytest.mark.parametrize(
    ("k", "cluster", "passes", "sentence"),
    [
        (0, [0], {"exact": [0]}, "k is 0"),
        (4, [0], {"refeed": [0]}, "the pass exact is missing"),
        (4, [0, 1], {"exact": [0]}, r"exact is int64\[1\]; it must be int64\[2\]"),
        (4, [0], {"exact": [0.25]}, r"exact is float64\[1\]"),
        (4, [0], {"exact": [5]}, "exact has values outside −4 … 4"),
        (4, [0], {"exact": [0], "refeed": [-5]}, "refeed has values outside −4 … 4"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    k: int, cluster: list[int], passes: dict[str, list[Any]], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Credits(k, np.array(cluster), {name: np.array(values) for name, values in passes.items()})


def test_spread_is_decided_between_fractions() -> None:
    def spread(*ratios: tuple[int, int]) -> bool:
        return ClusteredRatio(*np.array(ratios, dtype=np.int64).T).has_spread

    assert not spread((1, 3), (2, 6), (10, 30))
    assert not spread((0, 3), (0, 7))
    assert not spread((-1, 2), (-2, 4))
    assert spread((1, 2), (-1, 2))
    # Equal once rounded to a float, and yet different.
    assert (10**17 + 1) / (2 * 10**17) == 1 / 2
    assert spread((10**17 + 1, 2 * 10**17), (1, 2))


def test_probe_statistics() -> None:
    delta = np.array([0.5, 0.0, 0.0, 0.3, 0.1, 0.2, 0.4, 0.0, 0.7, 0.6])
    summary = credit.probe_summary(delta > 0.25, delta)
    # sorted[⌊0.9 · 10⌋] is the last of ten.
    assert summary == credit.Probe(divergence=0.5, bit_exact=0.3, p90_delta=0.7)
    assert credit.probe_summary(delta[:9] > 1, delta[:9]).p90_delta == 0.7
    assert credit.probe_summary(np.zeros(0, dtype=bool), np.zeros(0)) == credit.Probe(None, None, None)
    with pytest.raises(ValueError, match="one delta that is a number"):
        credit.probe_summary(np.array([False]), np.array([np.nan]))


def _probe(pivots: list[dict[str, Any]], field: str) -> dict[str, float | None]:
    diverged = np.array([pivot[f"greedy_divergence_{field}"] for pivot in pivots], dtype=bool)
    delta = np.array([pivot[f"greedy_first_logprob_delta_{field}"] for pivot in pivots], dtype=np.float64)
    return vars(credit.probe_summary(diverged, delta))


def _opposite(value: Any) -> Any:
    if value is None:
        return None
    return (-value[1], -value[0]) if isinstance(value, tuple) else -value


def _assert_contains(actual: Any, expected: Any, where: str) -> None:
    """Integers and nulls equal, floats to 1e-9; stops at the first divergence and names it."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            _assert_contains(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for i, value in enumerate(expected):
            _assert_contains(actual[i], value, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert actual is not None, where
        assert float(actual) == pytest.approx(expected, rel=1e-9, abs=1e-9), where
    else:
        assert actual == expected, where
