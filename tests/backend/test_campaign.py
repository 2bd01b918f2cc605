"""Campaigns on the scripted engine: the screen, waves, failures, resuming, progress."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backend.campaign import Outcome, run_campaign
from backend.engines.base import Control, Quiet, RolloutRequest
from backend.engines.scripted_engine import ScriptedEngine
from backend.errors import Cancelled, UserError, WorkFailed
from backend.progress import Progress
from backend.records import Problem, ProblemRecord, Trace
from backend.runs import RunFolder
from backend.settings import CampaignSettings
from backend.shards import read_shard, shard_files, shard_name
from tests.backend.play import PROBLEMS, Counting, campaign_settings, comparable

SCREENED = campaign_settings(problems={"file": "sums.jsonl", "count": 3, "screen": True, "scan_limit": 20}, rollouts=4)


class StopAfter:
    """A control that stops the work after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def tick(self, tokens: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise Cancelled("somebody stopped it")


def run(
    folder: RunFolder,
    settings: CampaignSettings | None = None,
    engine: ScriptedEngine | None = None,
    control: Control | None = None,
    problems: Sequence[Problem] = PROBLEMS,
    **options: Any,
) -> Outcome:
    return run_campaign(
        settings or campaign_settings(), problems, engine or Counting(), folder, control or Quiet(), **options
    )


def records(folder: RunFolder) -> dict[str, ProblemRecord]:
    found = [read_shard(path) for path in shard_files(folder.shards)]
    return {record.problem: record for record in sorted(found, key=lambda record: record.problem)}


def assert_same(one: RunFolder, other: RunFolder) -> None:
    """Both runs hold the same records, times aside; says the first problem in which they do not."""
    mine, theirs = records(one), records(other)
    assert list(mine) == list(theirs)
    for problem in mine:
        assert comparable(mine[problem]) == comparable(theirs[problem]), problem


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The small campaign, run without interruption."""
    folder = RunFolder(tmp_path_factory.mktemp("whole"))
    run(folder)
    return folder


@pytest.fixture(scope="module")
def screened(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The screened campaign, run without interruption, one problem at a time."""
    folder = RunFolder(tmp_path_factory.mktemp("screened"))
    run(folder, SCREENED, wave=1)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def test_a_campaign_stores_rollouts_pivots_and_all_passes(folder: RunFolder) -> None:
    engine = Counting()
    outcome = run(folder, engine=engine)
    assert (outcome.done, outcome.screened_out, outcome.failed, outcome.short) == (3, 0, 0, False)
    found = records(folder)
    assert list(found) == ["sum-000", "sum-001", "sum-002"]
    for record in found.values():
        assert (record.state, record.error, record.engine) == ("done", None, engine.info().digest())
        assert record.seconds is not None
        assert record.seconds > 0
        assert [rollout.rollout for rollout in record.rollouts] == [0, 1]
        for rollout in record.rollouts:
            assert 1 <= len(rollout.pivots) <= 2
            for pivot in rollout.pivots:
                assert [one.pass_ for one in pivot.measurements] == ["exact", "replica", "refeed"]
                assert all(len(one.continuations) == 2 * (2 + 1) for one in pivot.measurements)
        known = {token.id: token.bytes for token in record.tokens}
        assert list(known) == sorted(known)
        for rollout in record.rollouts:
            assert b"".join(known[token] for token in rollout.ids).startswith(b"Plan: ")
            assert {token for top in rollout.topk_ids for token in top} <= known.keys()
    assert engine.holds(engine.sampled) == [False] * 6, "states were not released"


def test_the_screen_keeps_the_first_mixed_problems_and_records_the_others(folder: RunFolder) -> None:
    outcome = run(folder, SCREENED)
    found = records(folder)
    states = [(problem, record.state) for problem, record in found.items()]
    assert outcome.done == 3
    assert states[-1][1] == "done", "something behind the last kept problem was recorded"
    assert len(states) == outcome.done + outcome.screened_out
    for record in found.values():
        right = {rollout.correct for rollout in record.rollouts}
        assert (len(right) == 2) == (record.state == "done")
        assert record.state == "done" or not any(rollout.pivots for rollout in record.rollouts)


def test_a_screen_that_runs_out_says_so(folder: RunFolder) -> None:
    settings = campaign_settings(
        problems={"file": "sums.jsonl", "count": 50, "screen": True, "scan_limit": 6}, rollouts=4
    )
    outcome = run(folder, settings)
    assert outcome.short
    assert outcome.done + outcome.screened_out == 6
    progress = folder.progress()
    assert progress is not None
    assert progress.message == f"Only {outcome.done} of 50 problems passed the screen."


@pytest.mark.parametrize("wave", [2, 5, 32])
def test_waves_do_not_change_the_campaign(screened: RunFolder, tmp_path: Path, wave: int) -> None:
    together = RunFolder(tmp_path / "together")
    run(together, SCREENED, wave=wave)
    assert_same(screened, together)


def test_a_wave_samples_and_measures_its_problems_together(folder: RunFolder) -> None:
    engine = Counting()
    run(folder, engine=engine, wave=3)
    assert [source for source, _, _ in engine.asked] == ["exact", "exact", "refeed"]


@pytest.mark.parametrize(("wave", "steps"), [(1, 1), (1, 75), (1, 200), (1, 400), (3, 40), (3, 75), (3, 140)])
def test_a_run_that_was_stopped_anywhere_goes_on_to_the_same_campaign(
    whole: RunFolder, tmp_path: Path, steps: int, wave: int
) -> None:
    broken = RunFolder(tmp_path / "broken")
    with pytest.raises(Cancelled):
        run(broken, control=StopAfter(steps), wave=wave)
    assert broken.state() == "cancelled"
    stored = {path: path.read_bytes() for path in shard_files(broken.shards)}
    engine = Counting()
    outcome = run(broken, engine=engine)
    assert (outcome.done, broken.state()) == (3, "done")
    assert_same(whole, broken)
    again = {handle.split("/")[1] for handle in engine.sampled}
    assert again == {f"sum-{number:03d}" for number in range(3)} - {read_shard(path).problem for path in stored}
    assert all(path.read_bytes() == content for path, content in stored.items()), "a stored shard was written again"


def test_a_finished_campaign_computes_nothing(folder: RunFolder) -> None:
    run(folder)
    engine = Counting()
    outcome = run(folder, engine=engine)
    assert (outcome.done, outcome.tokens, engine.sampled, engine.asked) == (3, 0, [], [])


def test_a_torn_shard_is_set_aside_and_computed_again(screened: RunFolder, tmp_path: Path) -> None:
    torn = RunFolder(tmp_path / "torn")
    run(torn, SCREENED)
    victim = torn.shards / shard_name(next(iter(records(torn))))
    victim.write_bytes(victim.read_bytes()[:100])
    engine = Counting()
    run(torn, SCREENED, engine)
    assert_same(screened, torn)
    assert len(engine.sampled) == SCREENED.rollouts
    assert [one.name for one in torn.quarantined()] == [victim.name]


def test_a_changed_setting_is_refused(folder: RunFolder) -> None:
    run(folder)
    with pytest.raises(UserError, match="was started with k: 2, not 3"):
        run(folder, campaign_settings(k=3))


@pytest.mark.parametrize("wave", [1, 3])
def test_a_problem_that_fails_is_recorded_and_the_campaign_goes_on(folder: RunFolder, wave: int) -> None:
    question = PROBLEMS[1].question
    engine = Counting({"fail_on": question})
    outcome = run(folder, engine=engine, wave=wave)
    assert (outcome.done, outcome.failed) == (2, 1)
    failed = records(folder)["sum-001"]
    assert (failed.state, failed.rollouts) == ("failed", [])
    assert failed.error == f"RuntimeError: the prompt contains {question!r}"
    warnings = [entry["message"] for entry in folder.log_entries() if entry["kind"] == "warning"]
    assert f"Problem sum-001 failed: {failed.error}" in warnings


@pytest.mark.parametrize("wave", [1, 3])
def test_a_problem_that_failed_is_tried_again_in_its_place(whole: RunFolder, tmp_path: Path, wave: int) -> None:
    folder = RunFolder(tmp_path / "again")
    assert run(folder, engine=Counting({"fail_on": PROBLEMS[1].question}), wave=wave).failed == 1
    assert not folder.complete()
    kept = {path.name: path.stat().st_mtime_ns for path in shard_files(folder.shards)}
    # It fails once more, and nothing else is computed.
    engine = Counting({"fail_on": PROBLEMS[1].question})
    outcome = run(folder, engine=engine, wave=wave)
    assert (outcome.done, outcome.failed) == (2, 1)
    assert {handle.split("/")[1] for handle in engine.sampled} == {"sum-001"}
    engine = Counting()
    outcome = run(folder, engine=engine, wave=wave)
    assert (outcome.done, outcome.failed) == (3, 0)
    assert {handle.split("/")[1] for handle in engine.sampled} == {"sum-001"}
    assert folder.complete()
    now = {path.name: path.stat().st_mtime_ns for path in shard_files(folder.shards)}
    assert [name for name in kept if kept[name] != now[name]] == [shard_name("sum-001")]
    assert_same(whole, folder)


def test_a_stopped_second_try_leaves_the_problem_failed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "stopped")
    run(folder, engine=Counting({"fail_on": PROBLEMS[1].question}))
    with pytest.raises(Cancelled):
        run(folder, control=StopAfter(3))
    assert [record.state for record in records(folder).values()] == ["done", "failed", "done"]
    assert run(folder).done == 3


