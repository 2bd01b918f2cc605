"""The study's receipt: one JSON file a campaign, with Â as a decimal for each pivot and pass.

Integers of the single arms cannot be recovered from it, so a measurement holds the numerator j of Â = j/k alone. What
the file does not state (engine, dtype, batch-invariant or not) stays unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from backend.errors import UserError
from backend.importers.reading import validate
from backend.ingest import Campaign
from backend.records import Measurement, Pass, Pivot, ProblemRecord, Rollout

Count = Annotated[int, Field(ge=0, lt=2**31)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Credit = Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]
ProblemId = int | Annotated[str, Field(min_length=1)]

PASS_NAMES: dict[str, Pass] = {"exact1": "exact", "exact2": "replica", "refeed": "refeed"}
"""The receipt's names of the passes."""

SETTING_NAMES = {
    "model": "model",
    "rollouts": "rollouts",
    "temperature": "temperature",
    "top_p": "top_p",
    "k": "k",
    "margin_lt": "margin_below",
    "boundary_slack": "boundary_slack",
    "max_pivots_per_rollout": "max_pivots_per_rollout",
    "max_trunk_tokens": "max_rollout_tokens",
    "max_cont_tokens": "max_continuation_tokens",
    "cont_temp": "continuation_temperature",
}
"""The receipt's names of the settings, and ours."""

PROBLEM_SETTING_NAMES = {
    "problems": "count",
    "screen_mixed": "screen",
    "scan_limit": "scan_limit",
    "scan_start": "first",
}

_OPTIONAL = (
    "gen_index",
    "margin",
    "rollout_correct",
    "cache_ok_exact1",
    "cache_ok_exact2",
    "greedy_divergence_exact2",
    "greedy_first_logprob_delta_exact2",
    "greedy_divergence_refeed",
    "greedy_first_logprob_delta_refeed",
)
_GRID_TOLERANCE = 1e-9
"""Â·k may miss its integer by this much: a difference of two rounded decimals does."""


class ReceiptPivot(BaseModel):
    """One pivot as the receipt has it. A null Â is a pivot with a continuation missing."""

    problem_id: ProblemId
    rollout: Count
    abs_pos: Count
    gen_index: Count | None = None
    margin: Finite | None = None
    rollout_correct: Literal[0, 1] | None = None
    A_exact1: Credit | None
    A_exact2: Credit | None
    A_refeed: Credit | None
    cache_ok_exact1: bool | None = None
    cache_ok_exact2: bool | None = None
    greedy_divergence_exact2: bool | None = None
    greedy_first_logprob_delta_exact2: Annotated[Finite, Field(ge=0)] | None = None
    greedy_divergence_refeed: bool | None = None
    greedy_first_logprob_delta_refeed: Annotated[Finite, Field(ge=0)] | None = None


class ReceiptConfig(BaseModel):
    """The settings that the importer needs; the others are taken over as they are."""

    model: Annotated[str, Field(min_length=1)]
    k: Annotated[int, Field(ge=1, le=10**6)]


class ReceiptProblem(BaseModel, extra="allow"):
    """What the receipt says about a problem; kept as it is."""

    problem_id: ProblemId


