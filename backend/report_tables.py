"""A report document as tables, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.tables import Column, Table
from backend.wording import cautions, headline, subject

PASS_LABELS = {
    "replica": "replica (floor)",
    "refeed_floor": "refeed twice (refeed's own floor)",
}


def passes_of(document: Mapping[str, Any]) -> list[str]:
    """The passes that a document compares with exact: refeed and its floor first."""
    return list(dict.fromkeys(["refeed", "replica", *(name for name in document["passes"] if name != "exact")]))


def flips_table(document: Mapping[str, Any]) -> Table:
    """Each pass's flips over the one denominator."""
    names = [*passes_of(document), *(["refeed_floor"] if "refeed_floor" in document else [])]
    about = "Where no flip was seen: the share of problems that have any is lower than this, at 95 %"
    bound = Column("problems_upper95", "in problems, under", "percent", about)
    return Table(
        "flips",
        "Flips against exact",
        (
            Column("pass", "pass"),
            Column("flips", "flips", "count", "Pivots where the sign of Â differs from exact's"),
            Column("zero_crossings", "zero crossings", "count", "Flips with 0 on one side"),
            Column("polarity_reversals", "reversals", "count", "Flips between strictly opposite signs"),
            Column("eligible", "of eligible", "count", "Pivots where exact, replica or refeed has Â ≠ 0"),
            Column("rate", "rate", "percent", "Flips / eligible, the same denominator for every pass"),
            Column("ci95", "95 % interval", "percent95", "Percentile bootstrap over problems"),
            *([bound] if any(document[name]["problems_upper95"] is not None for name in names) else []),
        ),
        [{"pass": PASS_LABELS.get(name, name), "eligible": document["eligible"], **document[name]} for name in names],
    )


def statistics_table(document: Mapping[str, Any]) -> Table:
    """The excess over the floor and how sure it is, the stricter conditioning, and the bias."""
    strict, bias, groups = document["conditioned_on_exact"], document["bias"], document["clusters"]
    rows: list[tuple[str, Any, Any, str]] = [
        ("excess over the floor, pp", document["excess_pp"], document["excess_pp_ci95"], "refeed − replica flips"),
        (
            "equal-weight mean excess",
            document["mean_excess_equal_weight"],
            None,
            "a fraction, each problem counts once",
        ),
        ("t, equal weight", document["t_equal_weight"], None, f"over {groups} problems; the study's"),
        ("t, CR1", document["t_cr1"], None, "pivot-weighted, cluster-robust"),
        ("t, jackknife", document["t_jackknife"], None, "pivot-weighted, CV3"),
        ("sign-flip p", document["sign_flip_p"], None, "two-sided, on the equal-weight mean"),
        ("excess given exact ≠ 0, pp", strict["excess_pp"], strict["excess_pp_ci95"], f"over {strict['n']:,} pivots"),
        ("refeed rate given exact ≠ 0", strict["refeed_rate"], None, "a fraction"),
        ("floor given exact ≠ 0", strict["replica_rate"], None, "a fraction"),
        ("bias, refeed − exact", bias["mean"], bias["ci95"], _equivalence(bias)),
    ]
    return Table(
        "statistics",
        "Excess over the floor",
        (
            Column("quantity", "quantity"),
            Column("value", "value", "number"),
            Column("low", "95 % low", "number"),
            Column("high", "95 % high", "number"),
            Column("note", "note"),
        ),
        [
            {
                "quantity": name,
                "value": value,
                "low": ci95 and ci95[0],
                "high": ci95 and ci95[1],
                "note": note,
            }
            for name, value, ci95, note in rows
        ],
    )


def _equivalence(bias: Mapping[str, Any]) -> str:
    margin = f"±{bias['margin']:g}"
    if bias["equivalent"] is None:
        return f"the equivalence test against {margin} is undefined"
    return f"shown to be within {margin}" if bias["equivalent"] else f"not shown to be within {margin}"


def selection_table(document: Mapping[str, Any]) -> Table:
    """The Jaccard indices by threshold, beside their ceiling and chance."""
    rows = []
    for row in document["jaccard"]:
        flat = {"threshold": row["threshold"], "exact_size": row["exact_size"], "gap_ci95": row["gap_ci95"]}
        for pair in ("refeed", "replica", "refeed_replica"):
            flat |= {f"{pair}_{key}": value for key, value in row[pair].items()}
        rows.append(flat)
    return Table(
        "selection",
        "Agreement of the selected pivots",
        (
            Column("threshold", "|Â| ≥", "number"),
            Column("exact_size", "exact selects", "count"),
            Column("refeed_size", "refeed selects", "count"),
            Column("refeed_jaccard", "refeed–exact", "decimal", "Jaccard index of the two sets of pivots"),
            Column("refeed_ci95", "95 % interval", "decimal95"),
            Column("replica_jaccard", "ceiling", "decimal", "Replica–exact: what an identical measurement agrees on"),
            Column("replica_ci95", "95 % interval", "decimal95"),
            Column("gap_ci95", "ceiling − refeed, 95 %", "decimal95"),
            Column("refeed_replica_jaccard", "refeed–replica", "decimal"),
            Column("refeed_chance", "chance", "decimal", "Two random sets of these sizes"),
        ),
        rows,
    )