def test_a_failed_problem_whose_place_is_taken_is_left(folder: RunFolder) -> None:
    run(folder, SCREENED)
    first = next(name for name, record in records(folder).items() if record.state == "done")
    (question,) = (problem.question for problem in PROBLEMS if problem.problem == first)
    shutil.rmtree(folder.path)
    assert run(folder, SCREENED, engine=Counting({"fail_on": question})).failed == 1
    assert folder.complete()
    engine = Counting()
    outcome = run(folder, SCREENED, engine=engine)
    assert (outcome.done, outcome.failed, engine.sampled) == (3, 1, [])


def test_a_lost_worker_stops_the_campaign_and_it_can_go_on(whole: RunFolder, tmp_path: Path) -> None:
    class Lost(Counting):
        def rollouts(self, requests: Sequence[RolloutRequest], control: Control) -> list[Trace]:
            if "sum-001" in requests[0].handle:
                raise WorkFailed("the worker died; run the campaign again to go on")
            return super().rollouts(requests, control)

    broken = RunFolder(tmp_path / "broken")
    with pytest.raises(WorkFailed, match="the worker died"):
        run(broken, engine=Lost())
    assert list(records(broken)) == ["sum-000"]
    progress = broken.progress()
    assert progress is not None
    assert (broken.state(), progress.message) == ("stopped", "the worker died; run the campaign again to go on")
    run(broken)
    assert_same(whole, broken)


