"""The one owner of engine and jobs: one load, one worker at a time, and what a killed worker leaves."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend.engines.wire import EngineSpec
from backend.errors import UserError
from backend.jobs import KEPT_JOBS, Handle, Job, Jobs
from backend.problems import messages, plain_prompt
from backend.store import Store
from tests.backend.play import MIXED

PATIENCE = 30.0
TOY = EngineSpec("scripted", "toy", "toy", "float32")
OTHER = EngineSpec("scripted", "other", "other", "float32")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(Store(tmp_path / "store.duckdb"))
    yield jobs
    jobs.close()


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    pytest.fail("nothing happened in time")


def ended(jobs: Jobs, number: int) -> Job:
    """A job once it is over."""

    def over() -> Job | None:
        job = jobs.job(number)
        return job if job is not None and job.over else None

    found: Job = until(over)
    return found


def asking(jobs: Jobs, spec: EngineSpec = TOY) -> Callable[[Handle], int]:
    """Work that asks the engine for a prompt's length."""

    def work(handle: Handle) -> int:
        engine = jobs.bench(spec, handle).engine
        return len(engine.prompt_ids(messages(MIXED.question), plain_prompt(MIXED.question)))

    return work


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_one_load_serves_every_session_until_another_model_is_asked_for(jobs: Jobs) -> None:
    assert jobs.engine() is None
    numbers: list[int] = []
    sessions = [
        threading.Thread(
            target=lambda name=name: numbers.extend(
                jobs.submit(f"{name}-{i}", f"Ask {i}", asking(jobs)) for i in range(3)
            )
        )
        for name in ("left", "right")
    ]
    for session in sessions:
        session.start()
    for session in sessions:
        session.join()
    found = [ended(jobs, number) for number in numbers]
    assert len(set(numbers)) == 6
    assert {job.state for job in found} == {"done"}
    assert len({job.result for job in found}) == 1
    assert jobs.loads == 1
    engine = jobs.engine()
    assert engine is not None
    assert engine.alive()

    assert ended(jobs, jobs.submit("other", "Ask another", asking(jobs, OTHER))).state == "done"
    other = jobs.engine()
    assert jobs.loads == 2
    assert not engine.alive()
    assert gone(engine.pid)
    assert other is not None
    assert other.spec == OTHER


def test_a_killed_worker_fails_its_job_and_the_next_job_starts_another(jobs: Jobs) -> None:
    def dying(handle: Handle) -> None:
        engine = jobs.bench(TOY, handle).engine
        os.kill(jobs.engine().pid, signal.SIGKILL)  # type: ignore[union-attr]
        engine.holds(["nothing"])

    job = ended(jobs, jobs.submit("dying", "Die", dying))
    first = jobs.engine()
    assert first is not None
    assert job.state == "failed"
    assert job.error == (
        f"the engine process {first.pid} ended by signal 9; what was stored stays, start the work again"
    )
    assert ended(jobs, jobs.submit("again", "Ask again", asking(jobs))).state == "done"
    second = jobs.engine()
    assert second is not None
    assert (second.pid != first.pid, second.alive(), jobs.loads) == (True, True, 2)


def test_equal_work_is_joined_while_it_is_not_over(jobs: Jobs) -> None:
    hold = threading.Event()
    first = jobs.submit("same", "Wait", lambda _: hold.wait(PATIENCE))
    assert jobs.submit("same", "Wait", lambda _: pytest.fail("joined work runs once")) == first
    assert jobs.submit("different", "Another", lambda _: 7) != first
    hold.set()
    assert ended(jobs, first).result is True
    again = jobs.submit("same", "Wait", lambda _: "anew")
    assert again != first
    assert ended(jobs, again).result == "anew"
    newest = jobs.find("same")
    assert newest is not None
    assert newest.id == again
    assert jobs.find("unknown") is None


def test_cancelling_stops_what_runs_and_what_waits(jobs: Jobs) -> None:
    started = threading.Event()

    def running(handle: Handle) -> None:
        started.set()
        while True:
            handle.phase("counting", 0.5)
            handle.tick(3)
            time.sleep(0.01)

    first = jobs.submit("running", "Run", running)
    second = jobs.submit("waiting", "Wait", lambda _: pytest.fail("a cancelled job never starts"))
    assert started.wait(PATIENCE)
    until(lambda: (job := jobs.job(first)) is not None and job.tokens >= 6)
    seen = jobs.job(first)
    assert seen is not None
    assert (seen.state, seen.phase, seen.fraction) == ("running", "counting", 0.5)
    assert seen.seconds > 0
    jobs.cancel(second)
    waiting = jobs.job(second)
    assert waiting is not None
    assert (waiting.state, waiting.error) == ("cancelled", "cancelled before it started")
    jobs.cancel(first)
    job = ended(jobs, first)
    assert (job.state, job.error) == ("cancelled", "cancelled; what was finished before is stored")
    assert ended(jobs, jobs.submit("after", "Go on", lambda _: 1)).state == "done"


def test_failures_are_sentences_and_the_thread_lives_on(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    def mistaken(_: Handle) -> None:
        raise UserError("k is 0; give 1 or more")

    def broken(_: Handle) -> None:
        raise ZeroDivisionError("division by zero")

    assert ended(jobs, jobs.submit("a", "A", mistaken)).error == "k is 0; give 1 or more"
    job = ended(jobs, jobs.submit("b", "B", broken))
    assert job.error == "the work broke off (ZeroDivisionError: division by zero)"
    assert "job 2 failed" in caplog.text, "the traceback goes to the terminal"
    assert [one.state for one in jobs.all()] == ["failed", "failed"]


def test_old_jobs_are_forgotten_but_none_that_is_not_over(jobs: Jobs) -> None:
    hold = threading.Event()
    first = jobs.submit("first", "First", lambda _: hold.wait(PATIENCE))
    queued = [jobs.submit(f"n{i}", "N", lambda _: None) for i in range(KEPT_JOBS + 5)]
    assert jobs.job(first) is not None
    hold.set()
    ended(jobs, queued[-1])
    last = jobs.submit("last", "Last", lambda _: None)
    ended(jobs, last)
    assert jobs.job(first) is None
    assert len(jobs.all()) == KEPT_JOBS


def test_closing_ends_the_worker(tmp_path: Path) -> None:
    jobs = Jobs(Store(tmp_path / "store.duckdb"))
    ended(jobs, jobs.submit("ask", "Ask", asking(jobs)))
    engine = jobs.engine()
    assert engine is not None
    jobs.close()
    assert gone(engine.pid)
    Store(tmp_path / "store.duckdb").close()
