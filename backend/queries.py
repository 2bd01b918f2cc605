"""What the store can be asked, as SQL; each function takes a cursor and gives plain data or records' tables."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from backend import shards
from backend.errors import UserError
from backend.records import PASSES

Connection = duckdb.DuckDBPyConnection

_CAMPAIGN = """
    SELECT c.campaign, c.name, c.model, c.engine, c.dtype, c.k, c.batch_invariant, c.attention_backend, c.passes,
        coalesce(p.done, 0) AS problems, coalesce(r.rollouts, 0) AS rollouts, coalesce(v.planned, 0) AS pivots,
        c.bundled, c.state, c.origin, c.final, strftime(c.created, '%Y-%m-%dT%H:%M:%SZ') AS created,
        coalesce(p.screened_out, 0) AS screened_out, coalesce(p.failed, 0) AS failed,
        coalesce(v.clicked, 0) AS clicked
    FROM campaign c
    LEFT JOIN (
        SELECT campaign, count(*) FILTER (state = 'done') AS done,
            count(*) FILTER (state = 'screened_out') AS screened_out, count(*) FILTER (state = 'failed') AS failed
        FROM problem GROUP BY campaign
    ) p USING (campaign)
    LEFT JOIN (SELECT campaign, count(*) AS rollouts FROM rollout GROUP BY campaign) r USING (campaign)
    LEFT JOIN (
        SELECT campaign, count(*) FILTER (planned) AS planned, count(*) FILTER (NOT planned) AS clicked
        FROM "pivot" GROUP BY campaign
    ) v USING (campaign)
"""

# Imported problem sets are often numbered: 2 comes before 13.
_PROBLEM_ORDER = "ORDER BY try_cast(problem AS BIGINT) NULLS LAST, problem"


def first(cursor: Connection, query: str, parameters: Sequence[object] = ()) -> tuple[Any, ...] | None:
    """A query's first row. Fetches them all: DuckDB takes no other work on a cursor with an unfinished result."""
    found = cursor.execute(query, list(parameters)).fetchall()
    return found[0] if found else None


def rows(
    cursor: Connection, query: str, parameters: Sequence[object] | Mapping[str, object] = ()
) -> list[dict[str, Any]]:
    """A query's rows as dicts."""
    cursor.execute(query, parameters if isinstance(parameters, dict) else list(parameters))
    names = [column[0] for column in cursor.description or []]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def campaigns(cursor: Connection) -> list[dict[str, Any]]:
    return rows(cursor, _CAMPAIGN + " ORDER BY c.bundled, c.created, c.name, c.campaign")


def campaign(cursor: Connection, campaign: str) -> dict[str, Any]:
    (found,) = rows(cursor, _CAMPAIGN + " WHERE c.campaign = ?", [campaign])
    (settings,) = rows(cursor, "SELECT settings FROM campaign WHERE campaign = ?", [campaign])
    return {**found, "settings": json.loads(settings["settings"])}


def find_campaign(cursor: Connection, id_or_unique_name: str) -> str:
    known = cursor.execute("SELECT campaign, name FROM campaign ORDER BY name, campaign").fetchall()
    if any(id_or_unique_name == campaign for campaign, _ in known):
        return id_or_unique_name
    named = [campaign for campaign, name in known if name == id_or_unique_name]
    if len(named) == 1:
        return str(named[0])
    if named:
        raise UserError(
            f"{len(named)} campaigns are named {id_or_unique_name!r}; give one of the ids {', '.join(named)}"
        )
    if not known:
        raise UserError(f"there is no campaign {id_or_unique_name!r}: the store holds none yet; run or import one")
    near = difflib.get_close_matches(id_or_unique_name, [text for row in known for text in row], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(name for _, name in known[:10])}"
    raise UserError(f"there is no campaign {id_or_unique_name!r}; {hint}")


def is_as_shipped(cursor: Connection, campaign: str) -> bool:
    query = """
        SELECT 1 FROM campaign c WHERE campaign = ? AND origin = 'bundled'
        AND NOT EXISTS (SELECT 1 FROM measurement m WHERE m.campaign = c.campaign AND m.run <> 'campaign')
    """
    return first(cursor, query, [campaign]) is not None


