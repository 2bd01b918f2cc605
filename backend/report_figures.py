"""The figures of a report, each with the words that go under it: what it shows, and when not to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from backend import charts
from backend.charts import FlipRate, ProblemFlips
from backend.inference import Floats
from backend.report_tables import passes_of
from backend.tables import count, decimal, interval, percent, points
from backend.wording import FEW_PROBLEMS

MOST_PROBLEMS = 2_000
"""More dots than this are drawn slowly and read by nobody."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure and its words."""

    key: str
    title: str
    figure: go.Figure | None
    """None where there is nothing to draw; `shows` then says why."""
    alt: str
    """The figure's message in a sentence, for those who cannot see it."""
    shows: str
    doubt: str
    """When not to trust it, here."""


def flips_panel(document: Mapping[str, Any]) -> Panel:
    """Flip rates beside their floor, zero crossings against reversals."""
    rates = [
        FlipRate(name, document["eligible"], one["zero_crossings"], one["polarity_reversals"], one["ci95"])
        for name in passes_of(document)
        for one in [document[name]]
        if one["rate"] is not None
    ]
    replica = document["replica"]["rate"]
    floor = "its floor was not measured" if replica is None else f"its floor is {percent(replica)}"
    return Panel(
        "flips",
        charts.TITLES["flip_rate_bars"],
        charts.flip_rate_bars(rates) if rates else None,
        f"Re-feeding flips {percent(document['refeed']['rate'])} of eligible pivots; {floor}.",
        "The share of eligible pivots whose sign of Â differs from the exact pass, with its 95 % interval over "
        "problems. Plain: one side is 0. Hatched: the signs are opposite. Only what refeed has beyond the replica "
        "is the work of re-feeding; the replica is the same measurement made again."
        if rates
        else "No pivot is eligible, so no rate is defined.",
        f"{_grid(document['k'])}{_few(document)}",
    )


def selection_panel(document: Mapping[str, Any]) -> Panel:
    """The Jaccard curves under their ceiling."""
    rows = document["jaccard"]
    drawn = any(row["refeed"]["jaccard"] is not None or row["replica"]["jaccard"] is not None for row in rows)
    last = rows[-1] if rows else None
    empty = [row["threshold"] for row in rows if row["refeed"]["jaccard"] is None]
    few = f"At |Â| ≥ {last['threshold']:g} exact selects {count(last['exact_size'])} pivots. " if last else ""
    gaps = f"From |Â| ≥ {empty[0]:g} on no pivot is selected, which leaves a gap. " if drawn and empty else ""
    constant = "With k = 1 every threshold selects the same pivots, so the curves are flat. " if len(rows) == 1 else ""
    return Panel(
        "selection",
        charts.TITLES["jaccard_curves"],
        charts.jaccard_curves(rows) if drawn else None,
        _selection_alt(rows),
        "If pivots are picked by |Â|, how far do two passes pick the same ones? The ceiling is what exact and its "
        "replica agree on. The band is the 95 % interval of the distance from ceiling to refeed, hung from the "
        "ceiling: a refeed curve inside it, and a band clear of the ceiling, mean a real loss. Dots mark the "
        "thresholds that k allows; chance is what two random sets of these sizes share."
        if drawn
        else "No pivot reaches any threshold, so no agreement is defined.",
        f"{constant}{few}{gaps}The ceiling is one draw too, so refeed can lie above it by chance. {_few(document)}",
    )


def _selection_alt(rows: list[Mapping[str, Any]]) -> str:
    row = at_half(rows)
    if row is None:
        return "No selection is defined."
    return (
        f"At a threshold of {row['threshold']:g} refeed agrees with exact to {decimal(row['refeed']['jaccard'])}, "
        f"an identical repeat to {decimal(row['replica']['jaccard'])}."
    )