def test_out_of_memory_halves_the_batch_and_says_so(whole: RunFolder, tmp_path: Path) -> None:
    halved = RunFolder(tmp_path / "halved")
    engine = Counting({"memory_requests": 7})
    run(halved, engine=engine)
    assert_same(whole, halved)
    assert max(len(requests) for _, requests, _ in engine.asked[1:]) <= 12
    warnings = [entry["message"] for entry in halved.log_entries() if entry["kind"] == "warning"]
    assert len(warnings) == len(set(warnings)) >= 1
    assert all(one.startswith("Out of memory with ") for one in warnings), warnings


def test_memory_for_not_even_one_request_fails_the_problem(folder: RunFolder) -> None:
    class Tiny(Counting):
        def _need_memory(self, requests: int) -> None:
            super()._need_memory(requests + 1)

    outcome = run(folder, engine=Tiny({"memory_requests": 1}))
    assert (outcome.done, outcome.failed) == (0, 3)
    assert records(folder)["sum-000"].error == "the scripted engine has memory for 1 requests, not 2"


def test_another_process_can_ask_it_to_stop(folder: RunFolder) -> None:
    class Asker:
        def tick(self, tokens: int) -> None:
            folder.request_cancel()

    with pytest.raises(Cancelled, match="running it again goes on from there"):
        run(folder, engine=Counting({"delay": 0.05}), control=Asker())
    assert folder.state() == "cancelled"
    assert run(folder).done == 3


