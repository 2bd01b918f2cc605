"""The panel of one picked token: the passes side by side, what they say together, and everything behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from backend import charts
from backend.checks import checks, readings_of
from backend.dashboard import sentence
from backend.records import ARMS, PROBE, Measurement, Pivot
from backend.tables import UNDEFINED, count
from backend.transcript import continuation_table, display_text, first_difference
from backend.transcript_view import UNKNOWN, continuation_rows, token_text
from backend.wording import engine_name, machine

EXPLAINED = {
    "exact": "resumed from the rollout's own KV state: the estimate",
    "replica": "the same once more, computed anew: the noise floor",
    "refeed": "the ids sent again as a fresh prompt: what published methods do",
    "refeed_replica": "refeed once more: the floor of refeed",
    "shuffled": "exact with its requests in another order and batch",
    "serial": "exact, one continuation at a time",
}
STATUS = {"pass": ":material/check_circle:", "fail": ":material/error:", "unknown": ":material/help:"}


def panel(
    pivot: Pivot,
    measured: Mapping[str, Measurement],
    expected: Sequence[str],
    texts: Mapping[int, bytes],
    *,
    key: str,
    batch_invariant: bool | None = None,
    engine: Mapping[str, Any] | None = None,
    running: str | None = None,
    fraction: float | None = None,
) -> None:
    """Draw the panel. `expected` are the passes to show, measured or not; `running` is the one at work right now.

    `engine` are the facts of the engine that measured, where they are on record.
    """
    heading(pivot, texts)
    columns = st.columns(len(expected), border=True)
    for column, name in zip(columns, expected, strict=True):
        with column:
            _card(name, measured.get(name), measured.get("exact"), running, fraction, key)
    st.markdown(sentence(verdict(measured)))
    said = [measured_by(engine or {}), provenance_sentence(measured["exact"].provenance) if "exact" in measured else ""]
    if any(said):
        st.caption(" ".join(part for part in said if part))
    if measured:
        _behind(pivot, measured, expected, texts, key, batch_invariant)


def heading(pivot: Pivot, texts: Mapping[int, bytes]) -> None:
    """Where the cut is, and what is put in whose place."""
    actual, other = token_text(pivot.actual, texts), token_text(pivot.alternative, texts)
    margin = "undefined" if pivot.margin is None else f"{pivot.margin:.3f} nats"
    st.markdown(f"##### Position {pivot.position}")
    st.text(f"actual {actual!r}   alternative {other!r}   margin {margin}")


def _card(
    name: str,
    one: Measurement | None,
    exact: Measurement | None,
    running: str | None,
    fraction: float | None,
    key: str,
) -> None:
    st.markdown(f"**{name}**", help=EXPLAINED.get(name))
    if one is None:
        if running == name:
            st.progress(fraction or 0.0, text="running")
        else:
            st.caption("waiting")
        return
    st.metric(f"Credit Â, {name}", _signed(one.numerator, one.k), label_visibility="collapsed")
    facts = _facts(one)
    if name != "exact" and exact is not None and one.numerator is not None and exact.numerator is not None:
        gap = one.numerator - exact.numerator
        facts.insert(0, f"{_signed(gap, one.k)} to exact" if gap else "the same as exact")
    st.caption(" · ".join(facts))


def _signed(numerator: int | None, k: int) -> str:
    if numerator is None:
        return "undefined"
    return f"{numerator / k:+.2f}".replace("-", "−") if numerator else "0.00"


def _facts(one: Measurement) -> list[str]:
    facts = []
    if one.n_actual is not None:
        facts.append(f"right: actual {one.n_actual} of {one.k}, alternative {one.n_alternative} of {one.k}")
    elif one.numerator is not None:
        facts.append(f"Â = {count(one.numerator)}/{one.k}; counts an arm are not on record")
    else:
        facts.append("incomplete: a continuation is missing")
    truncated = (one.truncated_actual or 0) + (one.truncated_alternative or 0)
    if truncated:
        facts.append(f"{truncated} cut at the limit without an answer")
    if one.seconds is not None:
        facts.append(f"{one.seconds:.1f} s")
    return facts


def verdict(measured: Mapping[str, Measurement]) -> str:
    """What the passes say together, in words that promise no more than k continuations can hold."""
    found = {name: one.numerator for name, one in measured.items() if one.numerator is not None}
    if "exact" not in found:
        return "Nothing is measured here yet" if not measured else "The exact pass is incomplete, so nothing follows"
    if "refeed" not in found:
        return "The exact pass is in; refeed has not arrived yet"
    refeed = _disagreement(found["exact"], found["refeed"])
    if "replica" not in found:
        return f"Refeed {refeed}; without a replica there is no floor to hold that against"
    replica = _disagreement(found["exact"], found["replica"])
    return (
        f"Refeed {refeed}, the identical replica {replica}. "
        "One token is one draw: how often either happens is on the campaign's page"
    )


def measured_by(engine: Mapping[str, Any]) -> str:
    """Which engine measured, as a Markdown sentence; empty without facts."""
    if not engine.get("engine"):
        return ""
    facts = [engine_name(engine), engine.get("dtype"), machine(engine)]
    return sentence(f"Measured by {', '.join(fact for fact in facts if fact)}")


def provenance_sentence(provenance: str | None) -> str:
    """What a provenance means, as Markdown; empty where it is not on record."""
    if not provenance:
        return ""
    off = provenance.removeprefix("rebuilt, off by ")
    if off != provenance:
        factor = math.exp(min(float(off), 50.0))
        return (
            f"**Rebuilt, off by {off} nats:** this rollout was sampled by another engine, machine or setting. "
            "Its tokens were decoded here again one by one, and the log probabilities (of the five likeliest "
            f"tokens at each place) differ from the recorded ones by up to {off} nats, a factor of {factor:.3g} "
            "in a probability. So exact resumes this engine's own state of the same text, not the state that wrote it; "
            "what was recorded stays beside it."
        )
    return {
        "live": "**Live:** exact resumed the very state that the engine wrote while it sampled this rollout.",
        "rebuilt, verified": (
            "**Rebuilt, verified:** its tokens were decoded here again one by one, and every log probability "
            "came out bit for bit as recorded, so exact resumed the state that wrote this rollout."
        ),
        "rebuilt": (
            "**Rebuilt:** its tokens were decoded here again one by one; "
            "the record holds no log probabilities to compare with."
        ),
    }.get(provenance, sentence(provenance))


def _disagreement(exact: int, other: int) -> str:
    if exact == other:
        return "agrees with exact"
    if (exact > 0) == (other > 0) and (exact < 0) == (other < 0):
        return "gives another size but the same sign"
    return "crosses zero" if exact * other == 0 else "reverses the sign"


def _behind(
    pivot: Pivot,
    measured: Mapping[str, Measurement],
    expected: Sequence[str],
    texts: Mapping[int, bytes],
    key: str,
    batch_invariant: bool | None,
) -> None:
    there = [name for name in expected if name in measured]
    # Only the open tab is drawn: the panel has to be there at once, and a figure takes a tenth of a second.
    names = ["Continuations", "Logprob traces", "Instrument readings", "Checks"]
    outputs, traces, readings, checked = st.tabs(names, key=f"{key}-tabs", on_change="rerun")
    if outputs.open:
        with outputs:
            rows = continuation_rows(measured.values(), pivot, texts)
            if rows:
                continuation_table(rows, passes=there, key=f"{key}-continuations")
            else:
                st.info(
                    "The texts of these continuations were left out of the bundle; replay the token to see your own."
                )
    if traces.open:
        with traces:
            _traces(pivot, measured, there, texts, key)
    if readings.open:
        with readings:
            st.dataframe(
                reading_rows(measured, there),
                hide_index=True,
                width="stretch",
                placeholder=UNDEFINED,
                key=f"{key}-readings",
                alt="Instrument readings by pass",
            )
    if checked.open:
        with checked:
            for check in checks(readings_of(list(measured.values()), batch_invariant)):
                st.markdown(f"{STATUS[check.status]} **{check.name}**: {check.status}. {sentence(check.detail)}")


def _traces(
    pivot: Pivot, measured: Mapping[str, Measurement], there: Sequence[str], texts: Mapping[int, bytes], key: str
) -> None:
    first = next(iter(measured.values()))
    samples = [PROBE, *range(first.k)]
    if not first.continuations:
        st.info("No continuations are on record here, so there are no traces.")
        return
    left, right = st.columns(2)
    arm = left.selectbox("Arm", ARMS, key=f"{key}-arm")
    sample = right.selectbox(
        "Continuation",
        samples,
        format_func=lambda i: "greedy probe" if i == PROBE else f"sample {i + 1}",
        key=f"{key}-sample",
    )
    found = {
        name: next((c for c in measured[name].continuations if c.arm == arm and c.i == sample), None) for name in there
    }
    exact = found.get("exact")
    if exact is None:
        st.info("Exact has no such continuation on record.")
        return
    gaps = [first_difference(exact.ids, c.ids) for name, c in found.items() if c is not None and name != "exact"]
    figure = charts.logprob_trace(
        {name: c.logprobs for name, c in found.items() if c is not None},
        tokens=display_text([texts.get(token, UNKNOWN.encode()) for token in exact.ids]),
        difference=min((gap for gap in gaps if gap is not None), default=None),
    )
    st.plotly_chart(figure, width="stretch", key=f"{key}-trace")
    st.caption("Raw log probability of each token along the continuation. Lines that part show where the passes do.")


def reading_rows(measured: Mapping[str, Measurement], there: Sequence[str]) -> list[dict[str, object]]:
    """The instrument readings as a table, a row a pass; undefined is empty."""
    return [
        {
            "pass": name,
            "provenance": one.provenance,
            "requests": one.requests,
            "cache misses": one.cache_misses,
            "warm requests": one.warm_requests,
            "preemptions": one.preemptions,
            "logprobs equal": one.logprobs_equal,
            "largest difference (nats)": one.logprobs_max_difference,
            "probe diverged": one.probe_diverged,
            "probe Δ (nats)": one.probe_delta,
            "started": one.started,
            "seconds": one.seconds,
            "output": (one.output_sha256 or "")[:12] or None,
        }
        for name, one in ((name, measured[name]) for name in there)
    ]
