"""Each check fails for its own fault, alone; what was not looked at is unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from backend.checks import CHECK_NAMES, Reading, as_documents, channel, checks, readings_of
from backend.records import Measurement, Pass
from tests.backend.play import measured

Found = dict[Pass, list[Measurement]]

CLEAN = Reading("exact", True, 0, 0, 0, True, 0.0, "facts", True, None, None)
OTHER = Reading("refeed", True, None, 0, 0, None, None, "facts", True, True, "same")


def readings(found: Found, batch_invariant: bool | None) -> list[Reading]:
    """The readings of what was measured, pivot by pivot."""
    return [one for pivot in zip(*found.values(), strict=True) for one in readings_of(pivot, batch_invariant)]


def statuses(found: Found, batch_invariant: bool | None = False) -> dict[str, str]:
    return {one.name: one.status for one in checks(readings(found, batch_invariant))}


def with_seeds_of_another_replay(found: Found) -> Found:
    changed = [replace(one, seeds_sha256="other") for one in found["refeed"]]
    return {**found, "refeed": changed}


def as_it_is(found: Found) -> Found:
    return found


FAULTS: list[tuple[str, dict[str, Any], bool, Callable[[Found], Found]]] = [
    ("rows", {"dropped": {"refeed": 1}}, False, as_it_is),
    ("exact_cache_hits", {"fewer_cached": {"exact:2": 1}}, False, as_it_is),
    ("exact_logprobs_bitwise", {"altered_logprob": 3}, False, as_it_is),
    ("refeed_cold", {"warm": {"refeed": 16}}, False, as_it_is),
    ("no_preemption", {"preemptions": {"refeed": 1}}, False, as_it_is),
    ("same_seeds", {}, False, with_seeds_of_another_replay),
    ("same_settings", {"facts_change": 3}, False, as_it_is),
    ("batch_invariant_control", {"noise": {"refeed": 0.8}}, True, as_it_is),
]


def test_all_checks_are_there_in_the_designs_order() -> None:
    assert tuple(name for name, *_ in FAULTS) == CHECK_NAMES
    assert [one.name for one in checks([])] == list(CHECK_NAMES)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_clean_replay_passes_all_that_apply(batch_invariant: bool) -> None:
    found = statuses(measured(batch_invariant=batch_invariant), batch_invariant)
    control = "pass" if batch_invariant else "unknown"
    assert found == dict.fromkeys(CHECK_NAMES, "pass") | {"batch_invariant_control": control}


@pytest.mark.parametrize("number", [1, 20, 40])
def test_a_recorded_token_that_comes_out_otherwise_fails_the_bitwise_check_alone(number: int) -> None:
    """In whichever request and resumed pass it happens: the probe's own verification would not see it."""
    found = measured({"altered_tail": number}, passes=("exact", "replica", "shuffled", "refeed"))
    failed = {one.name: one.detail for one in checks(readings(found, False)) if one.status == "fail"}
    assert list(failed) == ["exact_logprobs_bitwise"]
    assert "1 of " in failed["exact_logprobs_bitwise"]
    assert "2.22e-16 nats" in failed["exact_logprobs_bitwise"]


