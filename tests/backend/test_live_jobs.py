"""What a click sets off: the model it needs is brought here first, and every ending is a sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend import live_jobs, models
from backend.errors import WorkFailed
from backend.jobs import Job, Jobs
from backend.live import Place
from backend.store import Store
from tests.backend import trees
from tests.backend.test_jobs import ended, until


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Over a store with a campaign of a model that ships, in front of an empty model library."""
    monkeypatch.setenv("PIVOTSCOPE_MODELS", str(tmp_path / "models"))
    store = Store(tmp_path / "store.duckdb")
    store.ensure_campaign(trees.campaign(engine="vllm", model=models.DEFAULT_MODEL))
    store.ingest_record("c1", trees.record("a"))
    jobs = Jobs(store)
    yield jobs
    jobs.close()


def click(jobs: Jobs) -> int:
    return live_jobs.submit_replay(jobs, Place("c1", "a", 0), 3, 1, 8)


def test_a_click_fetches_a_model_that_ships_and_shows_how_far_it_is(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, go_on = [], threading.Event()

    def fetch(name: str, progress: models.Progress) -> None:
        progress(f"downloading {name}", 0.25)
        go_on.wait(30)
        raise WorkFailed("the network is gone; try again")

    monkeypatch.setattr(models, "fetch", fetch)
    number = click(jobs)

    def downloading() -> Job | None:
        job = jobs.job(number)
        return job if job is not None and job.phase else None

    seen.append(until(downloading))
    go_on.set()
    assert [(job.phase, job.fraction) for job in seen] == [(f"downloading {models.DEFAULT_MODEL}", 0.25)]
    job = ended(jobs, number)
    assert (job.state, job.error) == ("failed", "the network is gone; try again")
    assert jobs.loads == 0


def test_a_fetch_can_be_cancelled(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def fetch(name: str, progress: models.Progress) -> None:
        begun.set()
        until(lambda: progress(f"downloading {name}", None))  # type: ignore[func-returns-value]

    monkeypatch.setattr(models, "fetch", fetch)
    number = click(jobs)
    assert begun.wait(30)
    jobs.cancel(number)
    assert ended(jobs, number).state == "cancelled"


def test_a_model_that_does_not_ship_is_asked_for(jobs: Jobs) -> None:
    jobs.store.ensure_campaign(trees.campaign("c2", name="large", engine="vllm", model="Qwen/Qwen2.5-7B-Instruct"))
    jobs.store.ingest_record("c2", trees.record("a"))
    job = ended(jobs, live_jobs.submit_replay(jobs, Place("c2", "a", 0), 3, 1, 8))
    assert job.state == "failed"
    assert job.error is not None
    assert "model Qwen/Qwen2.5-7B-Instruct is not on this disk; fetch it with" in job.error