def ledger(cursor: Connection, campaign: str) -> tuple[set[str], dict[str, str]]:
    """Names of the shards taken in for good, and the hash by name of those whose problem had failed."""
    query = """
        SELECT shard, sha256, coalesce(p.state = 'failed', false) FROM shard_ledger l
        LEFT JOIN problem p USING (campaign, problem) WHERE l.campaign = ?
    """
    found = cursor.execute(query, [campaign]).fetchall()
    return {name for name, _, failed in found if not failed}, {name: sha for name, sha, failed in found if failed}


def problems(cursor: Connection, campaign: str) -> list[dict[str, Any]]:
    query = f"""
        SELECT problem, question, gold, source, state, error, seconds, engine, stated,
            coalesce(rollouts, 0) AS rollouts, correct, coalesce(pivots, 0) AS pivots
        FROM (SELECT * EXCLUDE (campaign) FROM problem WHERE campaign = $1)
        LEFT JOIN (
            SELECT problem, count(*) AS rollouts, count(*) FILTER (correct) AS correct
            FROM rollout WHERE campaign = $1 GROUP BY problem
        ) USING (problem)
        LEFT JOIN (
            SELECT problem, count(*) AS pivots FROM "pivot" WHERE campaign = $1 AND planned GROUP BY problem
        ) USING (problem)
        {_PROBLEM_ORDER}
    """  # noqa: S608 (our own constant)
    found = rows(cursor, query, [campaign])
    return [{**row, "stated": json.loads(row["stated"]) if row["stated"] else None} for row in found]


def rollouts(cursor: Connection, campaign: str, problem: str) -> list[dict[str, Any]]:
    query = """
        SELECT rollout, seed, len(prompt_ids) AS prompt_tokens, len(ids) AS tokens, finish_reason, answer, correct,
            coalesce(pivots, 0) AS pivots
        FROM rollout LEFT JOIN (
            SELECT rollout, count(*) AS pivots FROM "pivot" WHERE campaign = $1 AND problem = $2 GROUP BY rollout
        ) USING (rollout)
        WHERE campaign = $1 AND problem = $2 ORDER BY rollout
    """
    return rows(cursor, query, [campaign, problem])


def runs_at(cursor: Connection, campaign: str, problem: str, rollout: int, position: int) -> set[str]:
    query = """
        SELECT DISTINCT run FROM measurement WHERE campaign = ? AND problem = ? AND rollout = ? AND position = ?
    """
    return {run for (run,) in cursor.execute(query, [campaign, problem, rollout, position]).fetchall()}


def most_telling(cursor: Connection, campaign: str) -> tuple[str, int, int] | None:
    query = """
        SELECT problem, rollout, first(position ORDER BY turned DESC, abs(exact) DESC NULLS LAST, position) FROM (
            SELECT *, coalesce(sign(exact) <> sign(refeed) AND exact <> 0, false) AS turned FROM (
                SELECT problem, rollout, position,
                    any_value(numerator) FILTER (pass = 'exact') AS exact,
                    any_value(numerator) FILTER (pass = 'refeed') AS refeed
                FROM measurement WHERE campaign = $1 AND run = 'campaign' GROUP BY problem, rollout, position
            )
        ) GROUP BY problem, rollout
        ORDER BY problem IN (SELECT problem FROM continuation WHERE campaign = $1) DESC,
            count(*) FILTER (turned) DESC, sum(abs(exact)) DESC NULLS LAST, problem, rollout
        LIMIT 1
    """
    found = first(cursor, query, [campaign])
    return (found[0], found[1], found[2]) if found else None


def _pack(struct: pa.StructType) -> str:
    return "struct_pack(" + ", ".join(f'"{item.name}" := "{item.name}"' for item in struct) + ")"


def _list(struct: pa.StructType, order: str) -> str:
    return f"list({_pack(struct)} ORDER BY {order})"