@pytest.mark.parametrize(("name", "options", "batch_invariant", "change"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_a_fault_fails_its_own_check_alone(
    name: str, options: dict[str, Any], batch_invariant: bool, change: Callable[[Found], Found]
) -> None:
    found = change(measured(options, batch_invariant=batch_invariant))
    failed = [one for one, status in statuses(found, batch_invariant).items() if status == "fail"]
    assert failed == [name], checks(readings(found, batch_invariant))


def test_noise_between_passes_is_a_finding_and_no_failure_outside_the_mode() -> None:
    found = statuses(measured({"noise": {"refeed": 0.8}}))
    assert "fail" not in found.values()
    assert found["batch_invariant_control"] == "unknown"


def test_the_control_says_where_it_breaks_first() -> None:
    found = measured({"noise": {"refeed": 0.8}}, batch_invariant=True)
    (control,) = [one for one in checks(readings(found, True)) if one.name == "batch_invariant_control"]
    assert control.detail == (
        "4 of 8 measurements in batch-invariant mode differ from exact, first on tokens (refeed 4)."
    )


def test_the_channels_are_told_apart() -> None:
    (exact, *_), (other, *_) = (measured()[pass_] for pass_ in ("exact", "refeed"))
    sampled, probe = other.continuations[0], other.continuations[2]
    assert (sampled.i, probe.i) == (0, -1)

    def changed(index: int, **fields: Any) -> Measurement:
        records = list(other.continuations)
        records[index] = replace(records[index], **fields)
        return replace(other, output_sha256="changed", continuations=records)

    assert channel(exact, other) == "same"
    assert channel(exact, changed(0, ids=[*sampled.ids[:-1], 1])) == "tokens"
    assert channel(exact, changed(0, logprobs=[*sampled.logprobs[:-1], -9.0])) == "logprobs"
    assert channel(exact, changed(2, logprobs=[*probe.logprobs[:-1], -9.0])) == "probe"
    assert channel(exact, replace(other, numerator=1 - (exact.numerator or 0))) == "credit"
    assert channel(exact, replace(other, output_sha256="changed", continuations=[])) == "outputs"
    assert channel(exact, replace(other, output_sha256="changed", continuations=[], probe_delta=0.1)) == "probe"
    assert channel(exact, replace(other, output_sha256=None)) is None


def test_no_rows_are_unknown_never_passed() -> None:
    assert {one.status for one in checks([])} == {"unknown"}


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        ("exact_cache_hits", {"cache_misses": None}),
        ("exact_logprobs_bitwise", {"logprobs_equal": None}),
        ("refeed_cold", {"warm_requests": None}),
        ("no_preemption", {"preemptions": None}),
        ("same_seeds", {"same_seeds": None}),
        ("same_settings", {"engine": None}),
        ("batch_invariant_control", {"channel": None}),
    ],
)
def test_what_was_not_read_is_unknown(name: str, unread: dict[str, Any]) -> None:
    base = [CLEAN, OTHER]
    assert {one.status for one in checks(base)} == {"pass"}
    found = {one.name: one for one in checks([*base, *(replace(one, **unread) for one in base)])}
    assert [one for one, check in found.items() if check.status == "unknown"] == [name]
    assert "do not say" in found[name].detail


def test_checks_about_a_source_without_rows_are_unknown() -> None:
    alone = {one.name: one.status for one in checks([CLEAN])}
    assert [name for name, status in alone.items() if status == "unknown"] == [
        "refeed_cold",
        "same_seeds",
        "batch_invariant_control",
    ]


def test_passes_must_cover_the_same_pivots() -> None:
    rows = checks([CLEAN, CLEAN, OTHER])[0]
    assert (rows.status, rows.detail) == ("fail", "The passes do not cover the same pivots: exact 2, refeed 1.")


def test_grouped_readings_count_as_their_rows() -> None:
    grouped = [replace(CLEAN, rows=500), replace(OTHER, rows=499), replace(OTHER, warm_requests=3)]
    found = {one.name: one for one in checks(grouped)}
    assert found["rows"].detail == "1000 measurements, complete, in 2 passes."
    assert found["refeed_cold"].detail == "1 of 500 re-fed measurements had a request that read cached tokens."


def test_runs_are_compared_with_their_own_exact_pass() -> None:
    (exact, *_), (other, *_) = (measured()[pass_] for pass_ in ("exact", "refeed"))
    later = [replace(one, run="later", seeds_sha256="later") for one in (exact, other)]
    assert [one.same_seeds for one in readings_of([exact, other, *later], False)] == [None, True, None, True]


def test_documents_are_plain() -> None:
    document = as_documents(checks([CLEAN]))[0]
    assert document == {"name": "rows", "status": "pass", "detail": "1 measurements, complete, in 1 passes."}
