"""Merging nested record tables into the store's flat ones, by SQL.

What is stored is never overwritten: rows whose key is there already are left, missing ones are added. The caller
holds the write lock and a transaction, which is what keeps the keys unique.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from backend import schema
from backend.errors import UserError
from backend.queries import first
from backend.records import PASSES
from backend.settings import CampaignSettings

Connection = duckdb.DuckDBPyConnection
Origin = Literal["run", "live", "import", "bundled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """A campaign's own row. What is not known is None."""

    campaign: str
    name: str
    origin: Origin
    state: str
    """`running`, `done`, `interrupted`, `cancelled`, `failed`, `live` or `imported`."""
    model: str | None = None
    engine: str | None = None
    """`transformers`, `vllm` or `scripted`."""
    dtype: str | None = None
    k: int | None = None
    batch_invariant: bool | None = None
    attention_backend: str | None = None
    passes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The campaign file's keys; of an imported campaign those that its file states, and the rest under `stated`."""
    final: bool | None = None
    """What a receipt says of itself: False for one cut off in the middle."""

    @classmethod
    def of(cls, settings: CampaignSettings, *, origin: Origin = "run", state: str = "running") -> Campaign:
        """The row of a campaign that is run here."""
        backend = settings.engine_options.get("attention_backend")
        return cls(
            campaign=settings.campaign,
            name=settings.name,
            origin=origin,
            state=state,
            model=settings.model,
            engine=settings.engine,
            dtype=settings.dtype,
            k=settings.k,
            batch_invariant=settings.batch_invariant,
            attention_backend=backend,
            passes=settings.passes,
            settings=json.loads(settings.document()),
        )


_LEVELS = (
    ("in_rollout", "in_problem", "rollouts", ("problem",)),
    ("in_pivot", "in_rollout", "pivots", ("problem", "rollout")),
    ("in_measurement", "in_pivot", "measurements", ("problem", "rollout", "position")),
    ("in_continuation", "in_measurement", "continuations", ("problem", "rollout", "position", "pass", "run")),
    ("in_token", "in_problem", "tokens", ("problem",)),
)
"""Each table of rows that come in: its name, the one above, the latter's column that nests it, and its keys there."""

_KEYS = {
    "in_problem": ("problem",),
    "in_rollout": ("problem", "rollout"),
    "in_pivot": ("problem", "rollout", "position"),
    "in_measurement": ("problem", "rollout", "position", "pass", "run"),
    "in_continuation": ("problem", "rollout", "position", "pass", "run", "arm", "i"),
}

_STATEMENTS = (
    """
    INSERT OR IGNORE INTO engine SELECT DISTINCT engine, engine_info FROM in_problem
    WHERE engine IS NOT NULL AND engine_info IS NOT NULL
    """,
    """
    DELETE FROM problem WHERE campaign = $campaign AND state = 'failed'
    AND problem IN (SELECT problem FROM in_problem)
    """,
    """
    INSERT OR IGNORE INTO problem BY NAME
    SELECT $campaign AS campaign, * EXCLUDE (engine_info, rollouts, tokens) FROM in_problem
    """,
    """
    INSERT INTO rollout BY NAME
    SELECT $campaign AS campaign, n.* EXCLUDE (pivots) FROM in_rollout n
    WHERE NOT EXISTS (
        SELECT 1 FROM rollout o WHERE o.campaign = $campaign AND o.problem = n.problem AND o.rollout = n.rollout
    )
    """,
    """
    UPDATE "pivot" AS o SET planned = true FROM in_pivot n
    WHERE o.campaign = $campaign AND NOT o.planned AND n.planned
    AND o.problem = n.problem AND o.rollout = n.rollout AND o.position = n.position
    """,
    """
    INSERT INTO "pivot" BY NAME
    SELECT (SELECT coalesce(max(id), 0) FROM "pivot") + row_number() OVER () AS id, $campaign AS campaign,
        n.* EXCLUDE (measurements)
    FROM in_pivot n
    WHERE NOT EXISTS (
        SELECT 1 FROM "pivot" o
        WHERE o.campaign = $campaign AND o.problem = n.problem AND o.rollout = n.rollout AND o.position = n.position
    )
    """,
    # Found by the pivots' numbers: old measurements have other numbers than new pivots, so few of them are read.
    """
    CREATE OR REPLACE TEMP TABLE new_measurement AS
    SELECT p.id AS pivot_id, n.* EXCLUDE (continuations)
    FROM in_measurement n JOIN "pivot" p
    ON p.campaign = $campaign AND p.problem = n.problem AND p.rollout = n.rollout AND p.position = n.position
    """,
    """
    DELETE FROM new_measurement n USING measurement o
    WHERE o.pivot_id = n.pivot_id AND o.pass = n.pass AND o.run = n.run
    """,
    """
    INSERT INTO continuation BY NAME
    SELECT $campaign AS campaign, n.*
    FROM in_continuation n SEMI JOIN new_measurement USING (problem, rollout, position, pass, run)
    """,
    "INSERT INTO measurement BY NAME SELECT $campaign AS campaign, * FROM new_measurement",
    """
    INSERT INTO token BY NAME
    SELECT $campaign AS campaign, n.id, any_value(n.bytes) AS bytes FROM in_token n
    WHERE NOT EXISTS (SELECT 1 FROM token o WHERE o.campaign = $campaign AND o.id = n.id)
    GROUP BY n.id
    """,
    # A campaign's own engine says with the first problem what the settings leave to it.
    """
    UPDATE campaign SET
        attention_backend = coalesce(attention_backend, said.attention),
        batch_invariant = coalesce(batch_invariant, said.invariant)
    FROM (
        SELECT any_value(engine_info::JSON ->> 'attention_backend') AS attention,
            any_value((engine_info::JSON ->> 'batch_invariant')::BOOLEAN) AS invariant
        FROM in_problem
    ) said
    WHERE campaign = $campaign AND origin IN ('run', 'live')
    AND (attention_backend IS NULL AND said.attention IS NOT NULL
        OR batch_invariant IS NULL AND said.invariant IS NOT NULL)
    """,
)


