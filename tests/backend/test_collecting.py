"""Whoever owns the store takes finished shards in, each once, and again that of a failed problem that was replaced."""

from __future__ import annotations

from pathlib import Path

from backend.campaign import run_campaign
from backend.collecting import collect
from backend.engines.base import Quiet
from backend.runs import RunFolder
from backend.shards import shard_files
from backend.store import Store
from tests.backend.play import PROBLEMS, Counting, campaign_settings

SETTINGS = campaign_settings(problems={"file": "sums.jsonl", "count": 2})


def states(store: Store) -> dict[str, tuple[str, str | None, int]]:
    """State, error and number of rollouts by problem."""
    return {row["problem"]: (row["state"], row["error"], row["rollouts"]) for row in store.problems(SETTINGS.campaign)}


def test_a_problem_that_failed_is_replaced_when_it_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    folder = RunFolder.of(path, SETTINGS.campaign)
    failing = {"fail_on": PROBLEMS[1].question}
    done, error = ("done", None, 2), f"RuntimeError: the prompt contains {PROBLEMS[1].question!r}"
    with Store(path) as store:
        run_campaign(SETTINGS, PROBLEMS, Counting(failing), folder, Quiet())
        assert collect(store) == 2
        assert states(store) == {"sum-000": done, "sum-001": ("failed", error, 0)}
        run_campaign(SETTINGS, PROBLEMS, Counting(failing), folder, Quiet())
        assert collect(store) == 0, "the same failure says nothing new"
        assert not folder.waiting()
        other = {"fail_on": "What is"}
        run_campaign(SETTINGS, PROBLEMS, Counting(other), folder, Quiet())
        assert collect(store) == 1
        error = "RuntimeError: the prompt contains 'What is'"
        assert states(store) == {"sum-000": done, "sum-001": ("failed", error, 0)}
        run_campaign(SETTINGS, PROBLEMS, Counting(), folder, Quiet())
        assert collect(store) == 1
        assert states(store) == {"sum-000": done, "sum-001": done}
        assert collect(store) == 0
        assert not folder.waiting()
        row = store.campaign(SETTINGS.campaign)
        assert (row["problems"], row["failed"], row["state"]) == (2, 0, "done")


def test_marks_that_were_lost_add_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    folder = RunFolder.of(path, SETTINGS.campaign)
    run_campaign(SETTINGS, PROBLEMS, Counting(), folder, Quiet())
    with Store(path) as store:
        assert collect(store) == 2
        before = [store.record(SETTINGS.campaign, problem) for problem in states(store)]
        for shard in shard_files(folder.shards):
            (folder.path / "ingested" / shard.name).unlink()
        assert collect(store) == 0
        assert [store.record(SETTINGS.campaign, problem) for problem in states(store)] == before
        assert not folder.waiting()
