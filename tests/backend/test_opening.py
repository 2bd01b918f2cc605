"""A new store shows what ships, once for good, and any opening takes in what runs have finished."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from backend import opening
from backend.campaign import run_campaign
from backend.engines.base import Quiet
from backend.errors import UserError
from backend.exporters import export
from backend.opening import open_store
from backend.removing import remove_campaign
from backend.runs import RunFolder
from backend.store import Store
from backend.store_errors import StoreHeldError
from tests.backend.play import PROBLEMS, campaign_settings, scripted

SETTINGS = campaign_settings(problems={"file": "sums.jsonl", "count": 1})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store's file beside which a campaign has run; nothing ships."""
    monkeypatch.setattr(opening, "BUNDLED", tmp_path / "demo")
    path = tmp_path / "a.duckdb"
    folder = RunFolder.of(path, SETTINGS.campaign)
    run_campaign(SETTINGS, PROBLEMS, scripted(), folder, Quiet())
    return path


def test_finished_shards_are_taken_in(path: Path) -> None:
    with open_store(path) as store:
        (row,) = store.campaigns()
    assert (row["name"], row["problems"], row["state"]) == ("small", 1, "done")


def test_what_ships_is_shown_until_it_is_removed(path: Path, tmp_path: Path) -> None:
    with open_store(path) as store:
        (file,) = export(store, "small", "parquet", tmp_path / "demo")
    other = tmp_path / "b.duckdb"
    with open_store(other) as store:
        (row,) = store.campaigns()
        assert row["bundled"]
        remove_campaign(store, row["campaign"])
    with open_store(other) as store:
        assert store.campaigns() == []
    file.write_bytes(b"torn")
    with pytest.raises(UserError, match="is not a whole Parquet file"):
        open_store(tmp_path / "c.duckdb")
    Store(tmp_path / "c.duckdb").close()  # it was let go of


def test_a_removed_run_does_not_come_back(path: Path) -> None:
    folder = RunFolder.of(path, SETTINGS.campaign)
    with open_store(path) as store:
        with folder.claim(SETTINGS), pytest.raises(UserError, match="is being run by process"):
            remove_campaign(store, "small")
        assert remove_campaign(store, "small") == SETTINGS.campaign
    with open_store(path) as store:
        assert store.campaigns() == []


def test_a_held_store_is_waited_for(path: Path) -> None:
    hold = f"from backend.store import Store\nwith Store(__import__('pathlib').Path({str(path)!r})):\n"
    hold += "    print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        with pytest.raises(StoreHeldError, match=f"process id {holder.pid}"):
            open_store(path)
        threading.Timer(0.5, lambda: print(file=holder.stdin, flush=True)).start()
        open_store(path, patience=60.0).close()