def at_half(rows: list[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The selection at |Â| ≥ 0.5: between two attainable thresholds it is that of the upper one."""
    return next((row for row in rows if row["threshold"] >= 0.5), None)


def difference_panel(document: Mapping[str, Any]) -> Panel:
    """The histogram of Â_refeed − Â_exact with its mean and interval."""
    bias, k = document["bias"], document["k"]
    counts = {row["numerator"]: row["pivots"] for row in document["difference"]}
    figure = (
        charts.credit_delta_histogram(counts, k, mean=bias["mean"], ci95=bias["ci95"], margin=bias["margin"])
        if counts and k
        else None
    )
    told = "" if bias["ci95"] is None else f", 95 % interval {interval(bias['ci95'], decimal)}"
    verdict = {
        True: f"the mean is shown to be within ±{bias['margin']:g}",
        False: f"the mean is not shown to be within ±{bias['margin']:g}, which is no proof of a bias",
        None: "whether the mean is near 0 cannot be tested",
    }[bias["equivalent"]]
    return Panel(
        "difference",
        charts.TITLES["credit_delta_histogram"],
        figure,
        f"The mean change of the credit under re-feeding is {decimal(bias['mean'])}{told}.",
        "Eligible pivots by how far re-feeding moved their credit. A heap symmetric about 0 is noise without a "
        f"direction; the diamond is the mean with its 95 % interval, the shaded strip the margin: {verdict}."
        if figure
        else "No eligible pivot was measured both ways.",
        f"An unmoved pivot changed by less than the grid of 1/{k} can show. {_few(document)}",
    )


def probe_panel(document: Mapping[str, Any], deltas: Mapping[str, Floats]) -> Panel:
    """The distribution of the first token's |Δ logprob|; `deltas` are of `report.probe_deltas`."""
    refeed, replica = document["probe"]["refeed"], document["probe"]["replica"]
    return Panel(
        "probe",
        charts.TITLES["probe_ecdf"],
        charts.probe_ecdf(deltas) if deltas else None,
        f"The first logprob is bit-exact at {percent(refeed['bit_exact'])} of pivots under re-feeding and at "
        f"{percent(replica['bit_exact'])} in the repeat.",
        "How far the first token's logprob moves from the exact pass: the larger of the two arms, no grading involved. "
        f"Exact zeros have a bar of their own. Within 32 greedy tokens {percent(refeed['divergence'])} of pivots "
        f"diverge under re-feeding, {percent(replica['divergence'])} in the repeat."
        if deltas
        else "No probe was recorded.",
        "A moved logprob need not move an answer, and a greedy probe says nothing of sampled continuations.",
    )


def problems_panel(document: Mapping[str, Any]) -> Panel:
    """Excess by problem, a dot each."""
    rows = [
        ProblemFlips(row["problem"], row["eligible"], row["refeed_flips"], row.get("replica_flips"))
        for row in document["per_problem"]
        if row["eligible"] and row.get("refeed_flips") is not None and row.get("replica_flips") is not None
    ]
    drawn = 0 < len(rows) <= MOST_PROBLEMS
    mean = document["mean_excess_equal_weight"]
    above = sum(row.refeed_flips > (row.replica_flips or 0) for row in rows)
    why = f"{count(len(rows))} problems are too many to draw; the table has them all." if rows else "Nothing to draw."
    return Panel(
        "problems",
        charts.TITLES["per_problem_excess"],
        charts.per_problem_excess(rows, mean=mean) if drawn else None,
        f"{count(above)} of {count(len(rows))} problems flip more often under re-feeding than in the repeat; the mean "
        f"excess is {points(None if mean is None else 100 * mean)}.",
        "The excess of each problem with an eligible pivot, refeed's rate less its floor; the larger the dot, the more "
        "eligible pivots. Problems are what intervals and tests count, not pivots."
        if drawn
        else why,
        f"A small dot rests on a handful of pivots and is noisy. {_few(document)}",
    )


def _grid(k: int | None) -> str:
    if not k:
        return ""
    return f"The smaller k, the more easily a pivot flips: with k = {k} one changed answer moves Â by {1 / k:.3g}. "


def _few(document: Mapping[str, Any]) -> str:
    groups = document["clusters"]
    if groups < 2:
        return f"With {groups} problem{'' if groups == 1 else 's'} there is no interval."
    what = f"Intervals rest on {count(groups)} problems"
    return f"{what}: too few to lean on." if groups < FEW_PROBLEMS else f"{what}."


def panels(document: Mapping[str, Any], deltas: Mapping[str, Floats]) -> list[Panel]:
    """All panels in reading order."""
    return [
        flips_panel(document),
        selection_panel(document),
        difference_panel(document),
        probe_panel(document, deltas),
        problems_panel(document),
    ]
