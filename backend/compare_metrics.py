"""The campaigns of a comparison as tables: their metrics side by side, and what was set differently."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.pooling import differences as setting_differences
from backend.report_figures import at_half
from backend.sides import Comparison
from backend.store import Store
from backend.tables import UNDEFINED, Column, Table, count, decimal, interval, number, percent, points

Form = Callable[[Any], str]


def _nested(*path: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(document: Mapping[str, Any]) -> Any:
        value: Any = document
        for key in path:
            value = None if value is None else value.get(key)
        return value

    return read


def _half(*path: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(document: Mapping[str, Any]) -> Any:
        row = at_half(document["jaccard"])
        return None if row is None else _nested(*path)(row)

    return read


def _checks(status: str) -> Callable[[Mapping[str, Any]], int]:
    return lambda document: sum(check["status"] == status for check in document["checks"])


_INTERVALS = {"percent": "percent95", "points": "points95", "decimal": "decimal95"}

# Section, key, label, kind, value, interval, help.
_METRICS: tuple[tuple[str, str, str, Any, Callable[[Mapping[str, Any]], Any], Any, str | None], ...] = (
    ("Measured", "model", "model", "text", _nested("model"), None, None),
    ("Measured", "engine", "engine", "text", _nested("engine"), None, None),
    ("Measured", "dtype", "dtype", "text", _nested("dtype"), None, None),
    ("Measured", "k", "k", "count", _nested("k"), None, "Continuations an arm"),
    ("Measured", "pivots", "pivots", "count", _nested("pivots"), None, None),
    ("Measured", "incomplete", "incomplete", "count", _nested("incomplete"), None, "Left out of every rate"),
    ("Measured", "eligible", "eligible", "count", _nested("eligible"), None, "Exact, replica or refeed has Â ≠ 0"),
    ("Measured", "clusters", "problems", "count", _nested("clusters"), None, "Problems with an eligible pivot"),
    (
        "Flips",
        "refeed",
        "refeed",
        "percent",
        _nested("refeed", "rate"),
        _nested("refeed", "ci95"),
        "Of eligible pivots",
    ),
    (
        "Flips",
        "replica",
        "floor",
        "percent",
        _nested("replica", "rate"),
        _nested("replica", "ci95"),
        "What an identical measurement flips",
    ),
    ("Flips", "zero", "refeed zero crossings", "count", _nested("refeed", "zero_crossings"), None, "One side is 0"),
    (
        "Flips",
        "reversals",
        "refeed polarity reversals",
        "count",
        _nested("refeed", "polarity_reversals"),
        None,
        "Strictly opposite signs",
    ),
    ("Flips", "floor_zero", "floor zero crossings", "count", _nested("replica", "zero_crossings"), None, None),
    ("Flips", "floor_reversals", "floor reversals", "count", _nested("replica", "polarity_reversals"), None, None),
    (
        "Excess",
        "excess",
        "excess over the floor",
        "points",
        _nested("excess_pp"),
        _nested("excess_pp_ci95"),
        "Refeed less its floor",
    ),
    (
        "Excess",
        "conditioned",
        "excess given exact ≠ 0",
        "points",
        _nested("conditioned_on_exact", "excess_pp"),
        _nested("conditioned_on_exact", "excess_pp_ci95"),
        "Refeed cannot create its own eligibility there",
    ),
    ("Excess", "t", "t, equal weight", "number", _nested("t_equal_weight"), None, "The study's"),
    ("Excess", "t_cr1", "t, CR1", "number", _nested("t_cr1"), None, None),
    ("Excess", "t_jackknife", "t, jackknife", "number", _nested("t_jackknife"), None, None),
    ("Excess", "p", "sign-flip p", "number", _nested("sign_flip_p"), None, None),
    (
        "Excess",
        "bias",
        "bias, refeed − exact",
        "decimal",
        _nested("bias", "mean"),
        _nested("bias", "ci95"),
        "Units of Â",
    ),
    (
        "Selection",
        "jaccard",
        "refeed–exact, |Â| ≥ 0.5",
        "decimal",
        _half("refeed", "jaccard"),
        _half("refeed", "ci95"),
        "Jaccard index of the selected pivots, at 0.5 or the next threshold that k allows",
    ),
    (
        "Selection",
        "ceiling",
        "ceiling, |Â| ≥ 0.5",
        "decimal",
        _half("replica", "jaccard"),
        _half("replica", "ci95"),
        "What an identical measurement agrees on",
    ),
    ("Selection", "chance", "chance, |Â| ≥ 0.5", "decimal", _half("refeed", "chance"), None, "Two random sets"),
    (
        "Probe",
        "diverged",
        "refeed diverged",
        "percent",
        _nested("probe", "refeed", "divergence"),
        None,
        "32 greedy tokens",
    ),
    ("Probe", "floor_diverged", "floor diverged", "percent", _nested("probe", "replica", "divergence"), None, None),
    ("Probe", "bit_exact", "refeed bit-exact", "percent", _nested("probe", "refeed", "bit_exact"), None, None),
    ("Probe", "floor_bit_exact", "floor bit-exact", "percent", _nested("probe", "replica", "bit_exact"), None, None),
    ("Probe", "p90", "refeed 90th pct. |Δ|, nats", "number", _nested("probe", "refeed", "p90_delta"), None, None),
    ("Checks", "passed", "passed", "count", _checks("pass"), None, None),
    ("Checks", "failed", "failed", "count", _checks("fail"), None, None),
    ("Checks", "unknown", "unknown", "count", _checks("unknown"), None, "What could not be looked at is no pass"),
)
_FORMS: Mapping[str, Form] = {
    "text": lambda value: UNDEFINED if value is None else str(value),
    "count": count,
    "percent": percent,
    "points": points,
    "decimal": decimal,
    "number": number,
}


def metrics_table(comparison: Comparison, documents: Sequence[Mapping[str, Any]]) -> Table:
    """One row a campaign, a typed column a metric: what a download holds."""
    columns = [Column("name", "campaign")]
    for _, key, label, kind, _, ci95, help in _METRICS:
        columns.append(Column(key, label, kind, help))
        if ci95 is not None:
            columns.append(Column(f"{key}_ci95", f"{label}, 95 %", _INTERVALS[kind]))  # type: ignore[arg-type]
    rows = []
    for name, document in zip(comparison.names, documents, strict=True):
        row = {"name": name}
        for _, key, _, _, value, ci95, _ in _METRICS:
            row[key] = value(document)
            if ci95 is not None:
                row[f"{key}_ci95"] = ci95(document)
        rows.append(row)
    return Table("metrics", "Metrics", columns, rows)


def metrics_beside(comparison: Comparison, documents: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One row a metric, a column a campaign, as people read them: the value and its 95 % interval."""
    found = []
    for section, _, label, kind, value, ci95, _ in _METRICS:
        form = _FORMS[kind]
        cells = []
        for document in documents:
            cell = form(value(document))
            sure = ci95(document) if ci95 is not None else None
            cells.append(f"{cell}  ({interval(sure, form)})" if sure is not None else cell)
        if any(cell != UNDEFINED for cell in cells):
            found.append({"": section, "metric": label, **dict(zip(columns_of(comparison), cells, strict=True))})
    previous = None
    for row in found:
        previous, row[""] = row[""], "" if row[""] == previous else row[""]
    return found


