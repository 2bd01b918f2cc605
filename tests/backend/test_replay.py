"""The passes over pivots: seeds, order, integers, readings, hashes."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from dataclasses import replace

import pytest

from backend.engines.base import Quiet, Sampling
from backend.errors import Cancelled, UserError
from backend.grading import grade
from backend.records import ARMS, PROBE, PROBE_TOKENS, Measurement, Pass
from backend.replay import ReplaySettings, continuation_seed, replay, rollout_seed
from tests.backend.play import MIXED, Counting, campaign_settings, comparable, measured, sampled, scripted

SETTINGS = ReplaySettings(2, Sampling(0.7, 0.95, 60))
EVERY: tuple[Pass, ...] = ("exact", "replica", "refeed", "refeed_replica", "shuffled", "serial")


def outputs(measurements: list[Measurement]) -> list[str | None]:
    return [one.output_sha256 for one in measurements]


def test_seeds_are_the_checksums_of_their_keys() -> None:
    assert rollout_seed("p1", 3) == zlib.crc32(b"p1|3") & 0x7FFFFFFF
    assert continuation_seed("p1", 3, 40, "alternative", 2) == zlib.crc32(b"p1|3|40|alternative|2") & 0x7FFFFFFF
    assert rollout_seed("p1", 3, 2**31 - 1) == (rollout_seed("p1", 3) - 1) % 2**31
    every = {continuation_seed("é|1", 0, 7, arm, i, 5) for arm in ARMS for i in range(-1, 16)}
    assert len(every) == 34
    assert all(0 <= seed < 2**31 for seed in every)


def test_settings_come_from_the_campaigns() -> None:
    settings = ReplaySettings.of(campaign_settings(k=8, seed=5, temperature=0.5, passes=["refeed", "exact"]))
    assert settings == ReplaySettings(8, Sampling(0.5, 0.95, 60), 5, ("refeed", "exact"))
    assert settings.ordered_passes() == ["exact", "refeed"]


def test_every_pass_is_one_call_of_its_own_and_no_pass_is_copied() -> None:
    engine = Counting()
    cuts = sampled(engine, MIXED)
    found = replay(engine, cuts, replace(SETTINGS, passes=EVERY), Quiet())
    asked = [(source, len(requests), serial) for source, requests, serial in engine.asked]
    width = len(cuts) * 2 * (2 + 1)
    assert len(cuts) == 4
    assert asked == [
        ("exact", width, False),
        ("exact", width, False),
        ("exact", width, False),
        ("exact", width, True),
        ("refeed", width, False),
        ("refeed", width, False),
    ]
    assert list(found) == list(EVERY)
    assert all(len(measurements) == len(cuts) for measurements in found.values())
    # The same requests in every pass; only `shuffled` has another order.
    exact, replica, shuffled, *rest = [requests for _, requests, _ in engine.asked]
    assert all(requests == exact for requests in (replica, *rest))
    assert shuffled != exact
    assert sorted(map(str, shuffled)) == sorted(map(str, exact))


def test_a_requests_shape() -> None:
    engine = Counting()
    cuts = sampled(engine, MIXED, 1, pivots=1)
    replay(engine, cuts, replace(SETTINGS, passes=("exact",), seed=7), Quiet())
    (_, requests, _), pivot = engine.asked[0], cuts[0].pivot
    tokens = {"actual": pivot.actual, "alternative": pivot.alternative}
    for request, (arm, i) in zip(requests, [(arm, i) for arm in ARMS for i in (0, 1, PROBE)], strict=True):
        assert (request.handle, request.position, request.token) == (cuts[0].handle, pivot.position, tokens[arm])
        assert request.seed == continuation_seed(MIXED.problem, 0, pivot.position, arm, i, 7)
        assert request.sampling == (Sampling(0.0, 1.0, PROBE_TOKENS) if i == PROBE else SETTINGS.sampling)


def test_without_noise_all_passes_agree_bit_for_bit() -> None:
    found = measured(passes=EVERY)
    exact = found["exact"]
    for pass_, measurements in found.items():
        assert outputs(measurements) == outputs(exact), pass_
        for one, reference in zip(measurements, exact, strict=True):
            assert one.pass_ == pass_
            assert one.numerator == reference.numerator
            assert one.seeds_sha256 == reference.seeds_sha256
            assert (one.probe_diverged, one.probe_delta) == ((None, None) if pass_ == "exact" else (False, 0.0))


def test_noise_in_one_pass_shows_in_that_pass_alone() -> None:
    found = measured({"noise": {"exact:2": 0.8}})
    clean = measured()
    assert outputs(found["exact"]) == outputs(clean["exact"])
    assert outputs(found["refeed"]) == outputs(clean["refeed"])
    assert outputs(found["replica"]) != outputs(clean["replica"])
    assert any(one.probe_delta for one in found["replica"])
    assert not any(one.probe_delta for one in found["refeed"])


def test_integers_are_recounted_from_the_continuations() -> None:
    engine = scripted({"noise": {"refeed": 0.8}})
    cuts = sampled(engine, MIXED, 4, pivots=5)
    found = replay(engine, cuts, replace(SETTINGS, k=4), Quiet())
    credits = set()
    for measurements in found.values():
        for cut, one in zip(cuts, measurements, strict=True):
            right = Counter()
            for record in one.continuations:
                if record.i == PROBE:
                    assert (record.answer, record.correct) == (None, None)
                    continue
                token = cut.pivot.actual if record.arm == "actual" else cut.pivot.alternative
                ids = [*cut.rollout.ids[: cut.pivot.position - len(cut.rollout.prompt_ids)], token, *record.ids]
                text = b"".join(engine.token_bytes([i for i in ids if i < 256])).decode(errors="replace")
                graded = grade(text, MIXED.gold)
                assert (record.answer, record.correct) == (graded.answer, graded.correct), text
                right[record.arm] += bool(record.correct)
            assert (one.k, one.n_actual, one.n_alternative) == (4, right["actual"], right["alternative"])
            assert one.numerator == right["actual"] - right["alternative"]
            credits.add(one.numerator)
    assert any(credit > 0 for credit in credits if credit is not None)
    assert any(credit < 0 for credit in credits if credit is not None)


def test_a_continuation_cut_short_without_an_answer_is_wrong_and_counted() -> None:
    engine = scripted()
    cuts = sampled(engine, MIXED)
    for one in replay(engine, cuts, replace(SETTINGS, sampling=Sampling(0.7, 0.95, 3)), Quiet())["exact"]:
        assert (one.n_actual, one.n_alternative, one.numerator) == (0, 0, 0)
        assert (one.truncated_actual, one.truncated_alternative) == (2, 2)
        assert all(len(record.ids) <= 3 for record in one.continuations if record.i != PROBE)


def test_without_a_gold_answer_the_rollouts_own_is_the_measure() -> None:
    engine = scripted()
    cuts = sampled(engine, MIXED)
    pasted = [replace(cut, gold=None) for cut in cuts]
    own = [replace(cut, gold=cut.rollout.answer) for cut in cuts]
    found, expected = (replay(engine, some, SETTINGS, Quiet())["exact"] for some in (pasted, own))
    assert [one.numerator for one in found] == [one.numerator for one in expected]
    nothing = [replace(cut, gold=None, rollout=replace(cut.rollout, answer=None)) for cut in cuts]
    for one in replay(engine, nothing, SETTINGS, Quiet())["exact"]:
        assert (one.n_actual, one.numerator) == (None, None)


def test_the_greedy_estimator_repeats_the_probe() -> None:
    engine = scripted()
    cuts = sampled(engine, MIXED, temperature=0.0)
    found = replay(engine, cuts, ReplaySettings(1, Sampling(0.0, 0.95, 60)), Quiet())
    for one in found["exact"]:
        assert one.numerator in {-1, 0, 1}
        by = {(record.arm, record.i): record.ids for record in one.continuations}
        for arm in ARMS:
            assert by[arm, 0][:PROBE_TOKENS] == by[arm, PROBE]


def test_readings_of_a_clean_replay() -> None:
    found = measured(passes=EVERY)
    for pass_, measurements in found.items():
        for one in measurements:
            verified = pass_ in {"exact", "replica"}
            assert one.requests == 2 * 3 + verified
            assert one.cache_misses == (None if pass_.startswith("refeed") else 0)
            assert one.warm_requests == (0 if pass_.startswith("refeed") else 2 * 3 + verified)
            assert (one.preemptions, one.provenance, one.run) == (0, "live", "campaign")
            assert (one.logprobs_equal, one.logprobs_max_difference) == ((True, 0.0) if verified else (None, None))
            assert one.started is not None
            assert one.started.endswith("+00:00")
            assert one.seconds is not None
            assert one.seconds > 0
            assert one.engine == scripted().info().digest()


def test_an_engine_that_cannot_say_is_not_guessed_for() -> None:
    class Silent(Counting):
        def continuations(self, *asked, **options):  # type: ignore[no-untyped-def]
            batch = super().continuations(*asked, **options)
            kept = [replace(one, expected_cached=None, cached=None) for one in batch.continuations]
            return replace(batch, continuations=kept, preemptions=None)

    engine = Silent()
    for measurements in replay(engine, sampled(engine, MIXED), SETTINGS, Quiet()).values():
        for one in measurements:
            assert (one.cache_misses, one.warm_requests if one.pass_ == "refeed" else None, one.preemptions) == (
                None,
            ) * 3


def test_a_lost_continuation_leaves_its_pivot_incomplete() -> None:
    found = measured({"dropped": {"exact:1": 1}})
    (lost, *others) = found["exact"]
    assert (lost.n_actual, lost.n_alternative, lost.numerator, lost.truncated_actual) == (None,) * 4
    assert len(lost.continuations) == 5
    assert all(one.numerator is not None for one in [*others, *found["replica"]])


def test_passes_are_delivered_in_order_in_the_callers_thread_before_the_end() -> None:
    engine, heard = Counting(), []
    cuts = sampled(engine, MIXED)

    def on_pass(pass_: Pass, measurements: list[Measurement]) -> None:
        heard.append((pass_, threading.get_ident(), len(engine.asked)))
        assert [one.pass_ for one in measurements] == [pass_] * len(cuts)

    started: list[Pass] = []
    replay(engine, cuts, SETTINGS, Quiet(), on_pass, started.append)
    assert started == ["exact", "replica", "refeed"]
    assert [pass_ for pass_, _, _ in heard] == started
    assert {thread for _, thread, _ in heard} == {threading.get_ident()}
    assert heard[0][2] < 3, "exact came only after the last pass had been asked for"


def test_it_stops_when_asked_to() -> None:
    class Stop:
        def tick(self, tokens: int) -> None:
            raise Cancelled("stop")

    engine = scripted()
    with pytest.raises(Cancelled):
        replay(engine, sampled(engine, MIXED), SETTINGS, Stop())


def test_a_rollout_without_state_is_refused() -> None:
    engine = scripted()
    cuts = sampled(engine, MIXED)
    engine.release([cuts[0].handle])
    with pytest.raises(UserError, match=f"holds no state of rollout `{cuts[0].handle}`"):
        replay(engine, cuts, SETTINGS, Quiet())


def test_no_cuts_measure_nothing() -> None:
    engine = Counting()
    assert replay(engine, [], SETTINGS, Quiet()) == {"exact": [], "replica": [], "refeed": []}
    assert engine.asked == []


def test_repeating_a_replay_gives_the_same_records() -> None:
    one, other = measured({"noise": {"refeed": 0.3}}), measured({"noise": {"refeed": 0.3}})
    for pass_ in one:
        assert [comparable(item) for item in one[pass_]] == [comparable(item) for item in other[pass_]]
