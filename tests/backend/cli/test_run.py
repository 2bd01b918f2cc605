"""Running a campaign file: resumed, refused, beside a held store, followed, stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.runs import RunFolder
from tests.backend.cli.terminal import (
    PATIENCE,
    call,
    campaign_file,
    document,
    folder_of,
    next_line,
    refusal,
    started,
    wait_for,
    worker_of,
)

HOLD = """
import sys
from pathlib import Path
from backend.store import Store
with Store(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "a.duckdb"


@pytest.fixture
def held(store: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the store, as a dashboard does."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    yield holder
    holder.communicate("")


def test_running_the_same_file_again_computes_nothing(store: Path, tmp_path: Path) -> None:
    config = campaign_file(tmp_path)
    first = document("run", config, "--store", store)
    shards = _shards(folder_of(config, store))
    again = document("run", config, "--store", store)
    assert (first["done"], again["done"], len(shards)) == (2, 2, 2)
    assert _shards(folder_of(config, store)) == shards
    changed = campaign_file(tmp_path, "k = 3")
    assert "campaign 'small' was started with k: 2, not 3" in refusal("run", changed, "--store", store)


def test_a_held_store_does_not_keep_a_campaign_from_running(
    store: Path, tmp_path: Path, held: subprocess.Popen[str]
) -> None:
    config = campaign_file(tmp_path)
    done = call("run", config, "--store", store, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["ingested"] is False
    assert done.stderr.splitlines()[-1] == "Another process holds the store; it takes the finished problems in."
    assert f"held by another process (process id {held.pid}" in refusal("campaigns", "--store", store)
    held.communicate("")
    (row,) = document("campaigns", "--store", store)
    assert (row["problems"], row["state"]) == (2, "done"), "whoever opens the store next takes the shards in"


def held_at(call: str, folder: Path) -> tuple[Path, Path]:
    """A campaign file whose engine waits at a call while the second file is there."""
    hold = folder / "hold"
    hold.write_text(call, encoding="utf-8")
    return campaign_file(folder, f'engine_options = {{ hold = "{hold}" }}'), hold


def test_a_second_run_and_a_watcher_follow_the_first(store: Path, tmp_path: Path) -> None:
    config, hold = held_at("rollouts 1", tmp_path)
    folder = folder_of(config, store)
    with started("run", config, "--store", store, "--json") as first:
        wait_for(folder.progress, first)
        with (
            started("run", config, "--store", store, "--json") as second,
            started("watch", "small", "--store", store, "--json") as watcher,
        ):
            said = [next_line(process) for process in (second, watcher)]
            hold.unlink()
            assert said[0] == f"Campaign small is being run by process {first.pid}; following it."
            assert said[1].startswith("0 of 2 problems")
            printed = [json.loads(process.communicate(timeout=PATIENCE)[0]) for process in (first, second, watcher)]
            assert [process.returncode for process in (first, second, watcher)] == [0, 0, 0]
    assert printed[0] == printed[1] == printed[2] | {"ingested": True, "store": str(store)}
    loads = [entry for entry in folder.log_entries() if entry["kind"] == "start"]
    assert len(loads) == 1, "one model load"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, "cancel"])
def test_a_run_is_stopped_and_goes_on(store: Path, tmp_path: Path, how: signal.Signals | str) -> None:
    config, hold = held_at("rollouts 2", tmp_path)
    folder = folder_of(config, store)
    with started("run", config, "--store", store) as run:
        wait_for(lambda: _shards(folder), run)
        worker = worker_of(run)
        if isinstance(how, str):
            assert document("cancel", "small", "--store", store) == {"campaign": folder.path.name, "pid": run.pid}
        else:
            run.send_signal(how)
        _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith("error: the campaign was stopped")
    assert "again goes on from there" in last
    worker.wait(10)
    hold.unlink()
    (row,) = document("campaigns", "--store", store)
    assert (row["state"], row["problems"]) == ("cancelled", 1), "what was finished is in the store"
    assert "is not being run (it is cancelled)" in refusal("cancel", "small", "--store", store)
    kept = _shards(folder)
    assert document("run", config, "--store", store)["done"] == 2
    assert kept.items() <= _shards(folder).items()


def test_unknown_runs_are_named(store: Path, tmp_path: Path) -> None:
    document("run", campaign_file(tmp_path), "--store", store)
    assert "did you mean small?" in refusal("watch", "smal", "--store", store)
    assert document("watch", "small", "--store", store)["state"] == "done"


def test_all_problems_failed_is_a_failure(store: Path, tmp_path: Path) -> None:
    config = campaign_file(tmp_path, 'engine_options = { fail_on = "What is" }')
    done = call("run", config, "--store", store)
    assert done.returncode == 1
    assert "all problems of campaign small failed" in done.stderr.splitlines()[-1]


def test_what_failed_is_tried_again(store: Path, tmp_path: Path) -> None:
    text = json.loads((campaign_file(tmp_path).parent / "sums.jsonl").read_text(encoding="utf-8").splitlines()[1])
    failing = f'engine_options = {{ fail_on = "{text["question"]}" }}'
    config = campaign_file(tmp_path, failing)
    folder = folder_of(config, store)
    for _ in range(2):
        found = document("run", config, "--store", store)
        assert (found["done"], found["failed"], found["state"]) == (1, 1, "done")
    starts = [entry for entry in folder.log_entries() if entry["kind"] == "start"]
    assert len(starts) == 2, "it was tried twice"
    (row,) = document("campaigns", "--store", store)
    assert (row["problems"], row["failed"]) == (1, 1)


def _shards(folder: RunFolder) -> dict[str, int]:
    """The finished shards by name, with the time each was written, in nanoseconds."""
    return {path.name: path.stat().st_mtime_ns for path in folder.shards.glob("*.parquet") if path.name[0] != "."}
