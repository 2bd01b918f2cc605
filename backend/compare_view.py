"""What the compare page shows beyond tables: problems by disagreement, rollouts by merit, tokens in context, sentences.

No Streamlit in here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backend.binning import BinFlips, binned_flips, disagreement, margin_bins, position_bins
from backend.charts.comparison import Contrast, PlaceRate
from backend.compare_tables import signed, signed_range
from backend.comparing import Difference
from backend.critical import CriticalTokens
from backend.sides import Comparison, compare
from backend.store import Store
from backend.tables import UNDEFINED, count, decimal, points
from backend.transcript import display_text

MOST_TOKENS = 300
"""Critical tokens that are listed in context; a longer list is read by nobody."""


# Choosing what to look at


@dataclass(frozen=True, slots=True)
class RankedProblem:
    """A problem as the picker names it."""

    problem: str
    title: str


def ranked_problems(comparison: Comparison, places: Sequence[int]) -> list[RankedProblem]:
    """Problems that at least two of the campaigns (by index) finished, the largest disagreement first."""
    sides = [comparison.sides[place] for place in places]
    found = []
    for row in disagreement(sides).itertuples():
        number = int(row.problem)
        shares = [f"{side.right[number]}/{side.graded[number]}" if side.graded[number] else UNDEFINED for side in sides]
        facts = [f"right {' · '.join(shares)}"] if any(side.graded[number] for side in sides) else ["not graded"]
        if row.flip_gap > 0:  # NaN is not
            facts.append(f"refeed flip rates {points(100 * row.flip_gap)} apart")
        found.append(RankedProblem(comparison.problems[number][1], ", ".join(facts)))
    return found


def by_merit(rollouts: Sequence[Mapping[str, Any]]) -> list[int]:
    """Rollout numbers, best first: right before ungraded before wrong, finished before cut off, short before long."""

    def merit(row: Mapping[str, Any]) -> tuple[Any, ...]:
        verdict = {True: 0, None: 1, False: 2}[row["correct"]]
        return verdict, row["finish_reason"] == "length", row["tokens"], row["rollout"]

    return [row["rollout"] for row in sorted(rollouts, key=merit)]


def offered(rollouts: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Rollouts by number as a picker offers them: the best, the worst, then the others by number."""
    ranked = by_merit(rollouts)
    rows = {row["rollout"]: row for row in rollouts}
    if len(ranked) < 2:
        return {number: _rollout_title(rows[number], "") for number in ranked}
    best, worst = ranked[0], ranked[-1]
    found = {best: _rollout_title(rows[best], "best, "), worst: _rollout_title(rows[worst], "worst, ")}
    return found | {number: _rollout_title(rows[number], "") for number in sorted(rows) if number not in found}


def _rollout_title(row: Mapping[str, Any], rank: str) -> str:
    verdict = {True: "right", False: "wrong", None: "not graded"}[row["correct"]]
    cut = ", cut off" if row["finish_reason"] == "length" else ""
    return f"{row['rollout']}: {rank}{verdict}{cut}, {row['tokens']} tokens"