_TREE = f"""
    WITH held AS (SELECT unnest($problems) AS problem),
    c AS (
        SELECT problem, rollout, position, pass, run, {_list(shards.CONTINUATION, "arm, i")} AS continuations
        FROM continuation SEMI JOIN held USING (problem)
        WHERE campaign = $campaign {{only}} GROUP BY ALL
    ),
    m AS (
        SELECT problem, rollout, position,
            {_list(shards.MEASUREMENT, "run <> 'campaign', run, list_position($passes, pass)")} AS measurements
        FROM (
            SELECT m.*, coalesce(continuations, []) AS continuations
            FROM measurement m LEFT JOIN c USING (problem, rollout, position, pass, run)
            SEMI JOIN held USING (problem)
            WHERE campaign = $campaign {{only}}
        ) GROUP BY ALL
    ),
    v AS (
        SELECT problem, rollout, {_list(shards.PIVOT, "position")} AS pivots
        FROM (
            SELECT v.*, coalesce(measurements, []) AS measurements
            FROM "pivot" v LEFT JOIN m USING (problem, rollout, position)
            SEMI JOIN held USING (problem)
            WHERE campaign = $campaign {{only}}
        ) GROUP BY ALL
    ),
    r AS (
        SELECT problem, {_list(shards.ROLLOUT, "rollout")} AS rollouts
        FROM (
            SELECT r.*, coalesce(pivots, []) AS pivots FROM rollout r LEFT JOIN v USING (problem, rollout)
            SEMI JOIN held USING (problem)
            WHERE campaign = $campaign {{only}}
        ) GROUP BY ALL
    )
"""  # noqa: S608 (built of our own names)

_TEXTS = f"""
    ,
    used AS (
        SELECT problem, unnest(prompt_ids || ids || flatten(topk_ids)) AS id
        FROM rollout SEMI JOIN held USING (problem) WHERE campaign = $campaign
        UNION
        SELECT problem, unnest(ids) FROM continuation SEMI JOIN held USING (problem)
        WHERE campaign = $campaign
        UNION
        SELECT problem, unnest([actual, alternative]) FROM "pivot" SEMI JOIN held USING (problem)
        WHERE campaign = $campaign
        UNION
        SELECT problem, alternative FROM measurement SEMI JOIN held USING (problem)
        WHERE campaign = $campaign
    ),
    t AS (
        SELECT problem, {_list(shards.TOKEN, "id")} AS tokens
        FROM used JOIN (SELECT id, bytes FROM token WHERE campaign = $campaign) USING (id) GROUP BY problem
    )
"""  # noqa: S608 (built of our own names)

_WHOLE = f"""
    SELECT problem, question, gold, source, state, error, seconds, p.engine, e.info AS engine_info,
        coalesce(rollouts, []) AS rollouts, {{tokens}} AS tokens, stated
    FROM problem p SEMI JOIN held USING (problem)
    LEFT JOIN r USING (problem) {{texts}} LEFT JOIN engine e ON e.digest = p.engine
    WHERE campaign = $campaign {_PROBLEM_ORDER}
"""  # noqa: S608 (built of our own names)

_RECORDS = (
    _TREE.format(only="") + _TEXTS + _WHOLE.format(tokens="coalesce(tokens, [])", texts="LEFT JOIN t USING (problem)")
)
_ONE_ROLLOUT = _TREE.format(only="AND rollout = $rollout") + _WHOLE.format(tokens="[]", texts="")


def nested(cursor: Connection, campaign: str, problems: Sequence[str], rollout: int | None = None) -> pa.Table:
    """Rows under `shards.SCHEMA`, the tree put together again in its canonical order.

    With `rollout`, that one alone and no token texts.
    """
    parameters: dict[str, Any] = {"campaign": campaign, "problems": list(problems), "passes": list(PASSES)}
    if rollout is None:
        return cursor.sql(_RECORDS, params=parameters).to_arrow_table().cast(shards.SCHEMA)
    return cursor.sql(_ONE_ROLLOUT, params={**parameters, "rollout": rollout}).to_arrow_table().cast(shards.SCHEMA)


