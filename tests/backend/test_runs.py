"""The files of a run: one runner, atomic progress, shards that are whole or set aside."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backend import runs
from backend.errors import UserError, WorkFailed
from backend.progress import Progress
from backend.records import ProblemRecord
from backend.runs import RunFolder, RunHeldError, run_folders
from backend.shards import read_shard, shard_name
from tests.backend.play import campaign_settings

SETTINGS = campaign_settings()
RECORD = ProblemRecord("sum-001", "What is 1 + 1?", "2", "test", "failed", "no", 0.5, None, None)
PROGRESS = Progress(
    "id", "small", "running", "exact", 3, 3, 1, 0, 0, 0.4, 12, 3.5, 4.0, None, "t0", "t1", os.getpid(), None
)

HOLD = """
import sys
from pathlib import Path
from backend.runs import RunFolder
from tests.backend.play import campaign_settings
with RunFolder(Path(sys.argv[1])).claim(campaign_settings()):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder.of(tmp_path / "store.duckdb", SETTINGS.campaign)
    with folder.claim(SETTINGS):
        pass
    return folder


def test_a_run_lies_beside_the_store(folder: RunFolder, tmp_path: Path) -> None:
    assert folder.path == tmp_path / "store.duckdb.runs" / SETTINGS.campaign
    assert [one.path for one in run_folders(tmp_path / "store.duckdb")] == [folder.path]
    assert folder.settings() == SETTINGS
    assert run_folders(tmp_path / "other.duckdb") == []


def test_an_unknown_run_has_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "nothing")
    assert (folder.settings(), folder.progress(), folder.state(), folder.runner()) == (None,) * 4
    assert (folder.log_entries(), folder.quarantined(), folder.waiting()) == ([], [], {})


def test_the_holder_claims_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOCK_PATIENCE", 0.1)
    with folder.claim(SETTINGS):
        assert folder.state() == "running"
        with folder.claim(SETTINGS):
            pass
        with pytest.raises(UserError, match="was started with k: 2, not 4"):
            folder.claim(campaign_settings(k=4)).__enter__()
        with pytest.raises(RunHeldError):
            RunFolder(folder.path).claim(SETTINGS).__enter__()
    assert folder.runner() is None


