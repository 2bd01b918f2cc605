"""SIGKILL in every phase, of the command and of its worker: resumed, the store equals an uninterrupted run's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend.opening import open_store
from backend.runs import RunFolder
from backend.shards import shard_files
from tests.backend.cli.terminal import PATIENCE, campaign_file, document, folder_of, started, wait_for, worker_of
from tests.backend.play import comparable

HELD = {
    "rollouts": "rollouts 2",
    "exact": "exact 3",
    "replica": "exact 4",
    "refeed": "refeed 2",
    "shard": "rollouts 2",
}
"""Where the scripted engine waits to be killed, all in the second problem: the first is finished, or being written."""

Moment = Callable[[RunFolder], Any]


def in_phase(phase: str) -> Moment:
    """While a phase runs, in the second problem."""

    def reached(folder: RunFolder) -> bool:
        progress = folder.progress()
        return progress is not None and progress.phase == phase and progress.done == 1

    return reached


def while_writing(folder: RunFolder) -> bool:
    """While the first shard is being written, or just after."""
    return any(folder.shards.iterdir()) if folder.shards.is_dir() else False


def before_ingest(folder: RunFolder) -> bool:
    """When the run is done and the store is about to take its shards in."""
    return folder.state() == "done" and folder.runner() is None


def while_ingesting(folder: RunFolder) -> bool:
    """When the store has taken the shards in and the marks are being written."""
    marks = folder.path / "ingested"
    return any(marks.iterdir()) if marks.is_dir() else False


MOMENTS: dict[str, Moment] = {
    **{phase: in_phase(phase) for phase in ("rollouts", "exact", "replica", "refeed")},
    "shard": while_writing,
    "before ingest": before_ingest,
    "ingest": while_ingesting,
}


@pytest.fixture(scope="module")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that holds the scripted engine while it is there."""
    return tmp_path_factory.mktemp("hold") / "hold"


@pytest.fixture(scope="module")
def scripted(hold: Path) -> str:
    """A campaign's line for an engine that can be held."""
    return f'engine_options = {{ hold = "{hold}" }}'


def contents(store: Path, campaign: str) -> dict[str, Any]:
    """Everything the store holds of a campaign, without times."""
    with open_store(store) as opened:
        row = opened.campaign(campaign)
        rows = {
            one["problem"]: comparable(opened.record(campaign, one["problem"])) for one in opened.problems(campaign)
        }
        credits = opened.credits([campaign]).astype({"problem": str})
    row.pop("created")
    ordered = credits.sort_values(["problem", "rollout", "position"])
    return {"campaign": row, "records": rows, "credits": ordered.to_dict("list")}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, scripted: str) -> dict[str, Any]:
    return _uninterrupted(tmp_path_factory.mktemp("uninterrupted"), scripted)


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_command_is_killed(
    tmp_path: Path, hold: Path, scripted: str, uninterrupted: dict[str, Any], moment: str
) -> None:
    config, store = campaign_file(tmp_path, scripted), tmp_path / "a.duckdb"
    folder = folder_of(config, store)
    hold.write_text(HELD.get(moment, ""), encoding="utf-8")
    with started("run", config, "--store", store) as run:
        # Nothing holds the end of a run; a machine too busy to look in time kills a command that has ended.
        wait_for(lambda: MOMENTS[moment](folder) or (moment not in HELD and run.poll() is not None), run)
        workers = psutil.Process(run.pid).children() if run.poll() is None else []
        run.send_signal(signal.SIGKILL)
        run.wait(PATIENCE)
        psutil.wait_procs(workers, 10)
        assert not any(worker.is_running() for worker in workers), "a worker ends with its host"
    hold.unlink()
    _resumed_equals(config, store, uninterrupted)


@pytest.mark.parametrize("phase", ["rollouts", "exact", "refeed"])
def test_the_worker_is_killed(
    tmp_path: Path, hold: Path, scripted: str, uninterrupted: dict[str, Any], phase: str
) -> None:
    config, store = campaign_file(tmp_path, scripted), tmp_path / "a.duckdb"
    folder = folder_of(config, store)
    hold.write_text(HELD[phase], encoding="utf-8")
    with started("run", config, "--store", store) as run:
        wait_for(lambda: MOMENTS[phase](folder), run)
        worker = worker_of(run)
        worker.kill()
        said = _last_line(run)
    hold.unlink()
    assert run.returncode == 1
    assert said == (
        f"error: the engine process {worker.pid} ended by signal 9; what was stored stays, start the work again."
    )
    _resumed_equals(config, store, uninterrupted)


SMOL = """
engine = "transformers"
dtype = "bfloat16"
rollouts = 1
k = 1
max_pivots_per_rollout = 1
max_rollout_tokens = 16
max_continuation_tokens = 4
engine_options = { threads = 1 }
"""
"""One thread: on a busy machine two that wait for each other at every step take minutes."""


@pytest.fixture(scope="module")
def smol(weights: Path) -> str:
    """A campaign of the packaged weights with very short texts."""
    return f'model = "{weights}"\n{SMOL.strip()}'


@pytest.fixture(scope="module")
def uninterrupted_smol(tmp_path_factory: pytest.TempPathFactory, smol: str) -> dict[str, Any]:
    return _uninterrupted(tmp_path_factory.mktemp("smol"), smol)


@pytest.mark.weights
@pytest.mark.parametrize(("victim", "phase"), [("command", "exact"), ("worker", "refeed")])
def test_real_weights_go_on_bit_for_bit(
    tmp_path: Path, smol: str, uninterrupted_smol: dict[str, Any], victim: str, phase: str
) -> None:
    config, store = campaign_file(tmp_path, smol), tmp_path / "a.duckdb"
    folder = folder_of(config, store)
    with started("run", config, "--store", store) as run:
        wait_for(lambda: MOMENTS[phase](folder), run)
        os.kill(run.pid if victim == "command" else worker_of(run).pid, signal.SIGKILL)
        run.communicate(timeout=PATIENCE)
    _resumed_equals(config, store, uninterrupted_smol)


def _uninterrupted(folder: Path, extra: str) -> dict[str, Any]:
    """What a store holds after a run that nobody disturbed."""
    config, store = campaign_file(folder, extra), folder / "a.duckdb"
    document("run", config, "--store", store)
    found = contents(store, folder_of(config, store).path.name)
    assert [record["state"] for record in found["records"].values()] == ["done", "done"]
    return found


def _resumed_equals(config: Path, store: Path, uninterrupted: dict[str, Any]) -> None:
    """Run again; what was there is not computed again, and in the end everything is as if nothing had happened."""
    folder = folder_of(config, store)
    kept = {path.name: path.stat().st_mtime_ns for path in shard_files(folder.shards)}
    assert document("run", config, "--store", store)["done"] == 2
    now = {path.name: path.stat().st_mtime_ns for path in shard_files(folder.shards)}
    assert kept.items() <= now.items()
    assert not folder.quarantined()
    assert not list(folder.shards.glob(".tmp-*"))
    found = contents(store, folder.path.name)
    for problem, record in uninterrupted["records"].items():
        assert found["records"][problem] == record, f"{problem} differs"
    assert found == uninterrupted


def _last_line(run: subprocess.Popen[str]) -> str:
    _, said = run.communicate(timeout=PATIENCE)
    return said.splitlines()[-1]