_BY_PASS = f"list_position({list(PASSES)}, pass)"
_CSV_ORDER = {
    "problem": "problem",
    "rollout": "problem, rollout",
    "pivot": "problem, rollout, position",
    "measurement": f"problem, rollout, position, run, {_BY_PASS}",
    "continuation": f"problem, rollout, position, run, {_BY_PASS}, arm, i",
    "token": "id",
}
CSV_TABLES = tuple(_CSV_ORDER)
"""The tables that `write_csv` can write."""

_CSV_FORM = {
    "BLOB": "hex({})",
    # As JSON, in the spelling that JavaScript and Python read for what JSON itself cannot say.
    "DOUBLE[]": "replace(replace({}::VARCHAR, 'inf', 'Infinity'), 'nan', 'NaN')",
    "DOUBLE[][]": "replace(replace({}::VARCHAR, 'inf', 'Infinity'), 'nan', 'NaN')",
}


def write_csv(cursor: Connection, table: str, campaign: str, path: Path) -> None:
    """A campaign's rows of one table as CSV: lists as JSON, bytes in hexadecimal, nothing for what is unknown."""
    hidden = {"pivot": ["id"], "measurement": ["pivot_id"]}.get(table, [])
    described = cursor.execute(f'DESCRIBE "{table}"').fetchall()
    columns = ", ".join(
        _CSV_FORM.get(kind, "{}").format(f'"{name}"') + f' AS "{name}"'
        for name, kind, *_ in described
        if name not in hidden
    )
    query = f'SELECT {columns} FROM "{table}" WHERE campaign = ? ORDER BY {_CSV_ORDER[table]}'  # noqa: S608 (own names)
    cursor.sql(query, params=[campaign]).write_csv(str(path), header=True)


_WIDE = f"""
    SELECT * FROM (SELECT p.problem, p.rollout, p.position, p.margin, r.correct, len(r.prompt_ids) AS prompt_tokens,
        max(numerator) FILTER (pass = 'exact') AS exact, max(numerator) FILTER (pass = 'replica') AS replica,
        max(numerator) FILTER (pass = 'refeed') AS refeed,
        max(cache_misses) FILTER (pass = 'exact') AS misses_exact,
        max(cache_misses) FILTER (pass = 'replica') AS misses_replica,
        bool_or(probe_diverged) FILTER (pass = 'replica') AS diverged_replica,
        max(probe_delta) FILTER (pass = 'replica') AS delta_replica,
        bool_or(probe_diverged) FILTER (pass = 'refeed') AS diverged_refeed,
        max(probe_delta) FILTER (pass = 'refeed') AS delta_refeed
    FROM "pivot" p
    JOIN rollout r USING (campaign, problem, rollout)
    LEFT JOIN (SELECT * FROM measurement WHERE campaign = $1 AND run = 'campaign') m ON m.pivot_id = p.id
    WHERE p.campaign = $1 AND p.planned GROUP BY ALL)
    {_PROBLEM_ORDER}, rollout, position
"""  # noqa: S608 (our own constant)


def wide(cursor: Connection, campaign: str) -> list[dict[str, Any]]:
    """One dict a planned pivot with the standard passes side by side, in order."""
    return rows(cursor, _WIDE, [campaign])


def token_bytes(cursor: Connection, campaign: str, ids: Iterable[int]) -> dict[int, bytes]:
    wanted = sorted(set(ids))
    query = "SELECT id, bytes FROM token WHERE campaign = ? AND id IN (SELECT unnest(?::INTEGER[]))"
    return dict(cursor.execute(query, [campaign, wanted]).fetchall())


def engine_facts(cursor: Connection, digests: Sequence[str]) -> dict[str, dict[str, Any]]:
    query = "SELECT digest, info FROM engine WHERE list_contains(?, digest) ORDER BY digest"
    return {digest: json.loads(info) for digest, info in cursor.execute(query, [list(digests)]).fetchall()}


def engines(cursor: Connection, campaign: str) -> dict[str, dict[str, Any]]:
    query = """
        SELECT digest, info FROM engine WHERE digest IN (
            SELECT engine FROM problem WHERE campaign = $1 UNION SELECT engine FROM measurement WHERE campaign = $1
        ) ORDER BY digest
    """
    return {digest: json.loads(info) for digest, info in cursor.execute(query, [campaign]).fetchall()}
