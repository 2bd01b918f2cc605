"""From a stored rollout to what the transcript page draws: columns of plain values, no drawing and no SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from backend.pivots import alternative, margins
from backend.records import ARMS, PASSES, PROBE, Arm, ContinuationRecord, Measurement, Pivot, Rollout
from backend.transcript import (
    ContinuationCell,
    ContinuationRow,
    TranscriptView,
    display_text,
    first_difference,
    partial_bytes,
)

UNKNOWN = "�"


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one run at one position, in the order of the passes."""

    run: str
    measurements: tuple[Measurement, ...]

    @property
    def alternative(self) -> int | None:
        """The token that the reader put in the actual one's place; None for the pivot's own alternative."""
        return next((one.alternative for one in self.measurements), None)

    @property
    def by_pass(self) -> dict[str, Measurement]:
        return {one.pass_: one for one in self.measurements}

    @property
    def title(self) -> str:
        """How a page names the run."""
        if self.run == "campaign":
            return "Campaign"
        day, _, clock = self.run.removeprefix("replay-").partition("T")
        stamp = clock.split("-")[0]
        if len(day) == 8 and len(stamp) == 6:
            return f"Replay {day[:4]}-{day[4:6]}-{day[6:]} {stamp[:2]}:{stamp[2:4]}:{stamp[4:]} UTC"
        return self.run


def runs_of(pivot: Pivot | None) -> list[Run]:
    """A pivot's runs: the campaign's own first, then replays from the newest."""
    found: dict[str, list[Measurement]] = {}
    for one in pivot.measurements if pivot is not None else ():
        found.setdefault(one.run, []).append(one)
    runs = [Run(run, tuple(sorted(ones, key=lambda one: PASSES.index(one.pass_)))) for run, ones in found.items()]
    replays = sorted((run for run in runs if run.run != "campaign"), key=lambda run: run.run, reverse=True)
    return [run for run in runs if run.run == "campaign"] + replays


def foremost(runs: Sequence[Run]) -> Run | None:
    """The run that speaks for a position: of those with the pivot's own alternative, if there are, the first."""
    return min(runs, key=lambda run: run.alternative is not None, default=None)


def pivot_at_position(rollout: Rollout, position: int) -> Pivot | None:
    """The stored pivot at a position."""
    return next((pivot for pivot in rollout.pivots if pivot.position == position), None)


def rollout_view(
    rollout: Rollout, texts: Mapping[int, bytes], *, margin_below: float = 1.0, special: Collection[int] = ()
) -> TranscriptView:
    """The transcript of a rollout with its measured pivots' credit.

    It is from the campaign's run, else from the newest replay, of those with the pivot's own alternative if there are.
    """
    ids = [*rollout.prompt_ids, *rollout.ids]
    pieces = [texts.get(token, UNKNOWN.encode()) for token in ids]
    first = len(rollout.prompt_ids)
    gaps = margins(rollout.topk_logprobs)
    margin = {first + i: float(gap) for i, gap in enumerate(gaps) if gap == gap}
    unusable = frozenset(special)
    candidates = [p for p, gap in margin.items() if gap < margin_below and ids[p] not in unusable]
    credit: dict[str, dict[int, float]] = {}
    for pivot in rollout.pivots:
        run = foremost(runs_of(pivot))
        for one in run.measurements if run is not None else ():
            if one.numerator is not None:
                credit.setdefault(one.pass_, {})[pivot.position] = one.numerator / one.k
    return TranscriptView(
        text=display_text(pieces),
        prompt_length=first,
        credit=credit,
        margin=margin,
        alternative=_alternatives(rollout, texts),
        candidates=candidates,
        special=[position for position, token in enumerate(ids) if token in unusable],
        raw=partial_bytes(pieces),
    )


def token_ids_of(rollout: Rollout) -> set[int]:
    """Every id whose text the page may show."""
    ids = {*rollout.prompt_ids, *rollout.ids}
    for top in rollout.topk_ids:
        ids.update(top)
    for pivot in rollout.pivots:
        ids |= pivot.tokens
        for one in pivot.measurements:
            for continuation in one.continuations:
                ids.update(continuation.ids)
    return ids


def continuation_rows(
    measurements: Iterable[Measurement], pivot: Pivot, texts: Mapping[int, bytes], *, probes: bool = False
) -> list[ContinuationRow]:
    """A row an arm and seed, a cell a pass, the first token that differs from exact's marked."""
    records: dict[tuple[Arm, int], dict[str, ContinuationRecord]] = {}
    for one in measurements:
        for continuation in one.continuations:
            if (continuation.i == PROBE) == probes:
                records.setdefault((continuation.arm, continuation.i), {})[one.pass_] = continuation
    tokens = dict(zip(ARMS, (pivot.actual, pivot.alternative), strict=True))
    rows = []
    for (arm, sample), by_pass in sorted(records.items(), key=lambda item: (ARMS.index(item[0][0]), item[0][1])):
        exact = by_pass.get("exact")
        cells = {name: _cell(name, record, exact, texts) for name, record in by_pass.items()}
        rows.append(ContinuationRow(arm, token_text(tokens[arm], texts), sample, cells))
    return rows


def token_text(token: int | None, texts: Mapping[int, bytes]) -> str:
    """One token as shown on its own."""
    if token is None:
        return "?"
    return display_text([texts.get(token, UNKNOWN.encode())])[0]


def _cell(
    pass_: str, record: ContinuationRecord, exact: ContinuationRecord | None, texts: Mapping[int, bytes]
) -> ContinuationCell:
    pieces = [texts.get(token, UNKNOWN.encode()) for token in record.ids]
    if record.correct is None:
        outcome = "ungraded"
    elif record.finish_reason == "length" and record.answer is None:
        outcome = "truncated"
    else:
        outcome = "right" if record.correct else "wrong"
    difference = None if pass_ == "exact" or exact is None else first_difference(exact.ids, record.ids)
    return ContinuationCell(display_text(pieces), outcome, record.answer, record.finish_reason, difference)  # type: ignore[arg-type]


def _alternatives(rollout: Rollout, texts: Mapping[int, bytes]) -> dict[int, str]:
    found: dict[int, str] = {}
    rows: Sequence[tuple[list[int], list[float]]] = list(zip(rollout.topk_ids, rollout.topk_logprobs, strict=True))
    for i, (actual, (ids, logprobs)) in enumerate(zip(rollout.ids, rows, strict=False)):
        other = alternative(ids, logprobs, actual)
        if other is not None:
            found[len(rollout.prompt_ids) + i] = token_text(other, texts)
    return found
