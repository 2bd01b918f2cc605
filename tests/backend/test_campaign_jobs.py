"""Campaigns as jobs, on the scripted engine in its real process: to the end, cancelled, killed, resumed, removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend import campaign_list
from backend.campaign_jobs import campaign_job, cancel, remove, resume, settings_of, submit_campaign
from backend.errors import UserError
from backend.jobs import Job, Jobs
from backend.runs import RunFolder
from backend.settings import CampaignSettings
from backend.store import Campaign, Store
from tests.backend.play import PROBLEMS, campaign_settings, comparable

PATIENCE = 60.0


@pytest.fixture
def problems(tmp_path: Path) -> str:
    """A problem file."""
    path = tmp_path / "sums.jsonl"
    rows = [{"problem": one.problem, "question": one.question, "answer": one.gold} for one in PROBLEMS]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(Store(tmp_path / "store.duckdb"))
    yield jobs
    jobs.close()


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """A file that holds the engine with its second call for rollouts: one problem is done, and no more."""
    path = tmp_path / "hold"
    path.write_text("rollouts 2", encoding="utf-8")
    return path


@pytest.fixture
def settings(problems: str) -> Callable[..., CampaignSettings]:
    def make(count: int = 3, **changed: Any) -> CampaignSettings:
        return campaign_settings(problems={"file": problems, "count": count}, **changed)

    return make


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    pytest.fail("nothing happened in time")


def ended(jobs: Jobs, number: int) -> Job:
    def over() -> Job | None:
        job = jobs.job(number)
        return job if job is not None and job.over else None

    found: Job = until(over)
    return found


def row(jobs: Jobs, campaign: str) -> campaign_list.Row:
    return next(row for row in campaign_list.rows(jobs) if row.campaign == campaign)


def contents(store: Store, campaign: str) -> list[Any]:
    """Everything stored of a campaign, without the times."""
    return [comparable(store.record(campaign, one["problem"])) for one in store.problems(campaign)]


def test_a_campaign_runs_to_its_end_and_is_not_computed_again(jobs: Jobs, settings: Any) -> None:
    made = settings()
    number = submit_campaign(jobs, made)
    assert submit_campaign(jobs, made) == number
    job = ended(jobs, number)
    assert (job.state, job.error) == ("done", None)
    assert job.result.startswith("3 problems done in ")
    stored = jobs.store.campaign(made.campaign)
    assert (stored["state"], stored["problems"], stored["rollouts"]) == ("done", 3, 6)
    assert stored["pivots"] > 0

    seen = row(jobs, made.campaign)
    assert (seen.standing.word, seen.active, seen.resumable) == ("done", False, False)
    assert seen.facts == "toy · scripted · float32 · k = 2"
    assert seen.counts.startswith("3 of 3 problems · 6 rollouts · ")
    log = campaign_list.log_table(RunFolder.of(jobs.store.path, made.campaign).log_entries(), made.campaign)
    told = [line["what"] for line in log.rows]
    assert told[-2:] == ["rollouts", "start"], "the newest comes first"
    assert told[0] == "end: done"
    assert log.rows[-1]["message"] == "scripted 1 with toy, float32, on cpu"
    assert log.rows[-2]["tokens"] > 0
    assert log.rows[-2]["memory_mb"] > 0

    again = ended(jobs, resume(jobs, made.campaign))
    assert again.result == "Everything of this campaign was done already."
    assert jobs.loads == 1


def test_cancelled_and_resumed_equals_undisturbed(jobs: Jobs, settings: Any, hold: Path, tmp_path: Path) -> None:
    made = settings(4, engine_options={"hold": str(hold)})
    number = submit_campaign(jobs, made)
    waiting = submit_campaign(jobs, settings(name="second"))
    assert (job := jobs.job(waiting)) is not None
    assert job.state == "queued"
    folder = RunFolder.of(jobs.store.path, made.campaign)
    until(lambda: (progress := folder.progress()) is not None and progress.done >= 1)
    seen = row(jobs, made.campaign)
    fraction, line = campaign_list.at_work(seen)
    assert seen.state == "running"
    assert seen.runner == os.getpid()
    assert fraction is not None
    assert " of 4 problems" in line
    assert line.endswith("left") or "not known" in line
    with pytest.raises(UserError, match="campaign small is running; cancel it first, then remove it"):
        remove(jobs, made.campaign)

    cancel(jobs, campaign_settings(name="second").campaign)
    cancel(jobs, made.campaign)
    assert ended(jobs, waiting).state == "cancelled"
    assert ended(jobs, number).state == "cancelled"
    seen = row(jobs, made.campaign)
    assert (seen.standing.word, seen.resumable) == ("cancelled", True)
    assert seen.note == "cancelled; what was finished before is stored"
    assert len(folder.finished()) == 1

    hold.unlink()
    shards = {path: path.stat().st_mtime_ns for path in folder.shards.glob("*.parquet")}
    assert ended(jobs, resume(jobs, made.campaign)).state == "done"
    assert {path: path.stat().st_mtime_ns for path in shards} == shards, "what was stored is not computed again"
    with Store(tmp_path / "undisturbed.duckdb") as undisturbed:
        other = Jobs(undisturbed)
        assert ended(other, submit_campaign(other, settings(4))).state == "done"
        assert contents(jobs.store, made.campaign) == contents(undisturbed, made.campaign)
        other.close()


def test_a_killed_worker_leaves_a_campaign_that_can_be_resumed(jobs: Jobs, settings: Any, hold: Path) -> None:
    made = settings(3, engine_options={"hold": str(hold)})
    number = submit_campaign(jobs, made)
    folder = RunFolder.of(jobs.store.path, made.campaign)
    until(lambda: (progress := folder.progress()) is not None and progress.done >= 1)
    engine = jobs.engine()
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)
    job = ended(jobs, number)
    assert job.state == "failed"
    assert f"the engine process {engine.pid} ended by signal 9" in str(job.error)
    seen = row(jobs, made.campaign)
    assert (seen.standing.word, seen.note) == ("failed", job.error)
    hold.unlink()
    assert ended(jobs, resume(jobs, made.campaign)).state == "done"
    assert jobs.store.campaign(made.campaign)["problems"] == 3


def test_a_problem_that_fails_is_recorded_and_the_campaign_goes_on(jobs: Jobs, settings: Any) -> None:
    made = settings(engine_options={"fail_on": PROBLEMS[1].question})
    job = ended(jobs, submit_campaign(jobs, made))
    assert job.result.startswith("2 problems done, 1 failed in ")
    table = campaign_list.problem_table(jobs.store, made.campaign)
    assert [line["state"] for line in table.rows] == ["failed", "done", "done"]
    assert table.rows[0]["problem"] == PROBLEMS[1].problem
    assert "the engine failed (RuntimeError: the prompt contains" in table.rows[0]["error"]


def test_what_cannot_begin_leaves_nothing(jobs: Jobs, settings: Any) -> None:
    wrong = settings(engine_options={"noize": {}})
    job = ended(jobs, submit_campaign(jobs, wrong))
    assert job.state == "failed"
    assert job.error == "engine_options: unknown option `noize` of the scripted engine; did you mean `noise`?"
    assert campaign_list.rows(jobs) == []
    assert ended(jobs, submit_campaign(jobs, settings())).state == "done", "the same name, put right"

    with pytest.raises(UserError, match=r"campaign 'small' was started with k: 2, not 4"):
        submit_campaign(jobs, settings(k=4))
    with pytest.raises(UserError, match="cannot be read"):
        submit_campaign(jobs, campaign_settings(name="nowhere"))
    nobody = campaign_settings(
        name="nobody", model="no-such-model", engine="transformers", problems={"set": "arithmetic"}
    )
    assert "model 'no-such-model' is unknown" in str(ended(jobs, submit_campaign(jobs, nobody)).error)


def test_removed_for_good(jobs: Jobs, settings: Any) -> None:
    made = settings()
    ended(jobs, submit_campaign(jobs, made))
    remove(jobs, made.campaign)
    time.sleep(1.2)  # the next look for finished shards finds none
    assert jobs.store.campaigns() == []
    assert campaign_list.rows(jobs) == []
    with pytest.raises(UserError, match="there is no campaign"):
        resume(jobs, made.campaign)


HOLD = """
import sys, time
from pathlib import Path
from backend.runs import RunFolder
from backend.settings import load_settings
folder = RunFolder(Path(sys.argv[1]))
with folder.claim(load_settings(Path(sys.argv[2]))):
    print("held", flush=True)
    while not folder.cancel_requested():
        time.sleep(0.05)