class Receipt(BaseModel):
    """The whole file."""

    config: ReceiptConfig
    final: bool | None = None
    per_problem: list[ReceiptProblem] = []
    pivots: Annotated[list[ReceiptPivot], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Receipt:
        k = self.config.k
        seen: set[tuple[str, int, int]] = set()
        given = {name for pivot in self.pivots for name in pivot.model_fields_set}
        expected = [name for name in _OPTIONAL if name in given]
        for index, pivot in enumerate(self.pivots):
            key = (str(pivot.problem_id), pivot.rollout, pivot.abs_pos)
            if key in seen:
                raise ValueError(
                    f"pivots[{index}] is problem {key[0]}, rollout {key[1]}, abs_pos {key[2]} a second time"
                )
            seen.add(key)
            for name in expected:
                if name not in pivot.model_fields_set:
                    raise ValueError(f"field pivots[{index}].{name} is missing, and other pivots have it")
            if pivot.gen_index is not None and pivot.gen_index >= pivot.abs_pos:
                raise ValueError(f"pivots[{index}].gen_index is {pivot.gen_index}; it must be below abs_pos {key[2]}")
            for name in PASS_NAMES:
                credit = getattr(pivot, f"A_{name}")
                if credit is not None and abs(credit * k - round(credit * k)) > _GRID_TOLERANCE:
                    raise ValueError(
                        f"pivots[{index}].A_{name} is {credit}; with k = {k} it must be a multiple of 1/{k}"
                    )
        return self


def read_receipt(
    data: dict[str, Any], where: str, campaign: str, name: str
) -> tuple[Campaign, Iterator[ProblemRecord]]:
    """A receipt's campaign row and records. Raises `UserError` naming `where` and the field, before any record."""
    receipt = validate(Receipt, data, where)
    rollouts = _rollouts(receipt, where)
    row = Campaign(
        campaign=campaign,
        name=name,
        origin="import",
        state="imported",
        model=receipt.config.model,
        k=receipt.config.k,
        passes=tuple(PASS_NAMES.values()),
        settings=_settings(data),
        final=receipt.final,
    )
    return row, _records(receipt, rollouts)


def _settings(data: dict[str, Any]) -> dict[str, Any]:
    config = data["config"]
    settings = {ours: config[theirs] for theirs, ours in SETTING_NAMES.items() if theirs in config}
    problems = {ours: config[theirs] for theirs, ours in PROBLEM_SETTING_NAMES.items() if theirs in config}
    stated = {key: value for key, value in data.items() if key not in ("pivots", "per_problem", "final")}
    return {**settings, "problems": problems, "passes": list(PASS_NAMES.values()), "stated": stated}


def _rollouts(receipt: Receipt, where: str) -> dict[str, list[Rollout]]:
    """The receipt's rollouts by problem. Raises `UserError` when two pivots of one rollout contradict each other."""

    def of(pivot: ReceiptPivot) -> tuple[str, int]:
        return str(pivot.problem_id), pivot.rollout

    found: dict[str, list[Rollout]] = {}
    for (problem, index), group in groupby(sorted(receipt.pivots, key=of), key=of):
        pivots = list(group)
        verdicts = {pivot.rollout_correct for pivot in pivots}
        if len(verdicts) > 1:
            raise UserError(
                f"{where}: rollout_correct of problem {problem}, rollout {index} differs between its pivots; "
                "it must be the same in all"
            )
        (verdict,) = verdicts
        found.setdefault(problem, []).append(
            Rollout(
                rollout=index,
                seed=None,
                prompt_ids=[],
                ids=[],
                logprobs=[],
                topk_ids=[],
                topk_logprobs=[],
                finish_reason=None,
                answer=None,
                correct=None if verdict is None else bool(verdict),
                pivots=[_pivot(pivot, receipt.config.k) for pivot in pivots],
            )
        )
    return found


def _records(receipt: Receipt, rollouts: dict[str, list[Rollout]]) -> Iterator[ProblemRecord]:
    stated = {str(problem.problem_id): problem.model_dump(exclude={"problem_id"}) for problem in receipt.per_problem}
    # The prompt itself is not in a receipt, its length is: abs_pos counts from its start, gen_index from its end.
    lengths = {
        str(pivot.problem_id): pivot.abs_pos - pivot.gen_index
        for pivot in receipt.pivots
        if pivot.gen_index is not None
    }
    for problem in dict.fromkeys([*(str(pivot.problem_id) for pivot in receipt.pivots), *stated]):
        facts = dict(stated.get(problem, {}))
        if problem in lengths:
            facts["prompt_tokens"] = lengths[problem]
        yield ProblemRecord(
            problem=problem,
            question=None,
            gold=None,
            source=None,
            state="done",
            error=None,
            seconds=facts["total_seconds"] if isinstance(facts.get("total_seconds"), float) else None,
            engine=None,
            engine_info=None,
            rollouts=rollouts.get(problem, []),
            stated=json.dumps(facts, sort_keys=True) if facts else None,
        )


def _pivot(pivot: ReceiptPivot, k: int) -> Pivot:
    return Pivot(
        position=pivot.abs_pos,
        actual=None,
        alternative=None,
        margin=pivot.margin,
        planned=True,
        measurements=[
            _measurement(
                PASS_NAMES[name],
                k,
                getattr(pivot, f"A_{name}"),
                getattr(pivot, f"cache_ok_{name}", None),
                getattr(pivot, f"greedy_divergence_{name}", None),
                getattr(pivot, f"greedy_first_logprob_delta_{name}", None),
            )
            for name in PASS_NAMES
        ],
    )


def _measurement(
    name: Pass, k: int, credit: float | None, cache_ok: bool | None, diverged: bool | None, delta: float | None
) -> Measurement:
    return Measurement(
        pass_=name,
        run="campaign",
        k=k,
        n_actual=None,
        n_alternative=None,
        numerator=None if credit is None else round(credit * k),
        truncated_actual=None,
        truncated_alternative=None,
        provenance=None,
        started=None,
        seconds=None,
        output_sha256=None,
        requests=None,
        # The receipt says whether every request hit, not how many missed: at least one.
        cache_misses=None if cache_ok is None else int(not cache_ok),
        warm_requests=None,
        preemptions=None,
        logprobs_equal=None,
        logprobs_max_difference=None,
        seeds_sha256=None,
        engine=None,
        probe_diverged=diverged,
        probe_delta=delta,
    )
