"""Campaigns out of the store as the sides of a comparison, their problems numbered alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from backend.comparing import HALF, Difference, Side, differences, shared_problems
from backend.credit import Credits, Ints
from backend.critical import CriticalTokens, critical_tokens
from backend.errors import UserError
from backend.store import Store

FEWEST, MOST = 2, 4
"""Campaigns that a comparison takes."""

Key = tuple[str | None, str]
"""A problem: its set and its id. Problems of different sets are different ones, whatever their ids."""


@dataclass(frozen=True)
class Comparison:
    """Two to four campaigns over numbered problems."""

    rows: list[dict[str, Any]]
    """The campaigns' rows of the store."""
    problems: list[Key]
    """What a problem number stands for."""
    sides: list[Side]
    texts: list[bool]
    """Which campaigns hold transcripts: a receipt has measurements alone."""

    @property
    def campaigns(self) -> list[str]:
        return [row["campaign"] for row in self.rows]

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.rows]

    def shared(self, first: int, second: int) -> int:
        """How many problems two of the campaigns, by index, both finished."""
        return len(shared_problems(self.sides[first], self.sides[second]))

    def unshared(self, first: int, second: int) -> tuple[int, int]:
        """How many problems each of two campaigns finished that the other did not."""
        mine, theirs = self.sides[first].finished, self.sides[second].finished
        return int(np.count_nonzero(mine & ~theirs)), int(np.count_nonzero(theirs & ~mine))


def proposed(store: Store, campaigns: Sequence[str]) -> list[str]:
    """What to compare unless the reader says: the first of the campaigns, and the one it shares most problems with."""
    first, *others = campaigns
    shared = store.shared_problems(first)
    return [first, max(others, key=lambda campaign: shared.get(campaign, 0))]


def compare(store: Store, campaigns: Sequence[str]) -> Comparison:
    """The campaigns (ids or unique names), in the order given. Raises `UserError` for other than two to four."""
    ids = tuple(dict.fromkeys(store.find_campaign(campaign) for campaign in campaigns))
    if not FEWEST <= len(ids) <= MOST:
        raise UserError(f"a comparison takes {FEWEST} to {MOST} different campaigns, not {len(ids)}")
    return _compare(store, ids, store.revision(ids))


@lru_cache(maxsize=16)
def _compare(store: Store, campaigns: tuple[str, ...], _revision: tuple[Any, ...]) -> Comparison:
    rows = [store.campaign(campaign) for campaign in campaigns]
    finished = [_finished(store, campaign) for campaign in campaigns]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(key for keys in finished for key in keys))}
    outcomes = [store.outcomes(campaign) for campaign in campaigns]
    sides = [_side(store, *one, numbers) for one in zip(rows, finished, outcomes, strict=True)]
    return Comparison(rows, list(numbers), sides, [bool((one["texts"] > 0).any()) for one in outcomes])


def _finished(store: Store, campaign: str) -> list[Key]:
    return [(row["source"], row["problem"]) for row in store.problems(campaign) if row["state"] == "done"]


def _side(
    store: Store, row: Mapping[str, Any], keys: Sequence[Key], outcomes: pd.DataFrame, numbers: Mapping[Key, int]
) -> Side:
    number = {problem: numbers[source, problem] for source, problem in keys}
    frame = store.credits([row["campaign"]])
    k = row["k"] or 1
    kept = (frame["complete"] & (frame["k"] == k).fillna(False) & frame["problem"].isin(list(number))).to_numpy(
        dtype=np.bool_
    )
    frame = frame[kept]
    by_category = np.array([number.get(name, -1) for name in frame["problem"].cat.categories], dtype=np.int64)
    cluster: Ints = by_category[frame["problem"].cat.codes.to_numpy()] if len(frame) else np.zeros(0, dtype=np.int64)
    names = [name for name in row["passes"] if name in frame.columns]
    passes = {name: frame[name].to_numpy(dtype=np.int64, na_value=0) for name in names}
    finished = np.zeros(len(numbers), dtype=np.bool_)
    finished[list(number.values())] = True
    return Side(
        Credits(k, cluster, passes or {"exact": np.zeros(0, dtype=np.int64)}),
        rollout=frame["rollout"].to_numpy(dtype=np.int64),
        position=frame["position"].to_numpy(dtype=np.int64),
        margin=frame["margin"].to_numpy(dtype=np.float64, na_value=np.nan),
        finished=finished,
        right=_spread(outcomes, "right", number, len(numbers)),
        graded=_spread(outcomes, "graded", number, len(numbers)),
        diverged={name: _verdicts(frame[f"probe_diverged_{name}"]) for name in names if name != "exact"},
        bit_exact={name: _verdicts(frame[f"probe_delta_{name}"] == 0) for name in names if name != "exact"},
    )


def _spread(outcomes: pd.DataFrame, column: str, number: Mapping[str, int], problems: int) -> Ints:
    """A column by problem number, 0 where a problem has no rollout."""
    found = np.zeros(problems, dtype=np.int64)
    held = outcomes[outcomes["problem"].isin(list(number))]
    found[held["problem"].map(number).to_numpy(dtype=np.int64)] = held[column].to_numpy(dtype=np.int64)
    return found


def _verdicts(column: pd.Series) -> npt.NDArray[np.int64]:
    return column.astype("Int64").to_numpy(dtype=np.int64, na_value=-1)


def differences_of(store: Store, comparison: Comparison, first: int, second: int) -> list[Difference]:
    """How the second campaign, by index, differs from the first, over the problems both finished."""
    pair = comparison.campaigns[first], comparison.campaigns[second]
    return _differences(store, pair, store.revision(pair))


@lru_cache(maxsize=32)
def _differences(store: Store, pair: tuple[str, str], revision: tuple[Any, ...]) -> list[Difference]:
    first, second = _compare(store, pair, revision).sides
    return differences(first, second)


def critical_of(
    store: Store, comparison: Comparison, first: int, second: int, threshold: Fraction = HALF
) -> CriticalTokens | None:
    """Which critical tokens two campaigns, by index, select, with the problems' ids in the rows.

    None where the campaigns hold no rollout of the same problem and number with its text.
    """
    pair = comparison.campaigns[first], comparison.campaigns[second]
    return _critical(store, pair, threshold, store.revision(pair))


@lru_cache(maxsize=32)
def _critical(
    store: Store, pair: tuple[str, str], threshold: Fraction, revision: tuple[Any, ...]
) -> CriticalTokens | None:
    comparison = _compare(store, pair, revision)
    first, second = comparison.sides
    common = store.common_prefixes(*pair)
    both = set(shared_problems(first, second).tolist())
    number = {problem: code for code, (_, problem) in enumerate(comparison.problems) if code in both}
    common = common[common["problem"].isin(list(number))].assign(problem=lambda frame: frame["problem"].map(number))
    if common.empty:
        return None
    found = critical_tokens(first, second, common.astype("int64"), threshold)
    named = [comparison.problems[code][1] for code in found.rows["problem"]]
    return replace(found, rows=found.rows.assign(problem=named))
