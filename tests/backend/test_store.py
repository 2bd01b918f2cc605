"""The store: what goes in comes out, nothing recorded is overwritten, and every way to fail is one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import pytest
import trees

from backend import schema
from backend.errors import UserError, WorkFailed
from backend.records import STANDARD_PASSES, Pivot, ProblemRecord
from backend.shards import to_table, write_shard
from backend.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store.duckdb") as opened:
        opened.ensure_campaign(trees.campaign())
        yield opened


def shard(folder: Path, record: ProblemRecord) -> Path:
    (folder / "shards").mkdir(exist_ok=True)
    return write_shard(folder / "shards", record)


def counts(path: Path) -> dict[str, int]:
    with duckdb.connect(str(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()]
        return {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchall()[0][0] for name in sorted(tables)}


# Records in and out


def test_a_record_comes_out_as_it_went_in(store: Store, tmp_path: Path) -> None:
    record = trees.record()
    assert store.ingest_shard("c1", shard(tmp_path, record))
    assert store.record("c1", "sum-001") == record
    assert store.rollout("c1", "sum-001", 1) == record.rollouts[1]


def test_a_live_record_takes_the_same_way_as_a_shard(store: Store, tmp_path: Path) -> None:
    store.ensure_campaign(trees.campaign("c2", name="live", origin="live"))
    store.ingest_shard("c1", shard(tmp_path, trees.record()))
    store.ingest_record("c2", trees.record())
    assert store.record("c1", "sum-001") == store.record("c2", "sum-001")


def test_a_shard_is_taken_in_once(store: Store, tmp_path: Path) -> None:
    path = shard(tmp_path, trees.record())
    assert [store.ingest_shard("c1", path), store.ingest_shard("c1", path)] == [True, False]
    assert len(store.credits(["c1"])) == 2


def test_a_record_without_rollouts_keeps_its_error(store: Store) -> None:
    failed = trees.record(rollouts=[], state="failed", error="out of memory", tokens=[])
    store.ingest_record("c1", failed)
    assert store.record("c1", "sum-001") == failed


def test_a_replay_adds_its_run_and_overwrites_nothing(store: Store) -> None:
    recorded = trees.record()
    store.ingest_record("c1", recorded)
    replayed = [trees.measurement(name, run="replay-1", arms=(0, 2)) for name in STANDARD_PASSES]
    clicked = trees.pivot(4, planned=False, measurements=replayed)
    changed = replace(trees.rollout(0), answer="5", ids=[9, 9, 9])
    again = trees.measurement("exact", arms=(0, 2))
    known = trees.pivot(3, measurements=[again, *replayed])
    store.ingest_record("c1", trees.record(question="another", rollouts=[replace(changed, pivots=[known, clicked])]))

    first = store.rollout("c1", "sum-001", 0)
    assert (first.answer, first.ids) == ("4", [3, 4, 5])
    assert first.pivots[0].measurements == [*recorded.rollouts[0].pivots[0].measurements, *replayed]
    assert first.pivots[1] == clicked
    assert store.record("c1", "sum-001").question == "What is 2 + 2?"
    assert store.rollout("c1", "sum-001", 1) == recorded.rollouts[1]


def test_a_clicked_pivot_becomes_planned_when_the_filter_chooses_it(store: Store) -> None:
    clicked = trees.pivot(planned=False, measurements=[trees.measurement(run="replay-1")])
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=[clicked])]))
    assert len(store.credits(["c1"])) == 0
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=[trees.pivot()])]))
    assert store.credits(["c1"])["complete"].tolist() == [True]
    assert [one.run for one in store.rollout("c1", "sum-001", 0).pivots[0].measurements] == ["campaign"] * 3 + [
        "replay-1"
    ]


def test_a_failed_problem_is_read_again_when_its_shard_has_changed(store: Store, tmp_path: Path) -> None:
    failed = trees.record(rollouts=[], state="failed", error="out of memory", tokens=[])
    assert store.ingest_shard("c1", shard(tmp_path, failed))
    assert not store.ingest_shard("c1", shard(tmp_path, failed))
    assert store.ingest_shard("c1", shard(tmp_path, trees.record()))
    assert store.record("c1", "sum-001") == trees.record()
    # A finished one is final.
    assert not store.ingest_shard("c1", shard(tmp_path, failed))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (trees.record(rollouts=[trees.rollout(0), trees.rollout(0)]), "rollout 0 occurs twice"),
        (trees.record(rollouts=[trees.rollout(pivots=[trees.pivot(3), trees.pivot(3)])]), "position 3 occurs twice"),
        (trees.record(rollouts=[replace(trees.rollout(), logprobs=[0.0])]), "len"),
        (
            trees.record(rollouts=[trees.rollout(pivots=[trees.pivot(measurements=[trees.measurement(numerator=0)])])]),
            "n_actual - n_alternative",
        ),
        (
            trees.record(rollouts=[trees.rollout(pivots=[trees.pivot(measurements=[trees.measurement(arms=(3, 1))])])]),
            "n_actual",
        ),
        (
            trees.record(rollouts=[trees.rollout(pivots=[trees.pivot(measurements=[trees.measurement("guess")])])]),  # type: ignore[arg-type]
            "unknown pass 'guess'",
        ),
    ],
)
def test_records_that_contradict_themselves_are_refused_whole(
    store: Store, tmp_path: Path, record: ProblemRecord, reason: str
) -> None:
    before = store.campaigns()
    path = shard(tmp_path, record)
    with pytest.raises(UserError, match="sum-001") as caught:
        store.ingest_shard("c1", path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert store.campaigns() == before
    # The refused file is no obstacle to a good one of the same name.
    assert store.ingest_shard("c1", shard(tmp_path, trees.record()))


def test_a_bad_shard_among_many_keeps_none_of_the_others_out(store: Store, tmp_path: Path) -> None:
    good = [shard(tmp_path, trees.record(f"sum-{number}")) for number in range(5)]
    twice = shard(tmp_path, trees.record("twice", rollouts=[trees.rollout(), trees.rollout()]))
    torn = shard(tmp_path, trees.record("torn"))
    torn.write_bytes(torn.read_bytes()[:-50])
    report = store.ingest_shards("c1", [*good[:2], twice, torn, *good[2:]])
    assert report.ingested == good
    assert sorted(report.refused) == sorted([twice, torn])
    assert [row["problem"] for row in store.problems("c1")] == [f"sum-{number}" for number in range(5)]


def test_writers_and_readers_in_many_threads(store: Store) -> None:
    def work(number: int) -> int:
        store.ingest_record("c1", trees.record(f"sum-{number}"))
        return len(store.record("c1", f"sum-{number}").rollouts)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(12))) == [2] * 12
    assert len(store.credits(["c1"])) == 24


# Campaigns


def test_campaigns_are_listed_with_their_counts(store: Store) -> None:
    clicked = trees.pivot(4, planned=False, measurements=[trees.measurement(run="replay-1")])
    store.ingest_record("c1", trees.record("done", rollouts=[trees.rollout(pivots=[trees.pivot(), clicked])]))
    store.ingest_record("c1", trees.record("out", state="screened_out", rollouts=[]))
    store.ingest_record("c1", trees.record("bad", state="failed", error="e", rollouts=[]))
    (row,) = store.campaigns()
    del row["created"]
    assert row == {
        "campaign": "c1",
        "name": "small",
        "model": "toy",
        "engine": "scripted",
        "dtype": None,
        "k": 2,
        # The engine said these two with the first record.
        "batch_invariant": True,
        "attention_backend": "TRITON_ATTN",
        "passes": ["exact", "replica", "refeed"],
        "problems": 1,
        "rollouts": 1,
        "pivots": 1,
        "bundled": False,
        "state": "running",
        "origin": "run",
        "final": None,
        "screened_out": 1,
        "failed": 1,
        "clicked": 1,
    }


def test_a_campaign_is_added_once_and_its_state_can_change(store: Store) -> None:
    assert not store.ensure_campaign(trees.campaign(name="another"))
    store.set_state("c1", "done")
    found = store.campaign("small")
    assert (found["campaign"], found["state"]) == ("c1", "done")
    assert found["settings"] == {"model": "toy", "k": 2, "temperature": 0.7}


def test_a_campaign_is_found_by_id_or_unique_name(store: Store) -> None:
    assert store.find_campaign("c1") == store.find_campaign("small") == "c1"
    with pytest.raises(UserError, match="did you mean small"):
        store.find_campaign("smal")
    store.ensure_campaign(trees.campaign("c2"))
    with pytest.raises(UserError, match="c1, c2"):
        store.find_campaign("small")
    store.remove_campaign("c1")
    assert store.find_campaign("small") == "c2"


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    with Store(tmp_path / "new.duckdb") as empty, pytest.raises(UserError, match="holds none yet"):
        empty.find_campaign("x")


def test_what_is_not_there_is_a_sentence(store: Store) -> None:
    store.ingest_record("c1", trees.record())
    with pytest.raises(UserError, match="no problem 'sum-002'"):
        store.rollout("c1", "sum-002", 0)
    with pytest.raises(UserError, match="no rollout 7"):
        store.rollout("c1", "sum-001", 7)


def test_removing_a_campaign_leaves_the_others(store: Store, tmp_path: Path) -> None:
    store.ensure_campaign(trees.campaign("c2", name="other"))
    path = shard(tmp_path, trees.record())
    for campaign in ("c1", "c2"):
        store.ingest_shard(campaign, path)
    store.remove_campaign("small")
    assert [row["campaign"] for row in store.campaigns()] == ["c2"]
    assert store.record("c2", "sum-001") == trees.record()
    store.close()
    left = counts(tmp_path / "store.duckdb")
    assert (left["rollout"], left["pivot"], left["measurement"], left["shard_ledger"]) == (2, 2, 6, 1)


def test_problems_are_in_the_order_of_their_numbers(store: Store) -> None:
    for problem in ("13", "2", "b", "a"):
        store.ingest_record("c1", trees.record(problem, stated='{"cache_violations": {"exact1": 1}}'))
    found = store.problems("c1")
    assert [row["problem"] for row in found] == ["2", "13", "a", "b"]
    assert (found[0]["rollouts"], found[0]["correct"], found[0]["pivots"]) == (2, 1, 2)
    assert found[0]["stated"] == {"cache_violations": {"exact1": 1}}
    assert [row["tokens"] for row in store.rollouts("c1", "2")] == [3, 3]


def test_token_bytes_and_engine_facts_are_kept(store: Store) -> None:
    store.ingest_record("c1", trees.record())
    assert store.token_bytes("c1", [3, 3, 99]) == {3: b"\xe2\x03"}
    assert store.engines("c1")[trees.ENGINE]["attention_backend"] == "TRITON_ATTN"


# Credits


def test_credits_have_a_row_a_planned_pivot_with_the_passes_side_by_side(store: Store) -> None:
    incomplete = trees.measurement("replica", n_actual=None, numerator=None)
    rollouts = [
        trees.rollout(
            0,
            pivots=[
                trees.pivot(2, measurements=[trees.measurement(n, arms=(0, 2)) for n in STANDARD_PASSES]),
                trees.pivot(3, measurements=[trees.measurement("exact"), incomplete, trees.measurement("refeed")]),
                trees.pivot(4, measurements=[]),
                trees.pivot(5, planned=False, measurements=[trees.measurement()]),
            ],
        )
    ]
    store.ingest_record("c1", trees.record(rollouts=rollouts))
    frame = store.credits(["c1"]).sort_values("position", ignore_index=True)
    assert frame["position"].tolist() == [2, 3, 4]
    assert frame["complete"].tolist() == [True, False, False]
    assert frame["exact"].tolist() == [-2, 1, pd.NA]
    assert frame["replica"].tolist() == [-2, pd.NA, pd.NA]
    assert frame["k"].tolist() == [2, 2, pd.NA]
    assert frame["probe_delta_refeed"].tolist() == [0.125, 0.125, pd.NA]
    assert frame["probe_diverged_refeed"].tolist() == [False, False, pd.NA]
    assert "probe_delta_exact" not in frame
    assert frame["margin"].tolist() == [pytest.approx(0.12), pytest.approx(0.13), pytest.approx(0.14)]


def test_replays_on_demand_are_no_part_of_the_credits(store: Store) -> None:
    replayed = [trees.measurement(name, run="replay-1", arms=(0, 2)) for name in STANDARD_PASSES]
    pivot = trees.pivot(measurements=[*trees.pivot().measurements, *replayed])
    store.ingest_record("c1", trees.record(rollouts=[trees.rollout(pivots=[pivot])]))
    assert store.credits(["c1"])["exact"].tolist() == [1]


def test_the_most_telling_rollout_has_turned_credits_and_then_large_ones(store: Store) -> None:
    assert store.most_telling("c1") is None

    def pivot(position: int, exact: tuple[int, int], refeed: tuple[int, int]) -> Pivot:
        measurements = [trees.measurement("exact", arms=exact), trees.measurement("refeed", arms=refeed)]
        return trees.pivot(position, measurements=measurements)

    large = trees.rollout(0, pivots=[pivot(2, (2, 0), (2, 0)), pivot(3, (0, 2), (1, 2))])
    turned = trees.rollout(1, pivots=[pivot(2, (1, 0), (0, 0)), pivot(3, (1, 1), (0, 1))])
    store.ingest_record("c1", trees.record("a", rollouts=[large]))
    assert store.most_telling("c1") == ("a", 0, 2)
    store.ingest_record("c1", trees.record("b", rollouts=[large, turned]))
    assert store.most_telling("c1") == ("b", 1, 2)


def test_pooled_credits_keep_the_pivots_of_each_campaign(store: Store) -> None:
    store.ensure_campaign(trees.campaign("c2", name="other", passes=("exact", "refeed")))
    # Interleaved, so that the pivots' numbers are.
    for problem in ("a", "b"):
        for campaign in ("c1", "c2"):
            store.ingest_record(campaign, trees.record(problem))
    frame = store.credits(["c1", "c2", "c1"])
    assert len(frame) == 8
    assert frame.groupby(["campaign", "problem"], observed=True).size().tolist() == [2, 2, 2, 2]
    assert frame.loc[frame["campaign"] == "c2", "replica"].isna().all()
    assert frame["complete"].all()
    assert store.credits(["c2"])["exact"].tolist() == [1] * 4


def test_a_campaign_without_pivots_has_an_empty_frame(store: Store) -> None:
    assert len(store.credits(["c1"])) == 0


# The file


def test_a_store_is_there_after_it_was_closed(tmp_path: Path) -> None:
    with Store(tmp_path / "store.duckdb") as store:
        store.ensure_campaign(trees.campaign())
        store.ingest_record("c1", trees.record())
        store.set_setting("theme", "dark")
    with Store(tmp_path / "store.duckdb", read_only=True) as store:
        assert store.record("c1", "sum-001") == trees.record()
        assert (store.setting("theme"), store.setting("none")) == ("dark", None)
        with pytest.raises(UserError, match="reading only"):
            store.set_setting("theme", "light")


def test_a_snapshot_holds_what_is_not_yet_in_the_file(store: Store, tmp_path: Path) -> None:
    store.ingest_record("c1", trees.record())
    store.snapshot(tmp_path / "it's.duckdb")
    with Store(tmp_path / "it's.duckdb", read_only=True) as copy:
        assert copy.record("c1", "sum-001") == trees.record()
    assert not list(tmp_path.glob(".tmp-*"))


def test_migrations_are_named_by_number_and_recorded(store: Store, tmp_path: Path) -> None:
    names = [migration.__name__ for migration in schema.MIGRATIONS]
    assert all(name.startswith(f"m{number:03d}_") for number, name in enumerate(names, start=1))
    store.close()
    with duckdb.connect(str(tmp_path / "store.duckdb")) as connection:
        assert schema.applied(connection) == names


def test_an_older_store_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.duckdb"
    every = schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", every[:1])
    Store(path).close()
    monkeypatch.setattr(schema, "MIGRATIONS", every)
    with pytest.raises(UserError, match="older Pivotscope"):
        Store(path, read_only=True)
    with Store(path) as store:
        store.ensure_campaign(trees.campaign())
        store.ingest_record("c1", trees.record())
        assert store.record("c1", "sum-001") == trees.record()


def sentence(path: Path, **options: bool) -> str:
    with pytest.raises((UserError, WorkFailed)) as caught:
        Store(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text
    return text


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    Store(path).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("INSERT INTO migration VALUES (99, 'm099_from_the_future')")
    assert "m099_from_the_future" in sentence(path)


def test_files_that_are_no_store_are_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello " * 5000)
    assert "not a DuckDB file" in sentence(text)
    assert text.read_text() == "hello " * 5000
    other = tmp_path / "other.duckdb"
    with duckdb.connect(str(other)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    assert "another program" in sentence(other)
    with duckdb.connect(str(other)) as connection:
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(1,)]
    assert "is a folder" in sentence(tmp_path)
    assert "does not exist" in sentence(tmp_path / "none" / "store.duckdb")
    assert "does not exist" in sentence(tmp_path / "none.duckdb", read_only=True)


HOLD = """
import sys
from pathlib import Path
from backend.store import Store
store = Store(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("read_only", [False, True])
def test_a_store_that_another_process_holds_names_it(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "store.duckdb"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        try:
            assert holder.stdout.readline() == "held\n"
            text = sentence(path, read_only=read_only)
        finally:
            holder.stdin.close()
    assert f"process id {holder.pid}," in text
    assert "stop that process" in text
    Store(path).close()


def test_a_store_removed_while_open_takes_nothing_more(store: Store, tmp_path: Path) -> None:
    store.ingest_record("c1", trees.record())
    (tmp_path / "store.duckdb").unlink()
    with pytest.raises(WorkFailed, match=f"was removed or replaced while process {os.getpid()}"):
        store.ingest_record("c1", trees.record("sum-002"))
    # What is in memory still can be saved.
    store.snapshot(tmp_path / "saved.duckdb")
    with Store(tmp_path / "saved.duckdb") as saved:
        assert saved.record("c1", "sum-001") == trees.record()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small disk here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(store: Store) -> None:
    for number in range(200):
        long = replace(trees.rollout(), prompt_ids=[hash((number, i)) % 2**31 for i in range(200_000)])
        store.ingest_record("c1", trees.record(f"long-{number}", rollouts=[long]))


def test_a_full_disk_is_a_sentence_and_what_was_stored_is_kept(small_disk: Path) -> None:
    path = small_disk / "store.duckdb"
    store = Store(path)
    store.ensure_campaign(trees.campaign())
    store.ingest_record("c1", trees.record())
    with pytest.raises(WorkFailed, match="disk is full"):
        fill(store)
    done = [row["problem"] for row in store.problems("c1")]
    store.close()
    with Store(path) as again:
        assert [row["problem"] for row in again.problems("c1")] == done
        assert again.record("c1", "sum-001") == trees.record()


def test_a_folder_that_may_not_be_written(small_disk: Path) -> None:
    with Store(small_disk / "store.duckdb") as store:
        store.ensure_campaign(trees.campaign())
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "may not be opened for writing" in sentence(small_disk / "store.duckdb")
    assert "may not be opened for writing" in sentence(small_disk / "new.duckdb")
    with Store(small_disk / "store.duckdb", read_only=True) as store:
        assert store.find_campaign("small") == "c1"


def test_a_campaign_is_added_whole_or_not_at_all(store: Store) -> None:
    good = to_table([trees.record("a")])
    bad = to_table([trees.record("b", rollouts=[trees.rollout(), trees.rollout()])])
    with pytest.raises(UserError, match="from a test: problem b, rollout 0 occurs twice"):
        store.add_campaign(trees.campaign("c2"), [good, bad], "from a test")
    assert [row["campaign"] for row in store.campaigns()] == ["c1"]
    assert store.add_campaign(trees.campaign("c2"), [good], "from a test")
    assert not store.add_campaign(trees.campaign("c2"), [bad], "from a test")
