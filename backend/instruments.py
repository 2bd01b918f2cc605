"""What the checks look at, as SQL: a campaign's instrument readings, equal ones counted together.

Only the campaign's own run over its planned pivots counts; tokens that somebody clicked are another matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import duckdb

from backend.checks import Reading
from backend.queries import first, rows

Connection = duckdb.DuckDBPyConnection

_PLAN = """
    SELECT passes, batch_invariant, (SELECT count(*) FROM "pivot" p WHERE p.campaign = c.campaign AND planned)
    FROM campaign c WHERE campaign = ?
"""

# Counts are cut to 0 and 1, which is all that a check asks of them, so that few groups are left. Few pivots are clicked
# ones, so that it is those that are looked up. `seeds` is a fingerprint of which pivot had which seeds.
_COUNTED = """
    SELECT pass, numerator IS NOT NULL AS complete, (cache_misses > 0)::INTEGER AS cache_misses,
        (warm_requests > 0)::INTEGER AS warm_requests, (preemptions > 0)::INTEGER AS preemptions,
        logprobs_equal, max(logprobs_max_difference) AS logprobs_max_difference, engine, count(*) AS rows,
        count(seeds_sha256) AS seeded,
        bit_xor(hash(pivot_id, seeds_sha256)) FILTER (seeds_sha256 IS NOT NULL) AS seeds
    FROM measurement
    ANTI JOIN (SELECT id AS pivot_id FROM "pivot" WHERE campaign = $campaign AND NOT planned) USING (pivot_id)
    WHERE campaign = $campaign AND run = 'campaign'
    GROUP BY ALL ORDER BY ALL
"""

# What needs a pass beside exact, pivot by pivot. Both sides of the join carry 64 bits of a seed's SHA-256, which decide
# equality as well.
_READINGS = """
    WITH own AS (
        SELECT pivot_id, pass, numerator, cache_misses, warm_requests, preemptions, logprobs_equal,
            logprobs_max_difference, engine, hash(seeds_sha256) AS seeds, seeds_sha256 IS NOT NULL AS seeded {outputs}
        FROM measurement
        SEMI JOIN (SELECT id AS pivot_id FROM "pivot" WHERE campaign = $campaign AND planned) USING (pivot_id)
        WHERE campaign = $campaign AND run = 'campaign'
    ),
    exact AS (FROM own WHERE pass = 'exact')
    SELECT own.pass, own.numerator IS NOT NULL AS complete, (own.cache_misses > 0)::INTEGER AS cache_misses,
        (own.warm_requests > 0)::INTEGER AS warm_requests, (own.preemptions > 0)::INTEGER AS preemptions,
        own.logprobs_equal, max(own.logprobs_max_difference) AS logprobs_max_difference, own.engine,
        CASE WHEN own.pass <> 'exact' AND own.seeded AND exact.seeded THEN own.seeds = exact.seeds END AS same_seeds,
        CASE WHEN own.pass <> 'exact' THEN {channel} END AS channel,
        count(*) AS rows
    FROM own LEFT JOIN exact USING (pivot_id) {differences}
    GROUP BY ALL ORDER BY ALL
"""

_COLUMNS = (
    "pass_",
    "complete",
    "cache_misses",
    "warm_requests",
    "preemptions",
    "logprobs_equal",
    "logprobs_max_difference",
    "engine",
    "same_seeds",
    "channel",
    "rows",
)

_OUTPUTS = ", output_sha256, probe_diverged, probe_delta, problem, rollout, position"

# As `checks.channel` decides it: the first channel on which a pass differs from exact.
_CHANNEL = """
    CASE
        WHEN own.output_sha256 IS NULL OR exact.output_sha256 IS NULL THEN NULL
        WHEN own.output_sha256 = exact.output_sha256 AND own.numerator IS NOT DISTINCT FROM exact.numerator THEN 'same'
        WHEN tokens THEN 'tokens'
        WHEN logprobs THEN 'logprobs'
        WHEN own.probe_diverged OR own.probe_delta > 0 OR probe THEN 'probe'
        WHEN own.numerator IS DISTINCT FROM exact.numerator THEN 'credit'
        ELSE 'outputs'
    END
