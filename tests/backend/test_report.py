"""The report: the published numbers out of the published files, a case by hand, pools, and what is undefined."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.errors import UserError
from backend.importers import import_path
from backend.report import probe_deltas, report, reports
from backend.store import Store
from tests.backend import trees
from tests.backend.pools import BY_HAND
from tests.backend.receipts import Row, hold, receipt

ENTRIES = ["pooled", "primary", "screened", "k8", "greedy", "batchinv", "truncated_k8"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as store:
        yield store


@pytest.fixture(scope="module")
def published(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, dict[str, str]]]:
    """A store with every published receipt, and the ids by file."""
    folder = shared / "receipts"
    with Store(tmp_path_factory.mktemp("published") / "store.duckdb") as store:
        files = sorted(folder.glob("campaign-*/*.json"))
        yield store, {str(path.relative_to(folder)): import_path(store, path)[0]["campaign"] for path in files}


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_published_files_give_the_published_numbers(
    published: tuple[Store, dict[str, str]], shared: Path, entry: str
) -> None:
    store, ids = published
    oracle = json.loads((shared / "receipts" / "oracle.json").read_text())[entry]
    campaigns = [ids[file] for file in oracle.pop("files")]
    document = json.loads(json.dumps(reports(store, campaigns, pool=True), allow_nan=False))
    assert document["campaigns"] == campaigns
    if oracle["sign_flip_p"] is None and oracle["t_cr1"] is not None:
        # Too many patterns to go through: the oracle does not say what drawing them should give.
        del oracle["sign_flip_p"]
        assert 0 < document["sign_flip_p"] < 0.001
    assert_contains(document, oracle, entry)


def test_a_published_receipt_without_cache_readings_is_unknown_not_passed(
    published: tuple[Store, dict[str, str]],
) -> None:
    store, ids = published
    older = report(store, [ids["campaign-2026-06-10/k8.json"]])
    newer = report(store, [ids["campaign-2026-06-11/k8.json"]])
    assert status(older)["exact_cache_hits"] == "unknown"
    assert status(newer)["exact_cache_hits"] == "pass"
    assert (older["final"], newer["final"]) == (False, True)
    assert older["readings"][0]["cache_missed"] is None
    assert newer["readings"][0]["cache_missed"] == 0


def test_the_case_by_hand(store: Store, tmp_path: Path) -> None:
    campaign = hold(store, tmp_path, receipt(BY_HAND))
    (document,) = reports(store, [campaign], thresholds=["0.3"])
    expected = {
        "campaigns": [campaign],
        "model": "toy/model",
        "engine": None,
        "k": 4,
        "pivots": 9,
        "incomplete": 0,
        "problems": 4,
        "eligible": 7,
        "clusters": 3,
        "refeed": {"flips": 3, "zero_crossings": 2, "polarity_reversals": 1, "rate": 3 / 7},
        "replica": {"flips": 2, "zero_crossings": 1, "polarity_reversals": 1, "rate": 2 / 7},
        "excess_pp": 100 / 7,
        "conditioned_on_exact": {"n": 6, "refeed_flips": 2, "replica_flips": 2, "excess_pp": 0.0},
        "bias": {"mean": -1 / 28, "margin": 0.02},
        "difference": [{"numerator": n, "pivots": p} for n, p in [(-3, 1), (-2, 1), (0, 2), (1, 2), (2, 1)]],
        "bootstrap": {"draws": 10_000, "seed": 0},
    }
    assert_contains(document, expected, "report")
    assert [row["threshold"] for row in document["jaccard"]] == [0.25, 0.3, 0.5, 0.75, 1.0]
    assert document["jaccard"][0]["refeed"]["jaccard"] == 5 / 7
    # |Â| ≥ 0.3 at k = 4 is |Â| ≥ 2/4.
    assert {**document["jaccard"][1], "threshold": 0.5} == document["jaccard"][2]
    by_problem = [
        (row["problem"], row["pivots"], row["eligible"], row["refeed_flips"], row["replica_flips"], row["excess_pp"])
        for row in document["per_problem"]
    ]
    assert by_problem == [
        ("1", 1, 0, 0, 0, None),
        ("4", 2, 2, 0, 1, -50.0),
        ("7", 3, 2, 2, 1, 50.0),
        ("9", 3, 3, 1, 0, 100 / 3),
    ]


def test_an_incomplete_pivot_is_counted_and_left_out_of_every_rate(store: Store, tmp_path: Path) -> None:
    whole = report(store, [hold(store, tmp_path, receipt(BY_HAND))])
    rows: list[Row] = [*BY_HAND, (5, 1, None, 1), (7, None, 4, 4)]
    torn = report(store, [hold(store, tmp_path, receipt(rows), "torn")])
    assert (torn["pivots"], torn["incomplete"], torn["problems"]) == (11, 2, 5)
    for key in ("eligible", "clusters", "refeed", "excess_pp_ci95", "jaccard", "bias", "per_problem"):
        assert torn[key] == whole[key], key
    assert status(torn)["rows"] == "fail"


def measured(document: dict[str, Any]) -> dict[str, Any]:
    """The numbers alone, without whose they are."""
    facts = ("campaigns", "names", "origins", "states", "settings", "per_problem", "checks", "readings")
    return {key: value for key, value in document.items() if key not in facts}


@pytest.mark.parametrize("seed", range(3))
def test_names_order_and_splitting_a_file_change_nothing(store: Store, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    k = rng.choice([1, 4, 10])
    rows: list[Row] = [(rng.randrange(6), *(rng.choice([0, rng.randint(-k, k)]) for _ in range(3))) for _ in range(60)]
    names = {problem: f"{rng.getrandbits(40):x}" for problem in range(6)}
    shuffled = rng.sample([(names[problem], *values) for problem, *values in rows], len(rows))
    cut = rng.randrange(1, 59)
    whole = report(store, [hold(store, tmp_path, receipt(rows, k))])
    renamed = report(store, [hold(store, tmp_path, receipt(shuffled, k), "renamed")])
    halves = [
        hold(store, tmp_path, receipt(half, k, first=first), f"half-{first}")
        for half, first in ((rows[:cut], 0), (rows[cut:], cut))
    ]
    assert measured(renamed) == measured(whole)
    assert measured(report(store, halves)) == measured(report(store, halves[::-1])) == measured(whole)
    assert report(store, halves)["per_problem"] == whole["per_problem"]


def test_a_problem_is_one_cluster_within_its_set_and_another_in_another_set(store: Store) -> None:
    for name, source in (("a", "arithmetic"), ("b", "arithmetic"), ("c", "gsm8k")):
        store.ensure_campaign(trees.campaign(name, name=name))
        store.ingest_record(name, trees.record("sum-001", source=source))
    same, other = report(store, ["a", "b"]), report(store, ["a", "c"])
    assert (same["pivots"], same["problems"]) == (4, 1)
    assert (other["pivots"], other["problems"]) == (4, 2)
    assert [row["set"] for row in other["per_problem"]] == ["arithmetic", "gsm8k"]


def test_campaigns_of_another_setting_are_not_pooled(store: Store, tmp_path: Path) -> None:
    first = hold(store, tmp_path, receipt(BY_HAND), "first")
    others = {
        "k is 4 in first and 8 in ": receipt(BY_HAND, 8),
        "model is toy/model in first and other in ": receipt(BY_HAND, model="other"),
        "temperature is 0.7 in first and 0.6 in ": receipt(BY_HAND, temperature=0.6),
        "continuation_temperature is 0.7 in first and 0.0 in ": receipt(BY_HAND, cont_temp=0.0),
        "margin_below is 1.0 in first and 0.5 in ": receipt(BY_HAND, margin_lt=0.5),
        "max_continuation_tokens is 400 in first and 99 in ": receipt(BY_HAND, max_cont_tokens=99),
        "`dtype` is unknown in first and float16 in ": receipt(BY_HAND, dtype="float16"),
    }
    for number, (difference, data) in enumerate(others.items()):
        other = hold(store, tmp_path, data, f"other-{number}")
        with pytest.raises(UserError, match="cannot be pooled") as refused:
            report(store, [first, other])
        assert difference in str(refused.value)
        assert "\n" not in str(refused.value)
        # Side by side they may stand.
        assert [len(one["campaigns"]) for one in reports(store, [first, other])] == [1, 1]
    with pytest.raises(UserError, match="first is named twice"):
        report(store, [first, "first"])
    others_problems = hold(store, tmp_path, receipt(BY_HAND, scan_start=20, screen_mixed=True, problems=9), "more")
    assert report(store, [first, others_problems])["pivots"] == 18


def test_campaigns_of_other_engine_facts_are_not_pooled(store: Store) -> None:
    other = trees.ENGINE_INFO.replace("TRITON_ATTN", "FLASH_ATTN")
    for name, info, digest in (("a", trees.ENGINE_INFO, trees.ENGINE), ("b", other, "00" * 8)):
        store.ensure_campaign(trees.campaign(name, name=name, attention_backend="same"))
        store.ingest_record(name, trees.record(engine=digest, engine_info=info))
    with pytest.raises(UserError, match="engine's attention_backend is TRITON_ATTN in a and FLASH_ATTN in b"):
        report(store, ["a", "b"])


def test_without_a_replica_the_floor_is_null(store: Store) -> None:
    pivot = trees.pivot(measurements=[trees.measurement("exact"), trees.measurement("refeed", arms=(0, 1))])
    store.ensure_campaign(trees.campaign(passes=("exact", "refeed")))
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=[pivot])]))
    document = report(store, ["c1"])
    assert document["refeed"]["rate"] == 1.0
    assert set(document["replica"].values()) == {None}
    undefined = ("excess_pp", "excess_pp_ci95", "mean_excess_equal_weight", "t_cr1", "sign_flip_p")
    assert {document[key] for key in undefined} == {None}
    assert set(document["jaccard"][0]["replica"].values()) == {document["jaccard"][0]["gap_ci95"]} == {None}
    assert document["probe"]["replica"]["divergence"] is None
    assert document["per_problem"][0]["excess_pp"] is None


def test_further_passes_stand_beside_the_others(store: Store) -> None:
    passes = ("exact", "replica", "refeed", "refeed_replica")
    arms = {"exact": (2, 0), "replica": (2, 1), "refeed": (0, 1), "refeed_replica": (1, 1)}
    pivot = trees.pivot(measurements=[trees.measurement(name, arms=arms[name]) for name in passes])  # type: ignore[arg-type]
    store.ensure_campaign(trees.campaign(passes=passes))
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=[pivot])]))
    document = report(store, ["c1"])
    counts = {
        "flips": 1,
        "zero_crossings": 1,
        "polarity_reversals": 0,
        "rate": 1.0,
        "ci95": None,
        "problems_upper95": None,
    }
    assert document["refeed_replica"] == document["refeed_floor"] == counts
    assert document["refeed"]["polarity_reversals"] == 1


def test_a_campaign_without_pivots_reports_nothing(store: Store, shared: Path) -> None:
    (row,) = import_path(store, shared / "receipts" / "rollouts" / "rollout-0.json")
    document = report(store, [row["campaign"]])
    assert (document["pivots"], document["problems"], document["eligible"], document["k"]) == (0, 0, 0, None)
    assert document["refeed"]["rate"] is document["excess_pp"] is None
    assert document["jaccard"] == document["per_problem"] == []
    assert set(status(document).values()) == {"unknown"}


def test_probes_may_lack_their_deltas(store: Store, tmp_path: Path) -> None:
    data = receipt([(1, 1, 1, 0), (2, 0, 1, 1)])
    for pivot, diverged in zip(data["pivots"], (True, False), strict=True):
        pivot["greedy_divergence_refeed"] = diverged
    campaign = hold(store, tmp_path, data)
    probe = report(store, [campaign])["probe"]
    assert probe["refeed"] == {"divergence": 0.5, "bit_exact": None, "p90_delta": None, "pivots": 2}
    assert probe_deltas(store, [campaign]) == {}


def test_a_report_is_kept_until_its_rows_change(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.ensure_campaign(trees.campaign())
    store.ensure_campaign(trees.campaign("c2", name="other"))
    store.ingest_record("c1", trees.record("sum-001"))
    computed: list[Any] = []
    credits = Store.credits
    monkeypatch.setattr(Store, "credits", lambda self, names: computed.append(names) or credits(self, names))
    assert report(store, ["c1"])["pivots"] == report(store, ["c1"])["pivots"] == 2
    store.ingest_record("c2", trees.record("sum-001"))
    report(store, ["c1"])
    assert computed == [("c1",)]
    store.ingest_record("c1", trees.record("sum-002"))
    assert report(store, ["c1"])["pivots"] == 4
    assert len(computed) == 2
    store.set_state("c1", "done")
    assert report(store, ["c1"])["states"] == ["done"]


def test_a_clicked_token_is_no_part_of_a_report(store: Store) -> None:
    store.ensure_campaign(trees.campaign())
    store.ingest_record("c1", trees.record())
    before = report(store, ["c1"])
    clicked = trees.pivot(4, planned=False, measurements=[trees.measurement(run="replay-1", engine="ff" * 8)])
    store.ingest_record("c1", replace(trees.record(), rollouts=[trees.rollout(pivots=[clicked])]))
    assert report(store, ["c1"]) == before


@pytest.mark.parametrize("margin", [0.0, -1.0, float("nan"), float("inf")])
def test_a_margin_out_of_range_is_refused(store: Store, margin: float) -> None:
    store.ensure_campaign(trees.campaign())
    with pytest.raises(UserError, match="margin is"):
        report(store, ["c1"], margin=margin)


def test_wrong_arguments_are_refused(store: Store) -> None:
    store.ensure_campaign(trees.campaign())
    with pytest.raises(UserError, match=r"threshold '1\.5' is not a decimal"):
        report(store, ["c1"], thresholds=["1.5"])
    with pytest.raises(UserError, match="there is no campaign 'smal'; did you mean small"):
        report(store, ["smal"])
    for pool in (False, True):
        with pytest.raises(UserError, match="no campaign is named"):
            reports(store, [], pool=pool)


def status(document: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in document["checks"]}


def assert_contains(actual: Any, expected: Any, where: str) -> None:
    """Integers and nulls equal, floats to 1e-9; stops at the first divergence and names it."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert_contains(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for place, value in enumerate(expected):
            assert_contains(actual[place], value, f"{where}[{place}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-9), where
    else:
        assert actual == expected, where
