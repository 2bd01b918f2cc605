"""Work on demand over the scripted engine and a real store: sampling, replaying any token, measuring a rollout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from play import MIXED, campaign_settings

from backend.engines.base import Control, Quiet, Rebuilt
from backend.engines.scripted_engine import ScriptedEngine
from backend.engines.scripted_model import SPECIAL_IDS
from backend.errors import UserError
from backend.exporters import export
from backend.importers.parquet import Bundle
from backend.live import Bench, Place, engine_spec, replay_settings
from backend.pivots import choices_at, pivot_at
from backend.problems import pasted
from backend.rebuilding import rebuilt_until
from backend.records import STANDARD_PASSES, Measurement, Pivot, Trace
from backend.report import report
from backend.settings import CampaignSettings
from backend.shards import from_table
from backend.store import Store
from backend.transcript_view import runs_of

SETTINGS: CampaignSettings = campaign_settings(name="live")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "live.duckdb") as opened:
        yield opened


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(ScriptedEngine("toy", "float32", {"noise": {"refeed": 0.5}}), store)


def place(rollout: int = 0) -> Place:
    return Place(SETTINGS.campaign, MIXED.problem, rollout)


def test_sampling_adds_rollouts_and_never_the_same_twice(bench: Bench, store: Store) -> None:
    assert bench.sample(SETTINGS, MIXED, 2, Quiet()) == [0, 1]
    assert bench.sample(SETTINGS, MIXED, 3, Quiet()) == [2, 3, 4]
    (row,) = store.campaigns()
    assert (row["state"], row["rollouts"], row["origin"]) == ("live", 5, "live")
    rollouts = [store.rollout(SETTINGS.campaign, MIXED.problem, i) for i in range(5)]
    assert len({tuple(rollout.ids) for rollout in rollouts}) > 1
    assert {rollout.correct for rollout in rollouts} <= {True, False}


def test_any_token_is_replayed_and_stored_as_a_run_of_its_own(bench: Bench, store: Store) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    position = clickable(store)[0]
    seen: list[str] = []

    def on_pass(pass_: str, found: list[Measurement], texts: object) -> None:
        seen.append(pass_)

    document = bench.replay(place(), position, Quiet(), k=3, max_continuation_tokens=20, on_pass=on_pass)
    assert seen == list(STANDARD_PASSES) == list(document["passes"])
    assert {check["name"]: check["status"] for check in document["checks"]}["exact_logprobs_bitwise"] == "pass"
    assert document["passes"]["exact"]["provenance"] == "live"
    again = bench.replay(place(), position, Quiet(), k=3, max_continuation_tokens=20)
    assert again["run"] != document["run"]
    assert store.runs_at(*place_of(place()), position) == {document["run"], again["run"]}
    assert store.runs_at(*place_of(place()), position + 1) == set()
    for name in STANDARD_PASSES:
        assert again["passes"][name]["output_sha256"] == document["passes"][name]["output_sha256"]
    (pivot,) = store.rollout(*place_of(place())).pivots
    assert not pivot.planned
    assert len(pivot.measurements) == 6
    assert {len(one.continuations) for one in pivot.measurements} == {8}


def test_a_second_click_pays_no_rollout_and_no_rebuild_again(bench: Bench, store: Store) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    calls: list[str] = []
    engine = bench.engine
    for name in ("rollouts", "rebuild"):
        original = getattr(engine, name)
        setattr(engine, name, lambda *args, _name=name, _call=original: (calls.append(_name), _call(*args))[1])
    for position in clickable(store)[:2]:
        bench.replay(place(), position, Quiet(), k=1, max_continuation_tokens=5)
    assert calls == []


def test_a_state_that_is_gone_is_rebuilt_and_says_so(bench: Bench, store: Store) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    position = clickable(store)[0]
    bench.engine.release([place().handle])
    document = bench.replay(place(), position, Quiet(), k=1, max_continuation_tokens=5)
    assert document["passes"]["exact"]["provenance"] == "rebuilt, verified"
    other = Bench(ScriptedEngine("toy", "float32", {"noise": {"rebuild": 0.5}}), store)
    document = other.replay(place(), position, Quiet(), k=1, max_continuation_tokens=5)
    assert document["passes"]["exact"]["provenance"].startswith("rebuilt, off by ")


def test_a_state_is_rebuilt_as_far_as_it_is_needed(bench: Bench, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    rollout, positions = store.rollout(*place_of(place())), clickable(store)
    early, late = positions[0], positions[-1]
    first = len(rollout.prompt_ids)
    assert 2 * (early - first + 1) < late - first + 1 < len(rollout.ids)

    def outcome(position: int) -> str:
        found = bench.replay(place(), position, Quiet(), k=2, max_continuation_tokens=20)["passes"]
        return str(found["exact"]["output_sha256"])

    live = {position: outcome(position) for position in (early, late)}
    assert rebuilt_until(rollout, early) == len(rollout.ids)  # a short one is brought back whole
    monkeypatch.setattr("backend.rebuilding.REBUILT_AT_LEAST", 1)
    decoded: list[int] = []
    rebuild = bench.engine.rebuild

    def watched(traces: list[Trace], control: Control) -> list[Rebuilt]:
        decoded.extend(len(trace.ids) for trace in traces)
        return rebuild(traces, control)

    monkeypatch.setattr(bench.engine, "rebuild", watched)
    bench.engine.release([place().handle])
    assert outcome(early) == live[early]
    assert outcome(late) == live[late]  # the state has to grow
    assert outcome(early) == live[early]
    assert decoded == [2 * (early - first + 1), rebuilt_until(rollout, late)]
    assert bench.provenance[place().handle] == "rebuilt, verified"


def test_what_another_engine_recorded_stays_beside_a_replay(bench: Bench, store: Store) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    bench.measure(place(), Quiet())
    (recorded, *_) = store.rollout(*place_of(place())).pivots
    told = report(store, [SETTINGS.campaign])
    mine = Bench(ScriptedEngine("toy", "bfloat16", {"noise": {"rebuild": 0.5, "refeed": 0.1}}), store)
    document = mine.replay(place(), recorded.position, Quiet(), k=2, max_continuation_tokens=20)
    pivot = next(p for p in store.rollout(*place_of(place())).pivots if p.position == recorded.position)
    assert [one for one in pivot.measurements if one.run == "campaign"] == recorded.measurements
    replayed = [one for one in pivot.measurements if one.run == document["run"]]
    assert {one.provenance for one in replayed} == {document["passes"]["exact"]["provenance"]}
    assert str(replayed[0].provenance).startswith("rebuilt, off by ")
    engines = store.engines(SETTINGS.campaign)
    assert {one.engine for one in replayed} == {mine.engine.info().digest()} <= set(engines)
    assert {one.engine for one in recorded.measurements} == {bench.engine.info().digest()}
    assert report(store, [SETTINGS.campaign]) == told


def test_a_token_of_the_readers_choice_is_put_in_its_place(bench: Bench, store: Store, tmp_path: Path) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    where = place_of(place())
    position = clickable(store)[0]
    rollout = store.rollout(*where)
    (own, _), (other, _), *_ = choices_at(rollout, position, special_ids=SPECIAL_IDS)
    first = bench.replay(place(), position, Quiet(), k=2, max_continuation_tokens=20)
    seen: list[int | None] = []
    second = bench.replay(
        place(),
        position,
        Quiet(),
        k=2,
        max_continuation_tokens=20,
        alternative=other,
        on_pass=lambda _pass, found, _texts: seen.append(found[0].alternative),
    )
    again = bench.replay(place(), position, Quiet(), k=2, max_continuation_tokens=20, alternative=own)
    assert (first["alternative"], second["alternative"], again["alternative"]) == (own, other, own)
    assert seen == [other] * 3
    hashes = [one["passes"]["exact"]["output_sha256"] for one in (first, second, again)]
    assert hashes[0] == hashes[2] != hashes[1]

    def stored(pivot: Pivot) -> dict[str, set[int | None]]:
        return {run.run: {one.alternative for one in run.measurements} for run in runs_of(pivot)}

    (pivot,) = store.rollout(*where).pivots
    expected = {first["run"]: {None}, second["run"]: {other}, again["run"]: {None}}
    assert (pivot.alternative, stored(pivot)) == (own, expected)
    # The same came out of both arms' actual token, and an export brings it all along.
    arms = [
        [c.ids for m in pivot.measurements if m.run == one["run"] for c in m.continuations if c.arm == "actual"]
        for one in (first, second)
    ]
    assert arms[0] == arms[1]
    (file,) = export(store, SETTINGS.campaign, "parquet", tmp_path)
    with Bundle(file) as bundle:
        (record,) = from_table(next(bundle.tables()), "the export")
    assert stored(record.rollouts[0].pivots[0]) == expected
    assert other in {token.id for token in record.tokens}


def test_the_pivots_of_a_rollout_are_measured_once(bench: Bench, store: Store) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    told: list[tuple[int, int]] = []
    measured = bench.measure(place(), Quiet(), on_found=lambda done, total: told.append((done, total)))
    assert measured > 0
    assert told[0] == (0, measured)
    assert told[-1] == (measured, measured)
    assert bench.measure(place(), Quiet()) == 0
    frame = store.credits([SETTINGS.campaign])
    assert len(frame) == measured
    assert frame["complete"].all()


def test_a_clicked_pivot_counts_once_it_is_planned(bench: Bench, store: Store) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    rollout = store.rollout(*place_of(place()))
    planned = bench.missing_pivots(SETTINGS, rollout)[0].position
    bench.replay(place(), planned, Quiet(), k=1, max_continuation_tokens=5)
    assert len(store.credits([SETTINGS.campaign])) == 0
    bench.measure(place(), Quiet())
    pivot = next(p for p in store.rollout(*place_of(place())).pivots if p.position == planned)
    assert pivot.planned
    assert {one.run == "campaign" for one in pivot.measurements} == {True, False}


def test_a_pasted_question_is_graded_against_its_own_rollout(bench: Bench, store: Store) -> None:
    problem = pasted("What is 8 + 31?")
    bench.sample(SETTINGS, problem, 1, Quiet())
    spot = Place(SETTINGS.campaign, problem.problem, 0)
    rollout = store.rollout(*place_of(spot))
    assert rollout.correct is None
    document = bench.replay(spot, len(rollout.prompt_ids) + 2, Quiet(), k=2, max_continuation_tokens=60)
    assert document["passes"]["exact"]["n_actual"] is not None


def test_what_cannot_be_replayed_is_said_in_a_sentence(bench: Bench, store: Store) -> None:
    bench.sample(SETTINGS, MIXED, 1, Quiet())
    rollout = store.rollout(*place_of(place()))
    end = len(rollout.prompt_ids) + len(rollout.ids)
    with pytest.raises(UserError, match="lies in the prompt"):
        bench.replay(place(), 0, Quiet())
    with pytest.raises(UserError, match="does not exist"):
        bench.replay(place(), end, Quiet())
    with pytest.raises(UserError, match="`exact` is the estimate"):
        bench.replay(place(), end - 3, Quiet(), passes=["refeed"])
    with pytest.raises(UserError, match="no rollout 7"):
        bench.replay(place(7), end - 3, Quiet())


def test_an_import_that_names_no_model_cannot_be_loaded() -> None:
    with pytest.raises(UserError, match="does not say which model"):
        engine_spec({"model": None, "engine": None, "name": "k8", "dtype": None})
    with pytest.raises(UserError, match="models fetch Qwen/Qwen2"):
        engine_spec({"model": "Qwen/Qwen2.5-7B-Instruct", "engine": None, "name": "k8", "dtype": None})


def test_settings_of_an_import_fall_back_to_the_method() -> None:
    settings = replay_settings({"k": 8, "temperature": 0.6, "stated": {"prereg": "x"}})
    assert (settings.k, settings.sampling.temperature, settings.sampling.max_tokens) == (8, 0.6, 400)


def place_of(spot: Place) -> tuple[str, str, int]:
    return spot.campaign, spot.problem, spot.rollout


def clickable(store: Store) -> list[int]:
    """The positions of the first rollout that can be cut."""
    rollout = store.rollout(*place_of(place()))
    first = len(rollout.prompt_ids)
    found = []
    for position in range(first, first + len(rollout.ids)):
        with suppress(UserError):
            found.append(pivot_at(rollout, position, special_ids=SPECIAL_IDS).position)
    return found