"""

_DIFFERENCES = """
    LEFT JOIN (
        SELECT mine.problem, mine.rollout, mine.position, mine.pass,
            bool_or(i >= 0 AND mine.ids <> other.ids) AS tokens,
            bool_or(i >= 0 AND mine.logprobs <> other.logprobs) AS logprobs,
            bool_or(i < 0 AND mine.logprobs <> other.logprobs) AS probe
        FROM (FROM continuation WHERE campaign = $campaign AND run = 'campaign' AND pass <> 'exact') mine
        JOIN (FROM continuation WHERE campaign = $campaign AND run = 'campaign' AND pass = 'exact') other
        USING (problem, rollout, position, arm, i)
        GROUP BY ALL
    ) d ON d.problem = own.problem AND d.rollout = own.rollout AND d.position = own.position AND d.pass = own.pass
"""


def readings(cursor: Connection, campaign: str) -> list[Reading]:
    """The campaign's readings, `rows` equal ones in each. A planned pivot that a pass did not measure is incomplete."""
    planned, batch_invariant, pivots = first(cursor, _PLAN, [campaign]) or ([], None, 0)
    # Which channel differs is asked in batch-invariant mode alone, and comparing every continuation is not free.
    if batch_invariant:
        query = _READINGS.format(outputs=_OUTPUTS, channel=_CHANNEL, differences=_DIFFERENCES)
        read = _read(cursor, query, campaign, batch_invariant)
    else:
        counted = _with_seeds(rows(cursor, _COUNTED, {"campaign": campaign}))
        query = _READINGS.format(outputs="", channel="NULL", differences="")
        if counted is None:
            read = _read(cursor, query, campaign, batch_invariant)
        else:
            read = [_reading(row, batch_invariant) for row in counted]
    lacking = {name: pivots - sum(one.rows for one in read if one.pass_ == name) for name in planned}
    return read + [_unread(name, batch_invariant, missing) for name, missing in lacking.items() if missing]


def _read(cursor: Connection, query: str, campaign: str, batch_invariant: bool | None) -> list[Reading]:
    found = cursor.execute(query, {"campaign": campaign}).fetchall()
    return [_reading(dict(zip(_COLUMNS, row, strict=True)), batch_invariant) for row in found]


def _with_seeds(counted: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The rows with `same_seeds` where fingerprints decide it for whole passes; None where pivots must be compared."""
    seeded: dict[str, int] = defaultdict(int)
    seeds: dict[str, int] = defaultdict(int)
    for row in counted:
        seeded[row["pass"]] += row["seeded"]
        seeds[row["pass"]] ^= row["seeds"] or 0
    read = []
    for row in counted:
        name, own = row.pop("pass"), row.pop("seeded")
        del row["seeds"]
        same = None
        if name != "exact" and own and seeded["exact"]:
            if own != row["rows"] or (seeded[name], seeds[name]) != (seeded["exact"], seeds["exact"]):
                return None
            same = True
        read.append({**row, "pass_": name, "same_seeds": same, "channel": None})
    return read


def _reading(row: dict[str, Any], batch_invariant: bool | None) -> Reading:
    return Reading(**row, batch_invariant=batch_invariant)


def _unread(pass_: str, batch_invariant: bool | None, rows: int) -> Reading:
    nothing = dict.fromkeys(_COLUMNS)
    return _reading({**nothing, "pass_": pass_, "complete": False, "rows": rows}, batch_invariant)


_REVISION = """
    SELECT campaign, created, state, attention_backend, batch_invariant,
        (SELECT count(*) FROM problem p WHERE p.campaign = c.campaign),
        (SELECT count(*) FROM "pivot" p WHERE p.campaign = c.campaign AND planned),
        (SELECT count(*) FROM measurement m WHERE m.campaign = c.campaign AND run = 'campaign')
    FROM campaign c WHERE list_contains(?, campaign) ORDER BY campaign
"""


def revision(cursor: Connection, campaigns: Sequence[str]) -> tuple[Any, ...]:
    """A value that changes whenever what a report says of the campaigns can: rows are added, never overwritten."""
    return tuple(cursor.execute(_REVISION, [list(campaigns)]).fetchall())