"""


def test_a_campaign_of_another_process_is_watched_and_cancelled(jobs: Jobs, settings: Any, tmp_path: Path) -> None:
    made = settings()
    folder = RunFolder.of(jobs.store.path, made.campaign)
    file = tmp_path / "campaign.toml"
    text = campaign_list.to_toml(made)
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", HOLD, str(folder.path), str(file)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parents[2])
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        job = ended(jobs, submit_campaign(jobs, made))
        assert job.state == "done"
        assert job.result == f"Process {other.pid} runs this campaign already, and it can be watched here."
        assert jobs.loads == 0
        seen = row(jobs, made.campaign)
        assert (seen.state, seen.runner, campaign_list.at_work(seen)[1]) == ("running", other.pid, "loading the model")
        with pytest.raises(UserError, match=f"is being run by process {other.pid}"):
            remove(jobs, made.campaign)
        cancel(jobs, made.campaign)
        assert other.wait(PATIENCE) == 0
    finally:
        other.kill()
        other.wait()
    assert row(jobs, made.campaign).standing.word == "interrupted"
    assert campaign_list.campaign_file(jobs.store, made.campaign) == text
    assert campaign_job(jobs, "unknown") is None


def test_what_was_not_run_here_is_not_resumed(jobs: Jobs) -> None:
    jobs.store.ensure_campaign(Campaign(campaign="c1", name="theirs", origin="import", state="imported"))
    with pytest.raises(UserError, match="campaign theirs was not run here, so there is nothing to resume"):
        settings_of(jobs, "c1")
    seen = row(jobs, "c1")
    assert (seen.standing.word, seen.resumable, seen.facts) == ("imported", False, "unknown model · unknown engine")
    assert campaign_list.campaign_file(jobs.store, "c1") is None


def test_damaged_settings_are_shown_as_such(jobs: Jobs) -> None:
    folder = RunFolder.of(jobs.store.path, "abc")
    folder.path.mkdir(parents=True)
    (folder.path / "settings.json").write_text("{", encoding="utf-8")
    seen = row(jobs, "abc")
    assert (seen.standing.word, seen.stored) == ("unreadable", False)
    assert "cannot be read as settings" in str(seen.note)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "time left not known yet"),
        (0.0, "a few seconds left"),
        (44.0, "about 40 s left"),
        (89.9, "about 90 s left"),
        (90.0, "about 2 min left"),
        (3600.0, "about 60 min left"),
        (7500.0, "about 2 h 05 min left"),
    ],
)
def test_time_left_in_words(seconds: float | None, words: str) -> None:
    assert campaign_list.time_left(seconds) == words
