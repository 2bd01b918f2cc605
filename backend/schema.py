"""The store's tables, as numbered migrations: append a new one, never edit an old one.

The large tables carry no primary key: DuckDB would keep an index of their natural keys in memory (a gigabyte for
three million measurements). The one writer keeps them unique, see `backend.ingest`.
"""

from __future__ import annotations

from collections.abc import Callable

import duckdb

Connection = duckdb.DuckDBPyConnection


def m001_campaigns(connection: Connection) -> None:
    connection.execute("""
        CREATE TABLE campaign (
            campaign VARCHAR PRIMARY KEY,
            name VARCHAR NOT NULL,
            model VARCHAR,
            engine VARCHAR,
            dtype VARCHAR,
            k INTEGER CHECK (k >= 1),
            batch_invariant BOOLEAN,
            attention_backend VARCHAR,
            passes VARCHAR[] NOT NULL,
            settings JSON NOT NULL,
            origin VARCHAR NOT NULL CHECK (origin IN ('run', 'live', 'import', 'bundled')),
            bundled BOOLEAN NOT NULL,
            final BOOLEAN,
            state VARCHAR NOT NULL,
            created TIMESTAMP NOT NULL
        );
        CREATE TABLE problem (
            campaign VARCHAR NOT NULL,
            problem VARCHAR NOT NULL,
            question VARCHAR,
            gold VARCHAR,
            source VARCHAR,
            state VARCHAR NOT NULL CHECK (state IN ('done', 'screened_out', 'failed')),
            error VARCHAR,
            seconds DOUBLE,
            engine VARCHAR,
            stated JSON,
            PRIMARY KEY (campaign, problem)
        );
        CREATE TABLE engine (digest VARCHAR PRIMARY KEY, info JSON NOT NULL);
        CREATE TABLE setting ("key" VARCHAR PRIMARY KEY, "value" VARCHAR NOT NULL);
        CREATE TABLE shard_ledger (
            campaign VARCHAR NOT NULL,
            shard VARCHAR NOT NULL,
            problem VARCHAR NOT NULL,
            sha256 VARCHAR NOT NULL,
            ingested TIMESTAMP NOT NULL,
            PRIMARY KEY (campaign, shard)
        );
    """)


def m002_rollouts(connection: Connection) -> None:
    connection.execute("""
        CREATE TABLE rollout (
            campaign VARCHAR NOT NULL,
            problem VARCHAR NOT NULL,
            rollout INTEGER NOT NULL CHECK (rollout >= 0),
            seed INTEGER CHECK (seed >= 0),
            prompt_ids INTEGER[] NOT NULL,
            ids INTEGER[] NOT NULL,
            logprobs DOUBLE[] NOT NULL,
            topk_ids INTEGER[][] NOT NULL,
            topk_logprobs DOUBLE[][] NOT NULL,
            finish_reason VARCHAR CHECK (finish_reason IN ('stop', 'length')),
            answer VARCHAR,
            correct BOOLEAN,
            CHECK (len(logprobs) = len(ids)),
            CHECK (len(topk_ids) = len(ids) AND len(topk_logprobs) = len(ids))
        );
        CREATE TABLE token (campaign VARCHAR NOT NULL, id INTEGER NOT NULL, bytes BLOB NOT NULL);
    """)


def m003_measurements(connection: Connection) -> None:
    # `id` numbers the pivots of the store: joining three million measurements by four columns takes seconds.
    connection.execute("""
        CREATE TABLE "pivot" (
            id BIGINT NOT NULL,
            campaign VARCHAR NOT NULL,
            problem VARCHAR NOT NULL,
            rollout INTEGER NOT NULL,
            position INTEGER NOT NULL CHECK (position >= 0),
            actual INTEGER,
            alternative INTEGER,
            margin DOUBLE,
            planned BOOLEAN NOT NULL
        );
        CREATE TABLE measurement (
            pivot_id BIGINT NOT NULL,
            campaign VARCHAR NOT NULL,
            problem VARCHAR NOT NULL,
            rollout INTEGER NOT NULL,
            position INTEGER NOT NULL,
            pass VARCHAR NOT NULL,
            run VARCHAR NOT NULL,
            k INTEGER NOT NULL CHECK (k >= 1),
            n_actual INTEGER CHECK (n_actual BETWEEN 0 AND k),
            n_alternative INTEGER CHECK (n_alternative BETWEEN 0 AND k),
            numerator INTEGER CHECK (abs(numerator) <= k),
            truncated_actual INTEGER,
            truncated_alternative INTEGER,
            provenance VARCHAR,
            started VARCHAR,
            seconds DOUBLE,
            output_sha256 VARCHAR,
            requests INTEGER,
            cache_misses INTEGER,
            warm_requests INTEGER,
            preemptions INTEGER,
            logprobs_equal BOOLEAN,
            logprobs_max_difference DOUBLE,
            seeds_sha256 VARCHAR,
            engine VARCHAR,
            probe_diverged BOOLEAN,
            probe_delta DOUBLE,
            CHECK (numerator = n_actual - n_alternative)
        );
        CREATE TABLE continuation (
            campaign VARCHAR NOT NULL,
            problem VARCHAR NOT NULL,
            rollout INTEGER NOT NULL,
            position INTEGER NOT NULL,
            pass VARCHAR NOT NULL,
            run VARCHAR NOT NULL,
            arm VARCHAR NOT NULL CHECK (arm IN ('actual', 'alternative')),
            i INTEGER NOT NULL CHECK (i >= -1),
            seed INTEGER NOT NULL CHECK (seed >= 0),
            ids INTEGER[] NOT NULL,
            logprobs DOUBLE[] NOT NULL,
            finish_reason VARCHAR NOT NULL CHECK (finish_reason IN ('stop', 'length')),
            answer VARCHAR,
            correct BOOLEAN,
            expected_cached INTEGER,
            cached INTEGER,
            CHECK (len(logprobs) = len(ids))
        );
    """)


def m004_alternatives(connection: Connection) -> None:
    connection.execute("ALTER TABLE measurement ADD COLUMN alternative INTEGER")


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (
    m001_campaigns,
    m002_rollouts,
    m003_measurements,
    m004_alternatives,
)

CAMPAIGN_TABLES = ("continuation", "measurement", "pivot", "token", "rollout", "problem", "shard_ledger", "campaign")
"""Every table with a `campaign` column, the contained before the containing."""


def applied(connection: Connection) -> list[str] | None:
    """Names of the migrations a file has seen, in order; None when it is no store of ours but holds other tables."""
    tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "migration" in tables:
        return [name for (name,) in connection.execute('SELECT name FROM migration ORDER BY "order"').fetchall()]
    return None if tables else []


def migrate(connection: Connection, seen: list[str]) -> None:
    """Apply what is missing, in one transaction."""
    connection.begin()
    connection.execute('CREATE TABLE IF NOT EXISTS migration ("order" INTEGER PRIMARY KEY, name VARCHAR NOT NULL)')
    for order, migration in enumerate(MIGRATIONS[len(seen) :], start=len(seen) + 1):
        migration(connection)
        connection.execute("INSERT INTO migration VALUES (?, ?)", [order, migration.__name__])
    connection.commit()