def test_one_process_runs_a_campaign(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOCK_PATIENCE", 0.1)
    root = Path(__file__).resolve().parents[2]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert folder.runner() == holder.pid
        folder.write_progress(PROGRESS)
        assert folder.state() == "running"
        with pytest.raises(RunHeldError, match=f"is being run by process {holder.pid}; watch it") as refused:
            folder.claim(SETTINGS).__enter__()
        assert refused.value.pid == holder.pid
    finally:
        holder.kill()
        holder.communicate()
    # The lock goes with its process, however that ended.
    assert folder.runner() is None
    assert folder.state() == "interrupted"
    with folder.claim(SETTINGS):
        assert folder.runner() == os.getpid()


def test_other_settings_under_the_same_name_are_refused(folder: RunFolder) -> None:
    changed = campaign_settings(k=4, seed=3)
    with pytest.raises(UserError, match=r"campaign 'small' was started with k: 2, not 4; seed: 0, not 3: give"):
        folder.claim(changed).__enter__()
    assert folder.settings() == SETTINGS


def test_unreadable_settings_are_a_sentence(folder: RunFolder) -> None:
    (folder.path / "settings.json").write_text("{")
    with pytest.raises(UserError, match=r"settings\.json: cannot be read as settings"):
        folder.claim(SETTINGS).__enter__()
    (folder.path / "settings.json").write_text('{"name": "x"}')
    with pytest.raises(UserError, match=r"settings\.json: key `model` is missing"):
        folder.settings()


def test_progress_is_replaced_and_torn_progress_is_none(folder: RunFolder) -> None:
    folder.write_progress(PROGRESS)
    assert folder.progress() == PROGRESS
    done = replace(PROGRESS, state="done")
    folder.write_progress(done)
    assert folder.progress() == done
    assert folder.state() == "done"
    (folder.path / "progress.json").write_text("{")
    assert folder.progress() is None


def test_the_log_survives_a_line_cut_short(folder: RunFolder) -> None:
    folder.log("phase", seconds=1.5, what="é")
    with (folder.path / "log.jsonl").open("a") as file:
        file.write('{"time": "2026')
    (entry,) = folder.log_entries()
    assert (entry["kind"], entry["seconds"], entry["what"]) == ("phase", 1.5, "é")
    with folder.claim(SETTINGS):
        folder.log("end")
    assert [entry["kind"] for entry in folder.log_entries()] == ["phase", "end"]


def test_cancelling_is_a_file_that_the_next_run_removes(folder: RunFolder) -> None:
    assert not folder.cancel_requested()
    folder.request_cancel()
    assert folder.cancel_requested()
    with folder.claim(SETTINGS):
        assert not folder.cancel_requested()


def test_finished_problems_are_read_from_their_shards(folder: RunFolder) -> None:
    path = folder.write(RECORD)
    assert path == folder.shards / shard_name("sum-001")
    assert read_shard(path) == RECORD
    assert folder.finished() == {"sum-001": "failed"}
    assert folder.finished(["sum-001"]) == {"sum-001": "failed"}


def test_what_a_kill_left_half_written_is_removed(folder: RunFolder) -> None:
    rest = folder.shards / ".tmp-abc"
    rest.write_bytes(b"half")
    with folder.claim(SETTINGS):
        assert not rest.exists()


@pytest.mark.parametrize("kind", ["torn", "foreign", "misnamed", "of another campaign", "empty"])
def test_a_bad_shard_is_set_aside_with_its_reason(folder: RunFolder, kind: str) -> None:
    good = folder.write(RECORD)
    bad = folder.write(replace(RECORD, problem="sum-002"))
    if kind == "torn":
        bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    elif kind == "foreign":
        bad.write_text(json.dumps({"hello": 1}))
    elif kind == "misnamed":
        bad = bad.rename(bad.with_name("other.parquet"))
    elif kind == "empty":
        bad.write_bytes(b"")
    known = ["sum-001"] if kind == "of another campaign" else ["sum-001", "sum-002"]
    assert folder.finished(known) == {"sum-001": "failed"}
    (aside,) = folder.quarantined()
    assert aside.name == bad.name
    assert bad.name in aside.reason
    assert (folder.path / "quarantine" / bad.name).exists()
    assert not bad.exists()
    assert good.exists()
    assert [entry["shard"] for entry in folder.log_entries()] == [bad.name]


def test_setting_aside_the_same_name_twice_keeps_both(folder: RunFolder) -> None:
    for _ in range(2):
        path = folder.write(RECORD)
        folder.set_aside(path, "broken")
    names = {path.name, f"{path.stem}-2.parquet"}
    assert {one.name for one in folder.quarantined()} == names
    assert {one.name for one in (folder.path / "quarantine").glob("*.parquet")} == names


def test_ingested_shards_are_marked(folder: RunFolder) -> None:
    path = folder.write(RECORD)
    (written,) = folder.waiting().values()
    assert folder.waiting() == {path: path.stat().st_mtime_ns}
    folder.mark_ingested(path, written)
    assert folder.waiting() == {}
    assert folder.finished() == {"sum-001": "failed"}


def test_a_shard_that_was_replaced_waits_again(folder: RunFolder) -> None:
    read = folder.write(RECORD)
    (written,) = folder.waiting().values()
    os.utime(read, ns=(written + 1, written + 1))  # replaced between being read and being marked
    folder.mark_ingested(read, written)
    assert list(folder.waiting()) == [read]


def test_a_full_disk_is_a_sentence(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(WorkFailed, match="the disk is full; free some space"):
        folder.write_progress(PROGRESS)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder(tmp_path / "file" / "run").claim(SETTINGS).__enter__()
