"""A new store shows what ships, once for good, and any opening takes in what runs have finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from backend import opening
from backend.campaign import run_campaign
from backend.engines.base import Quiet
from backend.errors import UserError
from backend.exporters import bundle_metadata, export
from backend.importers import bundled
from backend.opening import open_for_pages, open_store
from backend.removing import remove_campaign
from backend.runs import RunFolder
from backend.shards import write_table
from backend.store import Store
from backend.store_errors import StoreHeldError
from tests.backend.play import PROBLEMS, campaign_settings, scripted
from tests.conftest import ROOT

SETTINGS = campaign_settings(problems={"file": "sums.jsonl", "count": 1})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store's file beside which a campaign has run; nothing ships."""
    monkeypatch.setenv("PIVOTSCOPE_BUNDLED", str(tmp_path / "demo"))
    path = tmp_path / "a.duckdb"
    folder = RunFolder.of(path, SETTINGS.campaign)
    run_campaign(SETTINGS, PROBLEMS, scripted(), folder, Quiet())
    return path


@pytest.fixture
def ships(path: Path, tmp_path: Path) -> Path:
    """A folder of three campaigns that ship, one problem each: alpha, beta, and the one to begin with."""
    with open_store(path) as store:
        tables, row = list(store.tables(SETTINGS.campaign)), store.campaign(SETTINGS.campaign)
        for name in ("alpha", "beta", bundled.FIRST):
            (tmp_path / "demo").mkdir(exist_ok=True)
            facts = bundle_metadata(store, {**row, "name": name})
            write_table(tmp_path / "demo" / f"{name}.parquet", tables, facts)
    return tmp_path / "demo"


def names(store: Store) -> set[str]:
    return {row["name"] for row in store.campaigns()}


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


def test_a_command_takes_in_only_what_it_asks_for(ships: Path, tmp_path: Path) -> None:
    new = tmp_path / "b.duckdb"
    with open_store(new, campaigns=[]) as store:
        assert names(store) == set()
    with open_store(new, campaigns=["beta"]) as store:
        assert names(store) == {"beta"}
        beta = store.find_campaign("beta")
    with open_store(new, campaigns=["beta"]) as store:
        assert names(store) == {"beta"}
        remove_campaign(store, beta)
    # An unknown name gets the whole list, to say what there is; what was removed stays away.
    with open_store(new, campaigns=["alpha", "nonsense"]) as store:
        assert names(store) == {"alpha", bundled.FIRST}
    by_id = next(iter(bundled.called(ships / "alpha.parquet") - {"alpha"}))
    with open_store(tmp_path / "c.duckdb", campaigns=[by_id]) as store:
        assert names(store) == {"alpha"}


def test_no_campaigns_ship_where_the_reader_wants_none(
    ships: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIVOTSCOPE_BUNDLED", "")
    with open_store(tmp_path / "b.duckdb") as store:
        assert names(store) == set()
    monkeypatch.delenv("PIVOTSCOPE_BUNDLED")
    monkeypatch.setattr(opening, "BUNDLED", ships)
    with open_store(tmp_path / "b.duckdb") as store:
        assert names(store) == {"alpha", "beta", bundled.FIRST}


def test_pages_have_something_to_show_at_once_and_the_rest_soon(ships: Path, tmp_path: Path) -> None:
    store, loading = open_for_pages(tmp_path / "b.duckdb")
    with store:
        assert bundled.FIRST in names(store)
        assert loading.total == 3
        loading.wait()
        assert loading.over
        assert (loading.done, loading.errors) == (3, [])
        assert names(store) == {"alpha", "beta", bundled.FIRST}
    store, loading = open_for_pages(tmp_path / "b.duckdb")
    with store:
        assert loading.over
        assert loading.total == 0


def test_a_closing_store_waits_for_the_campaign_that_comes_in(ships: Path, tmp_path: Path) -> None:
    store, loading = open_for_pages(tmp_path / "b.duckdb")
    store.close()
    assert loading.over
    assert loading.errors == []
    with open_store(tmp_path / "b.duckdb") as store:
        assert [row["problems"] for row in store.campaigns()] == [1, 1, 1]


def test_a_bundle_that_cannot_be_read_keeps_no_page_from_its_reader(ships: Path, tmp_path: Path) -> None:
    for torn in (bundled.FIRST, "beta"):
        (ships / f"{torn}.parquet").write_bytes(b"torn")
    store, loading = open_for_pages(tmp_path / "b.duckdb")
    with store:
        loading.wait()
        assert names(store) == {"alpha"}
        assert [error.partition(": ")[2] for error in loading.errors] == [
            "is not a whole Parquet file; it is torn or of another kind"
        ] * 2


OPEN = """
import os, signal, sys
from pathlib import Path
from backend import ingest
from backend.opening import open_store
merge = ingest.merge
left = int(sys.argv[2])
def killed_in_the_middle(cursor, campaign, *rest):
    global left
    left -= 1
    merge(cursor, campaign, *rest)
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # with rows of a campaign written, and not committed
ingest.merge = killed_in_the_middle
open_store(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("bundle", [1, 2, 3])
def test_a_kill_leaves_each_campaign_whole_or_absent(ships: Path, tmp_path: Path, bundle: int) -> None:
    new = tmp_path / "b.duckdb"
    done = subprocess.run([sys.executable, "-c", OPEN, str(new), str(bundle)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Store(new) as store:
        assert names(store) == set([bundled.FIRST, "alpha", "beta"][: bundle - 1])
        assert all(row["problems"] == 1 for row in store.campaigns())
    with open_store(new) as store:
        whole = store.campaigns()
        assert {row["name"] for row in whole} == {bundled.FIRST, "alpha", "beta"}
        assert len({(row["problems"], row["rollouts"], row["pivots"]) for row in whole}) == 1


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


def test_what_the_first_page_needs_loads_neither_pandas_nor_torch(tmp_path: Path) -> None:
    """Each would make a new reader wait; what draws a frame loads pandas itself."""
    code = """
        import sys
        from pathlib import Path
        import backend.dashboard, backend.replay_panel, backend.rollout_picker, backend.transcript
        from backend.opening import open_for_pages

        store, loading = open_for_pages(Path(sys.argv[1]))
        campaign = store.campaigns()[0]["campaign"]
        problem, rollout, _ = store.most_telling(campaign)
        assert store.rollout(campaign, problem, rollout).pivots
        print([name for name in ("pandas", "scipy", "torch", "transformers") if name in sys.modules])
        loading.stop()
        store.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "store.duckdb")]
    environment = {**os.environ, "PIVOTSCOPE_BUNDLED": str(ROOT / "data" / "demo")}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
