"""What a comparison asks of the stored rollouts, as SQL: how they ended, and how far two campaigns' are one text."""

from __future__ import annotations

import duckdb
import pandas as pd

Connection = duckdb.DuckDBPyConnection

_OUTCOMES = """
    SELECT problem, count(*) FILTER (correct) AS "right", count(correct) AS graded
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