def test_a_disk_that_fails_stops_the_campaign(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwritable(record: ProblemRecord) -> Path:
        raise UserError("shards: cannot be written (Read-only file system)")

    monkeypatch.setattr(folder, "write", unwritable)
    with pytest.raises(WorkFailed, match="Read-only file system"):
        run(folder)
    assert folder.state() == "stopped"


def test_progress_counts_up_and_ends_with_the_truth(folder: RunFolder) -> None:
    heard: list[Progress] = []
    outcome = run(folder, SCREENED, Counting({"delay": 0.001}), on_progress=heard.append)
    last = heard[-1]
    assert last == folder.progress()
    assert (last.state, last.phase, last.fraction, last.seconds_left) == ("done", "", 1.0, 0.0)
    assert (last.done, last.screened_out, last.total, last.limit) == (3, outcome.screened_out, 3, 20)
    assert last.tokens == outcome.tokens
    assert last.tokens_per_second is not None
    assert last.tokens_per_second > 0
    running = heard[:-1]
    assert {one.phase for one in running} >= {"rollouts", "exact", "replica", "refeed"}
    for name in ("done", "screened_out", "tokens", "seconds"):
        values = [getattr(one, name) for one in running]
        assert values == sorted(values), name
    assert all(0 <= one.fraction <= 1 for one in running)
    # No estimate before a pass has been seen, then always one.
    known = [one.seconds_left is not None for one in running]
    assert known == sorted(known)
    assert not known[0]
    assert known[-1]
    assert all(one.seconds_left is None or math.isfinite(one.seconds_left) for one in running)


def test_the_log_holds_settings_phases_and_the_end(folder: RunFolder) -> None:
    run(folder)
    kinds = Counter(entry["kind"] for entry in folder.log_entries())
    assert kinds == {"start": 1, "phase": 3 * 4, "end": 1}
    start, phase = folder.log_entries()[:2]
    assert start["settings"]["name"] == "small"
    assert (phase["phase"], phase["problems"]) == ("rollouts", 1)
    assert phase["tokens"] > 0
    assert phase["memory_mb"] > 0


def test_a_problem_without_an_answer_cannot_be_screened(folder: RunFolder) -> None:
    problems = [Problem("bare", "What is 1 + 1?", None, "test"), *PROBLEMS]
    outcome = run(folder, SCREENED, problems=problems)
    assert (outcome.done, outcome.failed) == (3, 1)
    assert records(folder)["bare"].error == ("problem bare has no gold answer, so the screen cannot judge its rollouts")


def test_limits_beyond_the_context_are_refused(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="is 9000, but the model reads only 8192 tokens"):
        run(folder, campaign_settings(max_rollout_tokens=5000, max_continuation_tokens=4000))
    assert shard_files(folder.shards) == []


def test_a_prompt_too_long_fails_its_problem(folder: RunFolder) -> None:
    problems = [Problem("long", "x" * 8000, "1", "test"), *PROBLEMS]
    outcome = run(folder, problems=problems)
    assert (outcome.done, outcome.failed) == (2, 1)
    assert "and the model reads 8192" in (records(folder)["long"].error or "")