def rollout_choices(there: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[tuple[str, str, dict[int, int]]]:
    """What a click can put beside each other: label, icon, and the rollout of each campaign, by its index."""
    ranked = {place: by_merit(rows) for place, rows in there.items()}
    found = [
        ("Best of each", ":material/thumb_up:", {place: numbers[0] for place, numbers in ranked.items()}),
        ("Worst of each", ":material/thumb_down:", {place: numbers[-1] for place, numbers in ranked.items()}),
    ]
    first, *others = ranked.values()
    common = [number for number in first if all(number in numbers for numbers in others)]
    if common:
        found.append(("Same number", ":material/tag:", dict.fromkeys(there, common[0])))
    return found


def chosen_rollouts(
    there: Mapping[int, Sequence[Mapping[str, Any]]], asked: Sequence[str], alike: bool
) -> dict[int, int]:
    """The rollout of each campaign, by its index: what the address asks for, else a first choice.

    Rollouts of one model (`alike`) and one number begin with the same text; of different models the best are shown.
    """
    choices = {label: choice for label, _, choice in rollout_choices(there)}
    found = dict(choices.get("Same number", choices["Best of each"]) if alike else choices["Best of each"])
    if len(asked) == len(there):
        for (place, rows), number in zip(there.items(), asked, strict=True):
            if any(str(row["rollout"]) == number for row in rows):
                found[place] = int(number)
    return found


def same_model(comparison: Comparison) -> bool:
    """Whether all campaigns are of one model, so that rollouts of one number begin alike."""
    return len({row["model"] for row in comparison.rows}) == 1 and comparison.rows[0]["model"] is not None


# What the numbers say


def headline(first: str, second: str, found: Sequence[Difference]) -> str:
    """The difference of the excess, or where there is none of the refeed flip rate, and of the accuracy."""
    by_key = {one.key: one for one in found}
    parts = []
    for key, what in (("excess", "excess"), ("accuracy", "right rollouts")):
        one = by_key[key]
        if one.difference is None:
            continue
        sure = "no interval" if one.ci95 is None else f"95 % {signed_range(one.ci95, points)}"
        verdict = "clear" if one.clear else "not clear"
        parts.append(f"{what} {signed(one.difference, points)} ({sure}, {verdict})")
    if not parts:
        return f"{second} and {first} share nothing that both measured."
    return f"{second} against {first}: {', '.join(parts)}."


def shared_sentence(comparison: Comparison, first: int, second: int) -> str:
    """Over how many problems two campaigns are compared, and what that leaves out."""
    mine, theirs = comparison.names[first], comparison.names[second]
    only_first, only_second = comparison.unshared(first, second)
    shared = comparison.shared(first, second)
    start = f"Differences are over the {count(shared)} problems that both finished"
    if not shared:
        start = "The two campaigns share no problem, so no difference is defined"
    left = [
        f"{count(number)} of {name} alone" for number, name in ((only_first, mine), (only_second, theirs)) if number
    ]
    return f"{start}; left out: {' and '.join(left)}." if left else f"{start}."


def contrasts(found: Sequence[Difference]) -> list[Contrast]:
    """The differences as the figure takes them."""
    return [Contrast(one.label, one.kind == "points", one.difference, one.ci95) for one in found]


@dataclass(frozen=True, slots=True)
class Places:
    """Flips by one kind of place."""

    key: str
    title: str
    axis: str
    bins: list[Any]
    campaigns: list[tuple[str, list[BinFlips]]]

    @property
    def rates(self) -> list[tuple[str, list[PlaceRate]]]:
        return [(name, [_place_rate(one) for one in found]) for name, found in self.campaigns]


def places(store: Store, comparison: Comparison, names: Sequence[str]) -> list[Places]:
    """Flips by position decile and by margin, each campaign in the same bins."""
    return _places(store, tuple(comparison.campaigns), tuple(names), store.revision(comparison.campaigns))


@lru_cache(maxsize=16)
def _places(store: Store, campaigns: tuple[str, ...], names: tuple[str, ...], _revision: Any) -> list[Places]:
    comparison = compare(store, campaigns)
    kinds: list[tuple[str, str, str, Any, Callable[[Any], Any]]] = [
        (
            "position",
            "Flips by position",
            "position in prompt + generated ids, deciles of the pivots",
            position_bins(comparison.sides),
            lambda side: side.position,
        ),
        (
            "margin",
            "Flips by margin",
            "margin top1 − top2, nats",
            margin_bins(comparison.sides),
            lambda side: side.margin,
        ),
    ]
    return [
        Places(
            key,
            title,
            axis,
            bins,
            [
                (name, binned_flips(side, values(side), bins))
                for name, side in zip(names, comparison.sides, strict=True)
            ],
        )
        for key, title, axis, bins, values in kinds
        if bins
    ]


def _place_rate(one: BinFlips) -> PlaceRate:
    return PlaceRate(
        one.refeed.rate if one.refeed else None,
        one.refeed_ci95,
        one.replica.rate if one.replica else None,
        one.refeed.flips if one.refeed else None,
        one.eligible,
    )


# Critical tokens in context

SELECTED_BY = ("both", "first", "second")


def critical_rows(
    store: Store, comparison: Comparison, first: int, second: int, found: CriticalTokens
) -> list[dict[str, Any]]:
    """The selected tokens that both campaigns measured, each in its text, the largest |Â| first."""
    rows = found.rows.head(MOST_TOKENS)
    places = list(zip(rows["problem"].tolist(), rows["rollout"].tolist(), rows["position"].tolist(), strict=True))
    campaign = comparison.campaigns[first]
    windows = store.windows(campaign, places, before=6, after=12)  # what a table's cell shows without its end cut off
    texts = store.token_bytes(campaign, {id for before, token, after in windows for id in (*before, token, *after)})
    k = comparison.sides[first].credits.k, comparison.sides[second].credits.k
    return [
        {
            "problem": row["problem"],
            "rollout": row["rollout"],
            "position": row["position"],
            "text": in_context(window, texts),
            "first": row["first"] / k[0],
            "second": row["second"] / k[1],
            "selected_by": row["selected_by"],
        }
        for row, window in zip(rows.to_dict("records"), windows, strict=True)
    ]


def in_context(window: tuple[Sequence[int], int, Sequence[int]], texts: Mapping[int, bytes]) -> str:
    """A token between ⟦ and ⟧ in the text around it, line breaks shown as ↵."""
    before, token, after = window
    pieces = display_text([texts.get(id, b"\xef\xbf\xbd") for id in (*before, token, *after)])
    here = len(before)
    text = f"{''.join(pieces[:here])}⟦{pieces[here]}⟧{''.join(pieces[here + 1 :])}"
    return text.replace("\n", "↵")


def overlap_sentence(first: str, second: str, found: CriticalTokens) -> str:
    """How far the two select the same tokens."""
    either = found.both + found.only_first + found.only_second
    threshold = f"|Â| ≥ {float(found.threshold):g}"
    if not found.measured:
        return "No pivot lies in text that both campaigns sampled alike and measured."
    if not either:
        return f"Neither selects any of the {count(found.measured)} pivots that both measured at {threshold}."
    return (
        f"Of {count(found.measured)} pivots in common text that both measured, {count(found.both)} are critical "
        f"in both at {threshold}, {count(found.only_first)} only in {first}, "
        f"{count(found.only_second)} only in {second}: "
        f"Jaccard {decimal(found.jaccard)}, by chance {decimal(found.chance)}."
    )


def overlap_doubt(first: str, second: str, found: CriticalTokens) -> str:
    """What the overlap leaves out."""
    parts = []
    for name, other, unmeasured, apart in (
        (first, second, found.unmeasured[0], found.apart[0]),
        (second, first, found.unmeasured[1], found.apart[1]),
    ):
        left = [f"{count(unmeasured)} that {other} did not measure"] if unmeasured else []
        left += [f"{count(apart)} where the texts have parted"] if apart else []
        if left:
            parts.append(f"{name} selects a further {' and '.join(left)}")
    start = "Only text that both rollouts have token for token is compared"
    return f"{start}; {'; '.join(parts)}." if parts else f"{start}."