def probe_table(document: Mapping[str, Any]) -> Table:
    """The greedy probes by pass."""
    return Table(
        "probe",
        "Greedy probe",
        (
            Column("pass", "pass"),
            Column("pivots", "pivots", "count"),
            Column("divergence", "diverged", "percent", "Any of 32 greedy tokens differs from exact's in either arm"),
            Column("bit_exact", "bit-exact", "percent", "The first token's logprob is equal to the last bit"),
            Column("p90_delta", "90th percentile |Δ|, nats", "number"),
        ),
        [{"pass": PASS_LABELS.get(name, name), **document["probe"][name]} for name in passes_of(document)],
    )


def problem_table(document: Mapping[str, Any]) -> Table:
    """One row a problem, refeed beside its floor."""
    rows = [
        {
            **row,
            **{f"{name}_rate": _share(row.get(f"{name}_flips"), row["eligible"]) for name in passes_of(document)},
        }
        for row in document["per_problem"]
    ]
    several = len({row["set"] for row in rows}) > 1
    return Table(
        "problems",
        "By problem",
        (
            Column("problem", "problem"),
            *([Column("set", "problem set")] if several else []),
            Column("pivots", "pivots", "count"),
            Column("eligible", "eligible", "count"),
            Column("refeed_flips", "refeed flips", "count"),
            Column("replica_flips", "replica flips (floor)", "count"),
            Column("refeed_rate", "refeed rate", "percent"),
            Column("replica_rate", "floor", "percent"),
            Column("excess_pp", "excess", "points"),
        ),
        rows,
    )


def _share(flips: int | None, eligible: int) -> float | None:
    return None if flips is None or not eligible else flips / eligible


def checks_table(document: Mapping[str, Any]) -> Table:
    """The checks in their order."""
    columns = (Column("name", "check"), Column("status", "status"), Column("detail", "what was found"))
    return Table("checks", "Checks", columns, document["checks"])


def readings_table(document: Mapping[str, Any]) -> Table:
    """What the instruments counted, by pass."""
    return Table(
        "readings",
        "Instrument readings",
        (
            Column("pass", "pass"),
            Column("measurements", "measurements", "count"),
            Column("cache_missed", "missed kept tokens", "count", "Not all expected tokens came from kept state"),
            Column("cache_missed_unknown", "not read", "count"),
            Column("cache_read", "read cached tokens", "count", "Must be 0 for refeed"),
            Column("cache_read_unknown", "not read", "count"),
            Column("preempted", "preempted", "count"),
            Column("preempted_unknown", "not read", "count"),
            Column("logprobs_off", "other logprobs", "count", "Resumed next-token logprobs differ from the rollout's"),
            Column("logprobs_off_unknown", "not read", "count"),
        ),
        document["readings"],
    )


def method_table(document: Mapping[str, Any]) -> Table:
    """The method card: settings, engine facts and machine. Only what all campaigns of a pool share has one value."""
    rows = [
        *({"section": "campaign", "fact": key, "value": document[key]} for key in _METHOD),
        *_settings(document["settings"]),
        *(
            {"section": "engine", "fact": key, "value": value}
            for info in document["engines"].values()
            for key, value in info.items()
        ),
        {"section": "statistics", "fact": "bootstrap draws", "value": document["bootstrap"]["draws"]},
        {"section": "statistics", "fact": "bootstrap seed", "value": document["bootstrap"]["seed"]},
    ]
    return Table(
        "method",
        "Method card",
        (Column("section", "section"), Column("fact", "fact"), Column("value", "value")),
        [{**row, "value": _shown(row["value"])} for row in rows],
    )


_METHOD = ("model", "engine", "dtype", "attention_backend", "batch_invariant", "k", "passes")


def _settings(settings: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    flat = [dict(_flat(one)) for one in settings]
    for key in sorted({key for one in flat for key in one} - set(_METHOD)):
        values = ["not set" if one.get(key) is None else _shown(one[key]) for one in flat]
        yield {"section": "settings", "fact": key, "value": " / ".join(dict.fromkeys(values))}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if key == "stated" and not prefix:
            continue  # the imported file's own words, which the settings above repeat
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)


def summary_tables(document: Mapping[str, Any]) -> list[Table]:
    """The tables that a reader starts with, in order."""
    makers = (flips_table, statistics_table, selection_table, probe_table, checks_table)
    return [make(document) for make in makers]


def as_text(document: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """A report, or several, for people in a terminal."""
    if not isinstance(document, Mapping):
        return "\n\n\n".join(as_text(one) for one in document)
    notes = [f"! {caution}" for caution in cautions(document)]
    parts = [subject(document), headline(document), *(["\n".join(notes)] if notes else [])]
    tables = summary_tables(document) if document["pivots"] else []
    return "\n\n".join([*parts, *(table.text() for table in tables if table.rows)])