def now() -> datetime:
    """UTC, as the store keeps times."""
    return datetime.now(UTC).replace(tzinfo=None)


def add_campaign(cursor: Connection, campaign: Campaign) -> bool:
    """Insert a campaign's row; False when its id is there already."""
    values = [
        campaign.campaign,
        campaign.name,
        campaign.model,
        campaign.engine,
        campaign.dtype,
        campaign.k,
        campaign.batch_invariant,
        campaign.attention_backend,
        list(campaign.passes),
        json.dumps(campaign.settings, sort_keys=True),
        campaign.origin,
        campaign.origin == "bundled",
        campaign.final,
        campaign.state,
        now(),
    ]
    there = first(cursor, "SELECT 1 FROM campaign WHERE campaign = ?", [campaign.campaign])
    if there is None:
        cursor.execute(f"INSERT INTO campaign VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608 (only ?)
    return there is None


def remove_campaign(cursor: Connection, campaign: str) -> None:
    """Delete a campaign's rows from every table."""
    for table in schema.CAMPAIGN_TABLES:
        cursor.execute(f'DELETE FROM "{table}" WHERE campaign = ?', [campaign])  # noqa: S608 (our own names)


def merge(cursor: Connection, campaign: str, table: pa.Table, where: str) -> None:
    """Add what the store lacks of a table under `shards.SCHEMA`.

    Raises `UserError`, naming `where` and the row, for records that contradict themselves; the caller rolls back.
    """
    levels = _flat(table)
    for name, rows in levels.items():
        cursor.register(name, rows)
    try:
        _refuse_contradictions(cursor, where)
        for statement in _STATEMENTS:
            cursor.execute(statement, {"campaign": campaign} if "$campaign" in statement else None)
    except duckdb.ConstraintException as error:
        reason = str(error).removeprefix("Constraint Error: ").splitlines()[0]
        raise UserError(f"{where}: the records break a rule of the store: {reason}") from None
    except duckdb.ConversionException as error:
        reason = str(error).removeprefix("Conversion Error: ").splitlines()[0]
        raise UserError(f"{where}: a value has the wrong form: {reason}") from None
    for name in levels:
        cursor.unregister(name)


def _flat(table: pa.Table) -> dict[str, pa.Table]:
    """The nested table by level. Arrow flattens a list by looking at it otherwise: no number is copied but the keys."""
    levels = {"in_problem": table.combine_chunks()}
    for name, above, column, keys in _LEVELS:
        parents = levels[above]
        nested = parents[column].combine_chunks()
        held = parents.select(keys).take(pc.list_parent_indices(nested))
        items = nested.flatten()
        levels[name] = pa.table([*held.columns, *items.flatten()], names=[*keys, *(item.name for item in items.type)])
    return levels


def _refuse_contradictions(cursor: Connection, where: str) -> None:
    for view, keys in _KEYS.items():
        columns = ", ".join(keys)
        query = f"SELECT {columns} FROM {view} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"  # noqa: S608 (from _KEYS)
        row = first(cursor, query)
        if row is not None:
            place = ", ".join(f"{key} {value}" for key, value in zip(keys, row, strict=True))
            raise UserError(f"{where}: {place} occurs twice; each may occur once")
    query = "SELECT DISTINCT pass FROM in_measurement WHERE NOT list_contains(?, pass)"
    strange = first(cursor, query, [list(PASSES)])
    if strange is not None:
        raise UserError(f"{where}: unknown pass {strange[0]!r}; the passes are {', '.join(PASSES)}")
