"""A campaign out of the store: a Parquet bundle, CSV tables, or the study's receipt. No half-written file is left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backend.errors import UserError
from backend.files import replacing, write_failure
from backend.importers.receipts import PASS_NAMES, PROBLEM_SETTING_NAMES, SETTING_NAMES
from backend.queries import CSV_TABLES
from backend.shards import write_table
from backend.store import Store

_BUNDLE_FACTS = (
    "name",
    "model",
    "engine",
    "dtype",
    "k",
    "batch_invariant",
    "attention_backend",
    "passes",
    "settings",
    "final",
)


def export(store: Store, campaign: str, format: str, out: Path) -> list[Path]:
    """Write a campaign (an id or unique name) into the folder `out`, made if it is not there; gives the files written.

    Formats: `parquet` (imports again row for row), `csv` (a file a table), `receipt` (the study's JSON), `html`.
    Raises `UserError` for an unknown campaign or format, `WorkFailed` for a full disk.
    """
    if format not in FORMATS:
        raise UserError(f"format {format!r} is not known; the formats are {', '.join(FORMATS)}")
    row = store.campaign(campaign)
    return FORMATS[format](store, row, stem_in(out, row))


def stem_in(out: Path, row: dict[str, Any]) -> Path:
    """The path, without its ending, of a campaign's files in a folder, which is made if it is not there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_failure(out, error) from None
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", row["name"]).strip("-.")[:60]
    return out / f"{readable or 'campaign'}-{row['campaign']}"


def _parquet(store: Store, row: dict[str, Any], stem: Path) -> list[Path]:
    path = stem.with_name(f"{stem.name}.parquet")
    write_table(path, store.tables(row["campaign"]), bundle_metadata(store, row))
    return [path]


def bundle_metadata(store: Store, row: dict[str, Any]) -> dict[str, Any]:
    """What stands in a bundle's footer: the campaign's facts, and the engines that measured it."""
    facts = {key: row[key] for key in _BUNDLE_FACTS} | {"final": _final(row)}
    return {"campaign": facts, "engines": store.engines(row["campaign"])}


def _final(row: dict[str, Any]) -> bool | None:
    """Whether a campaign is whole: what its file said, or else whether its run was done; None where there was none."""
    final: bool | None = row["final"]
    if final is None and row["state"] not in {"live", "imported"}:
        final = row["state"] == "done"
    return final


def _csv(store: Store, row: dict[str, Any], stem: Path) -> list[Path]:
    paths = []
    for table in CSV_TABLES:
        path = stem.with_name(f"{stem.name}-{table}.csv")
        store.write_csv(table, row["campaign"], path)
        paths.append(path)
    return paths


def _receipt(store: Store, row: dict[str, Any], stem: Path) -> list[Path]:
    missing = [name for name in PASS_NAMES.values() if name not in row["passes"]]
    if missing or row["k"] is None or row["model"] is None:
        lack = f"the pass {missing[0]}" if missing else "a known model and k"
        raise UserError(f"campaign {row['name']} lacks {lack}, which a receipt needs; export it as parquet or csv")
    path = stem.with_name(f"{stem.name}.json")
    document = _receipt_document(store, row)
    if not document["pivots"]:
        raise UserError(f"campaign {row['name']} has no pivots, and a receipt has at least one; export it as parquet")
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return [path]


def _receipt_document(store: Store, row: dict[str, Any]) -> dict[str, Any]:
    problems = store.problems(row["campaign"])
    prompts = {problem["problem"]: (problem["stated"] or {}).get("prompt_tokens") for problem in problems}
    pivots = [_receipt_pivot(pivot, row["k"], prompts[pivot["problem"]]) for pivot in store.wide(row["campaign"])]
    # A receipt either has a reading for its pivots or does not mention it.
    unknown = {key for key in (pivots[0] if pivots else {}) if all(pivot[key] is None for pivot in pivots)}
    unknown -= {f"A_{name}" for name in PASS_NAMES}
    settings = row["settings"]
    stated = settings.get("stated", {})
    inner = settings.get("problems", {})
    return {
        **{key: value for key, value in stated.items() if key != "config"},
        "config": {
            **stated.get("config", {}),
            **{theirs: settings[ours] for theirs, ours in SETTING_NAMES.items() if ours in settings},
            **{theirs: inner[ours] for theirs, ours in PROBLEM_SETTING_NAMES.items() if ours in inner},
            "model": row["model"],
            "k": row["k"],
        },
        "final": bool(_final(row)),
        "per_problem": [_receipt_problem(problem) for problem in problems if problem["state"] == "done"],
        "pivots": [{key: value for key, value in pivot.items() if key not in unknown} for pivot in pivots],
    }


def _receipt_problem(problem: dict[str, Any]) -> dict[str, Any]:
    stated = {key: value for key, value in (problem["stated"] or {}).items() if key != "prompt_tokens"}
    facts: dict[str, Any] = {"problem_id": _problem_id(problem["problem"]), "pivots": problem["pivots"]}
    if problem["rollouts"]:
        facts["rollout_accuracy"] = problem["correct"] / problem["rollouts"]
    if problem["seconds"] is not None:
        facts["total_seconds"] = problem["seconds"]
    return {**facts, **stated}


def _receipt_pivot(pivot: dict[str, Any], k: int, prompt_tokens: int | None) -> dict[str, Any]:
    length = pivot["prompt_tokens"] or prompt_tokens
    out = {
        "problem_id": _problem_id(pivot["problem"]),
        "rollout": pivot["rollout"],
        "abs_pos": pivot["position"],
        "gen_index": None if length is None else pivot["position"] - length,
        "margin": pivot["margin"],
        "rollout_correct": None if pivot["correct"] is None else int(pivot["correct"]),
    }
    for theirs, ours in PASS_NAMES.items():
        out[f"A_{theirs}"] = None if pivot[ours] is None else pivot[ours] / k
    for theirs, ours in (("exact1", "exact"), ("exact2", "replica")):
        misses = pivot[f"misses_{ours}"]
        out[f"cache_ok_{theirs}"] = None if misses is None else misses == 0
    for theirs, ours in (("exact2", "replica"), ("refeed", "refeed")):
        out[f"greedy_divergence_{theirs}"] = pivot[f"diverged_{ours}"]
        out[f"greedy_first_logprob_delta_{theirs}"] = pivot[f"delta_{ours}"]
    return out


def _problem_id(problem: str) -> int | str:
    return int(problem) if problem.isdecimal() and str(int(problem)) == problem else problem


def _html(store: Store, row: dict[str, Any], stem: Path) -> list[Path]:
    from backend.report import probe_deltas, report  # these bring the drawing library along
    from backend.report_html import html

    path = stem.with_name(f"{stem.name}.html")
    document = report(store, [row["campaign"]])
    with replacing(path) as temporary:
        temporary.write_text(html(document, probe_deltas(store, document["campaigns"])), encoding="utf-8")
    return [path]


FORMATS: dict[str, Callable[[Store, dict[str, Any], Path], list[Path]]] = {
    "parquet": _parquet,
    "csv": _csv,
    "receipt": _receipt,
    "html": _html,
}
"""By name, what writes a campaign's row and records to files that begin with a stem."""
