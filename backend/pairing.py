"""What a comparison asks of the stored rollouts, as SQL: how they ended, and how far two campaigns' are one text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    import pandas as pd

Connection = duckdb.DuckDBPyConnection

_OUTCOMES = """
    SELECT problem, count(*) FILTER (correct) AS "right", count(correct) AS graded,
        count(*) FILTER (len(ids) > 0) AS texts
    FROM rollout WHERE campaign = ? GROUP BY problem ORDER BY problem
"""

# Where nothing differs within the shorter one's length, all of that is common.
_COMMON = """
    SELECT problem, rollout, coalesce(
        list_position(list_transform(range(least(len(mine), len(theirs))),
            lambda i: mine[i + 1] <> theirs[i + 1]), true) - 1,
        least(len(mine), len(theirs))
    ) AS common
    FROM (SELECT problem, rollout, prompt_ids || ids AS mine FROM rollout WHERE campaign = $one AND len(ids) > 0)
    JOIN (SELECT problem, rollout, prompt_ids || ids AS theirs FROM rollout WHERE campaign = $other AND len(ids) > 0)
        USING (problem, rollout)
    ORDER BY problem, rollout
"""


def outcomes(cursor: Connection, campaign: str) -> pd.DataFrame:
    return cursor.execute(_OUTCOMES, [campaign]).df()


def common_prefixes(cursor: Connection, one: str, other: str) -> pd.DataFrame:
    return cursor.execute(_COMMON, {"one": one, "other": other}).df()


_SHARED = """
    SELECT theirs.campaign, count(*) FROM problem mine
    JOIN problem theirs ON mine.problem = theirs.problem AND mine.source IS NOT DISTINCT FROM theirs.source
    WHERE mine.campaign = $campaign AND theirs.campaign <> $campaign AND mine.state = 'done' AND theirs.state = 'done'
    GROUP BY theirs.campaign
"""


def shared_problems(cursor: Connection, campaign: str) -> dict[str, int]:
    return dict(cursor.execute(_SHARED, {"campaign": campaign}).fetchall())


_WINDOWS = """
    SELECT list_slice(whole, greatest(position - $before, 0) + 1, position) AS before,
        whole[position + 1] AS token, list_slice(whole, position + 2, position + 1 + $after) AS after
    FROM (SELECT unnest($problems) AS problem, unnest($rollouts) AS rollout, unnest($positions) AS position,
        unnest(range(len($positions))) AS place)
    JOIN (SELECT problem, rollout, prompt_ids || ids AS whole FROM rollout WHERE campaign = $campaign)
        USING (problem, rollout) ORDER BY place
"""


def windows(
    cursor: Connection, campaign: str, places: list[tuple[str, int, int]], before: int, after: int
) -> list[tuple[list[int], int, list[int]]]:
    if not places:
        return []
    problems, rollouts, positions = (list(column) for column in zip(*places, strict=True))
    parameters = {
        "campaign": campaign,
        "problems": problems,
        "rollouts": rollouts,
        "positions": positions,
        "before": before,
        "after": after,
    }
    return cursor.execute(_WINDOWS, parameters).fetchall()
