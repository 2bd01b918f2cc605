"""The overview: one row a configuration, sorted by excess, each with its floor and its link."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.importers import import_path
from backend.overview_table import overview, remarks
from backend.report import report
from backend.store import Store
from tests.backend import trees
from tests.backend.pools import BY_HAND
from tests.backend.receipts import hold, receipt


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as store:
        yield store


def test_the_published_campaigns_stand_in_the_order_of_their_excess(store: Store, shared: Path) -> None:
    for folder in ("campaign-2026-06-10", "campaign-2026-06-11", "rollouts"):
        import_path(store, shared / "receipts" / folder)
    rows = overview(store).rows
    assert [row["name"] for row in rows][:1] == ["temp0"]
    excess = [row["excess_pp"] for row in rows]
    assert excess == sorted(excess, reverse=True)
    by_name = {row["name"]: row for row in rows}
    assert len(rows) == 7  # the four rollouts have no pivots
    primary = by_name["primary"]
    primary_checks = report(store, [primary["campaign"]])["checks"]
    assert primary["link"] == f"campaign?campaign={primary['campaign']}#primary"
    assert (primary["eligible"], primary["clusters"], primary["engine"]) == (226, 20, None)
    assert primary["refeed_rate"] == 0.3185840707964602
    assert primary["replica_rate"] == 0.13716814159292035
    assert (primary["refeed_jaccard"], primary["replica_jaccard"]) == (0.7777777777777778, 0.8785046728971962)
    # k = 1 attains no 0.5: the next threshold stands for it.
    assert by_name["temp0"]["refeed_jaccard"] == 0.5901639344262295
    assert by_name["batchinv"]["t_equal_weight"] is None
    assert by_name["batchinv"]["excess_pp"] == 0.0
    assert by_name["k8"]["remarks"] == "imported, cut off"
    assert primary["machine"] is None
    passed = [check["name"] for check in primary_checks if check["status"] == "pass"]
    assert 0 < len(passed) < len(primary_checks)
    assert primary["checks"] == f"{len(passed)} passed, {len(primary_checks) - len(passed)} unknown"


def test_engine_machine_and_checks_are_those_of_the_measurements(store: Store) -> None:
    facts = {"engine": "vllm", "engine_version": "0.26.0", "device": "cuda", "device_name": "NVIDIA H200"}
    store.ensure_campaign(trees.campaign())
    warm = [trees.measurement("exact"), trees.measurement("replica"), trees.measurement("refeed", warm_requests=1)]
    pivot = trees.pivot(measurements=warm)
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=[pivot])], engine_info=json.dumps(facts)))
    (row,) = overview(store).rows
    assert (row["engine"], row["machine"]) == ("vllm 0.26.0", "NVIDIA H200")
    failed = [check["name"] for check in report(store, ["c1"])["checks"] if check["status"] == "fail"]
    assert "refeed_cold" in failed
    assert row["checks"] == f"{len(failed)} failed"


def test_a_campaign_without_a_floor_comes_last_and_undefined(store: Store, tmp_path: Path) -> None:
    worse = [(problem, exact, refeed, replica) for problem, exact, replica, refeed in BY_HAND]
    hold(store, tmp_path, receipt(worse), "below its floor")
    pivot = trees.pivot(measurements=[trees.measurement("exact"), trees.measurement("refeed", arms=(0, 1))])
    store.ensure_campaign(trees.campaign(passes=("exact", "refeed")))
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=[pivot])]))
    rows = overview(store).rows
    assert [(row["name"], row["excess_pp"]) for row in rows] == [("below its floor", -100 / 7), ("small", None)]
    cells = dict(zip([column.key for column in overview(store).columns], overview(store).texts()[-1], strict=True))
    assert (cells["excess_pp"], cells["excess_pp_ci95"]) == ("–", "–")
    # A name is no way to break out of the link.
    assert rows[0]["link"].endswith("#below%20its%20floor")


@pytest.mark.parametrize(
    ("origin", "final", "state", "told"),
    [
        ("bundled", None, "done", ["bundled"]),
        ("import", False, "imported", ["imported", "cut off"]),
        ("run", None, "running", ["running"]),
        ("run", None, "done", []),
    ],
)
def test_remarks(origin: str, final: bool | None, state: str, told: list[str]) -> None:
    assert remarks(origin, final, state) == told
