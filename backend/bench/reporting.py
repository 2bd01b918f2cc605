"""How fast a report is over a million pivots, and over a pool of the published size; the pivots are made up."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import duckdb

from backend.bench.result import Result
from backend.ingest import Campaign
from backend.records import STANDARD_PASSES
from backend.report import report
from backend.store import Store

POOL = ((20, 39), (20, 39))
"""Problems and pivots a problem of the pool's two campaigns: 1,560 pivots, as many as were published."""
PAGE_BUDGET = 1.0
POOL_BUDGET = 2.0


def measure_reports(pivots: int) -> list[Result]:
    """Seconds from the question to the report document, nothing kept from before but the store being open."""
    with tempfile.TemporaryDirectory(prefix="pivotscope-bench-") as folder:
        path = Path(folder) / "bench.duckdb"
        _fill(path, {"large": (1000, pivots // 1000), "first": POOL[0], "second": POOL[1]})
        with Store(path) as store:
            seconds, document = [], {}
            for campaigns in (["first", "second"], ["large"]):
                clock = time.perf_counter()
                document = report(store, campaigns)
                seconds.append(time.perf_counter() - clock)
    budget = PAGE_BUDGET if pivots == 1_000_000 else None
    note = f"{document['eligible']:,} eligible, {document['problems']:,} problems"
    return [
        Result(f"report over {pivots:,} pivots", seconds[1], "s", budget, note=note),
        Result("report of a pool of 40 problems", seconds[0], "s", POOL_BUDGET, note="two campaigns, 1,560 pivots"),
    ]


def _fill(path: Path, campaigns: dict[str, tuple[int, int]]) -> None:
    """Make a store with campaigns of so many problems and pivots a problem, each with three measurements."""
    with Store(path) as store:
        for name in campaigns:
            row = Campaign(
                campaign=name, name=name, origin="import", state="imported", model="m", k=4, passes=STANDARD_PASSES
            )
            store.ensure_campaign(row)
    with duckdb.connect(str(path)) as connection:
        connection.execute("SET enable_progress_bar = false")  # it would go to stdout
        for name, (problems, each) in campaigns.items():
            _fill_campaign(connection, name, problems, each)


def _fill_campaign(connection: duckdb.DuckDBPyConnection, name: str, problems: int, each: int) -> None:
    values = {"name": name, "each": each}
    connection.execute(
        """
        INSERT INTO problem BY NAME
        SELECT $name AS campaign, n::VARCHAR AS problem, $name AS source, 'done' AS state FROM range($problems) t(n)
        """,
        {"name": name, "problems": problems},
    )
    connection.execute(
        """
        INSERT INTO "pivot" BY NAME
        SELECT n + (SELECT coalesce(max(id) + 1, 0) FROM "pivot") AS id, $name AS campaign,
            (n // $each)::VARCHAR AS problem, n % $each // 5 AS rollout, n % 5 + 100 AS "position",
            hash(n) % 1000 / 1000 AS margin, true AS planned
        FROM range($pivots) t(n)
        """,
        {**values, "pivots": problems * each},
    )
    # Half of the pivots have no credit in any pass; a tenth of the rest changes in a replica, a third in refeed.
    for pass_, changed in zip(STANDARD_PASSES, (0, 10, 33), strict=True):
        connection.execute(
            """
            INSERT INTO measurement BY NAME
            SELECT id AS pivot_id, campaign, problem, rollout, "position", $pass AS pass, 'campaign' AS run, 4 AS k,
                n_actual, n_alternative, n_actual::INTEGER - n_alternative::INTEGER AS numerator,
                $pass != 'exact' AND moved AS probe_diverged,
                CASE WHEN moved THEN hash(id, 'd') % 1000 / 4000 ELSE 0 END AS probe_delta
            FROM (
                SELECT *, hash(id, $pass) % 100 < $changed AS moved,
                    CASE WHEN hash(id) % 2 = 0 THEN 2 WHEN moved THEN hash(id, $pass, 'a') % 5
                        ELSE hash(id, 'a') % 5 END AS n_actual,
                    CASE WHEN hash(id) % 2 = 0 THEN 2 ELSE hash(id, 'b') % 5 END AS n_alternative
                FROM "pivot" WHERE campaign = $name
            )
            """,
            {"name": name, "pass": pass_, "changed": changed},
        )