def columns_of(comparison: Comparison) -> list[str]:
    """The campaigns' names as headings; two of one name are told apart by their ids."""
    names = comparison.names
    return [
        name if names.count(name) == 1 else f"{name} ({row['campaign'][:6]})"
        for name, row in zip(names, comparison.rows, strict=True)
    ]


def settings_table(store: Store, comparison: Comparison) -> Table:
    """What is not the same in all campaigns, a row a fact: nothing else can explain a difference."""
    names = columns_of(comparison)
    facts: dict[str, dict[str, Any]] = {}
    for place, other in enumerate(comparison.campaigns[1:], start=1):
        for fact, mine, theirs in setting_differences(store, comparison.campaigns[0], other):
            facts.setdefault(fact, {names[0]: mine})[names[place]] = theirs
    rows = []
    for fact, values in facts.items():
        if fact.removeprefix("engine's ") in facts and fact.startswith("engine's "):
            continue  # the campaign says it already
        first = values[names[0]]
        rows.append({"fact": fact, **{name: _shown(values.get(name, first)) for name in names}})
    return Table("settings", "What differs", (Column("fact", "fact"), *(Column(name, name) for name in names)), rows)


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, str) and re.fullmatch("[0-9a-f]{32,}", value):
        return f"{value[:12]}…"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
