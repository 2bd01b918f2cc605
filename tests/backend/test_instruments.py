"""Readings counted in SQL must give the verdicts that readings taken pivot by pivot give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backend.checks import checks, readings_of
from backend.records import Measurement, Pass
from backend.store import Store
from tests.backend import trees
from tests.backend.play import measured


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as store:
        yield store


def hold(store: Store, found: dict[Pass, list[Measurement]], batch_invariant: bool | None) -> None:
    """Store the measurements as pivots of one campaign."""
    pivots = [
        trees.pivot(3 + place, measurements=list(measurements))
        for place, measurements in enumerate(zip(*found.values(), strict=True))
    ]
    # An imported campaign's mode stays unknown; a campaign run here learns it from its engine.
    store.ensure_campaign(trees.campaign(passes=tuple(found), batch_invariant=batch_invariant, origin="import"))
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=pivots)]))


def other_seeds(found: dict[Pass, list[Measurement]]) -> dict[Pass, list[Measurement]]:
    return {**found, "refeed": [replace(one, seeds_sha256="00" * 32) for one in found["refeed"]]}


FAULTS: list[tuple[dict[str, Any], bool | None]] = [
    ({}, False),
    ({}, True),
    ({}, None),
    ({"dropped": {"refeed": 1}}, False),
    ({"fewer_cached": {"exact:2": 1}}, False),
    ({"altered_logprob": 3}, False),
    ({"warm": {"refeed": 16}}, False),
    ({"preemptions": {"refeed": 1}}, False),
    ({"facts_change": 3}, False),
    ({"noise": {"refeed": 0.8}}, True),
    ({"noise": {"refeed": 1e-6}}, True),
    ({"noise": {"exact:2": 0.3, "refeed": 0.3}}, True),
]


@pytest.mark.parametrize(("options", "batch_invariant"), FAULTS)
@pytest.mark.parametrize("change", [dict, other_seeds])
def test_sql_and_records_agree_on_every_check(
    store: Store, options: dict[str, Any], batch_invariant: bool | None, change: Any
) -> None:
    found = change(measured(options, batch_invariant=bool(batch_invariant)))
    hold(store, found, batch_invariant)
    taken = [one for pivot in zip(*found.values(), strict=True) for one in readings_of(pivot, batch_invariant)]
    counted = store.check_readings("c1")
    assert sum(one.rows for one in counted) == len(taken)
    # The sentences too, but for the order in which the passes are counted up.
    by_records = {one.name: (one.status, sorted(one.detail.split())) for one in checks(taken)}
    assert {one.name: (one.status, sorted(one.detail.split())) for one in checks(counted)} == by_records


def test_a_pivot_that_a_pass_did_not_measure_is_incomplete_and_unread(store: Store) -> None:
    pivots = [trees.pivot(3), trees.pivot(4, measurements=[trees.measurement("exact")])]
    store.ensure_campaign(trees.campaign())
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=pivots)]))
    found = {one.name: one for one in checks(store.check_readings("c1"))}
    assert (found["rows"].status, found["rows"].detail[:6]) == ("fail", "2 of 6")
    assert found["exact_cache_hits"].status == "unknown"


def test_without_pivots_there_are_no_readings(store: Store) -> None:
    store.ensure_campaign(trees.campaign())
    assert store.check_readings("c1") == []
    assert {one.status for one in checks([])} == {"unknown"}


def test_the_revision_changes_with_what_a_report_says(store: Store) -> None:
    seen = [store.revision(["c1"])]
    store.ensure_campaign(trees.campaign())
    seen.append(store.revision(["c1"]))
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=[trees.pivot(measurements=[])])]))
    seen.append(store.revision(["c1"]))
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout()]))
    seen.append(store.revision(["c1"]))
    store.set_state("c1", "cancelled")
    seen.append(store.revision(["c1"]))
    assert len(set(seen)) == len(seen)
    store.ensure_campaign(trees.campaign("c2", name="other"))
    assert store.revision(["c1"]) == seen[-1]
    assert store.revision(["c1", "c2"]) == store.revision(["c2", "c1"])
