"""The store: one DuckDB file, owned by one process, holding every campaign.

Rows come in by Arrow and SQL, in one transaction a call; what is stored is never overwritten. `backend.database` says
how the file is opened, and who may read and write when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from backend import ingest, instruments, pairing, queries
from backend.checks import Reading
from backend.database import Database, remember
from backend.errors import UserError
from backend.files import file_sha256, replacing
from backend.ingest import Campaign
from backend.records import ProblemRecord, Rollout
from backend.shards import from_table, read_shard_table, to_table
from backend.store_errors import sentences

if TYPE_CHECKING:
    # A third of what a command or the first page would wait for, and most need no frame.
    import pandas as pd

__all__ = ["Campaign", "ShardReport", "Store"]

_SHARDS_A_TRANSACTION = 64


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What became of a folder's shards."""

    ingested: list[Path]
    """Taken in by this call."""
    refused: dict[Path, str]
    """Torn, foreign or contradictory files, with the sentence that says why."""


class Store(Database):
    """An open store. Raises `UserError` with one sentence where the file cannot be opened as one."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        super().__init__(path, read_only=read_only)
        self._revisions: dict[frozenset[str], tuple[int, tuple[Any, ...]]] = {}

    # Campaigns

    def ensure_campaign(self, campaign: Campaign) -> bool:
        """Add a campaign's row; False, and nothing changed, when its id is there already."""
        with self._writing() as cursor:
            return ingest.add_campaign(cursor, campaign)

    def set_state(self, campaign: str, state: str) -> None:
        """Record what a campaign is doing; an unknown campaign is a `UserError`."""
        self.find_campaign(campaign)
        with self._writing() as cursor:
            # What is said again every second must not be written again.
            cursor.execute("UPDATE campaign SET state = $1 WHERE campaign = $2 AND state <> $1", [state, campaign])

    def remove_campaign(self, campaign: str) -> None:
        """Delete a campaign with everything it holds; a bundled one stays away for good."""
        found = self.find_campaign(campaign)
        with self._writing() as cursor:
            ingest.remove_campaign(cursor, found)

    def campaigns(self) -> list[dict[str, Any]]:
        """One dict a campaign: the `campaigns` document's keys, origin, final, created, screened_out, failed, clicked.

        `problems` and `pivots` count what a report counts: finished problems and planned pivots.
        """
        with self._reading() as cursor:
            return queries.campaigns(cursor)

    def campaign(self, campaign: str) -> dict[str, Any]:
        """One campaign by id or unique name: the keys of `campaigns`, and its settings as a dict under `settings`."""
        found = self.find_campaign(campaign)
        with self._reading() as cursor:
            return queries.campaign(cursor, found)

    def is_as_shipped(self, campaign: str) -> bool:
        """Whether an id is that of a campaign that shipped and in which nobody has replayed anything since."""
        with self._reading() as cursor:
            return queries.is_as_shipped(cursor, campaign)

    def find_campaign(self, id_or_unique_name: str) -> str:
        """A campaign's id. Raises `UserError` naming the nearest ones, or the ids that share the name."""
        with self._reading() as cursor:
            return queries.find_campaign(cursor, id_or_unique_name)

    # Records in

    def ingest_shard(self, campaign: str, path: Path) -> bool:
        """Take in one shard; False when it has been. Raises `UserError` for a torn, foreign or contradictory file."""
        report = self.ingest_shards(campaign, [path])
        if report.refused:
            raise UserError(report.refused[path])
        return bool(report.ingested)

    def ingest_shards(self, campaign: str, paths: Sequence[Path]) -> ShardReport:
        """Take in those shards that have not been, in transactions of many; each file is taken whole or refused.

        A shard whose problem had failed is read again when its content has changed since.
        """
        with self._reading() as cursor:
            settled, failed = queries.ledger(cursor, campaign)
        report = ShardReport([], {})
        fresh: dict[Path, tuple[pa.Table, str]] = {}
        for path in paths:
            if path.name in settled:
                continue
            try:
                digest = file_sha256(path)
                if failed.get(path.name) != digest:
                    fresh[path] = read_shard_table(path), digest
            except UserError as error:
                report.refused[path] = str(error)
        waiting = list(fresh.items())
        for start in range(0, len(waiting), _SHARDS_A_TRANSACTION):
            self._ingest_batch(campaign, waiting[start : start + _SHARDS_A_TRANSACTION], report)
        return report

    def _ingest_batch(self, campaign: str, batch: list[tuple[Path, tuple[pa.Table, str]]], report: ShardReport) -> None:
        ledger = pa.table(
            {
                "shard": [path.name for path, _ in batch],
                "problem": [table["problem"][0].as_py() for _, (table, _) in batch],
                "sha256": [digest for _, (_, digest) in batch],
            }
        )
        where = str(batch[0][0])
        try:
            with self._writing() as cursor:
                cursor.register("shards", ledger)
                cursor.execute(
                    "INSERT OR REPLACE INTO shard_ledger SELECT ?, shard, problem, sha256, ? FROM shards",
                    [campaign, ingest.now()],
                )
                cursor.unregister("shards")
                ingest.merge(cursor, campaign, pa.concat_tables(table for _, (table, _) in batch), where)
        except UserError as error:
            if len(batch) == 1:
                report.refused[batch[0][0]] = str(error)
                return
            # One of them is at fault: one by one, the others still get in.
            for item in batch:
                self._ingest_batch(campaign, [item], report)
        else:
            report.ingested.extend(path for path, _ in batch)

    def ingest_record(self, campaign: str, record: ProblemRecord) -> None:
        """Add what the store lacks of a record: live rollouts, replays made on demand. Stored rows stay as they are.

        Raises `UserError` where the campaign is gone.
        """
        with self._writing() as cursor:
            found = queries.find_campaign(cursor, campaign)
            ingest.merge(cursor, found, to_table([record]), f"problem {record.problem}")

    def add_campaign(
        self,
        campaign: Campaign,
        tables: Iterable[pa.Table],
        where: str,
        engines: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        instead_of: str | None = None,
    ) -> bool:
        """Add a whole campaign in one transaction, or nothing; False when its id is there already.

        `tables` are under `shards.SCHEMA`; `engines` are facts by digest; `where` names the source in an error;
        `settings` are those that the same transaction keeps, whether or not the campaign was there; `instead_of` is a
        campaign that it removes, too.
        """
        with self._writing() as cursor:
            for key, value in (settings or {}).items():
                remember(cursor, key, value)
            if instead_of is not None:
                ingest.remove_campaign(cursor, instead_of)
            if not ingest.add_campaign(cursor, campaign):
                return False
            for digest, info in (engines or {}).items():
                cursor.execute("INSERT OR IGNORE INTO engine VALUES (?, ?)", [digest, info])
            for table in tables:
                ingest.merge(cursor, campaign.campaign, table, where)
            return True

    # Records out

    def problems(self, campaign: str) -> list[dict[str, Any]]:
        """One dict a problem: its fields, `stated` as a dict, and how many rollouts, right ones and planned pivots."""
        with self._reading() as cursor:
            return queries.problems(cursor, campaign)

    def rollouts(self, campaign: str, problem: str) -> list[dict[str, Any]]:
        """One dict a rollout without its lists: rollout, seed, tokens, finish_reason, answer, correct, pivots."""
        with self._reading() as cursor:
            return queries.rollouts(cursor, campaign, problem)

    def runs_at(self, campaign: str, problem: str, rollout: int, position: int) -> set[str]:
        """The runs that have measured a position of a rollout, without reading what they measured."""
        with self._reading() as cursor:
            return queries.runs_at(cursor, campaign, problem, rollout, position)

    def most_telling(self, campaign: str) -> tuple[str, int, int] | None:
        """Problem and rollout with the most pivots whose credit refeed turns, then with the largest credits.

        One with stored continuations comes first. With it the position of such a pivot, the largest credit's. None for
        a campaign without measurements.
        """
        with self._reading() as cursor:
            return queries.most_telling(cursor, campaign)

    def rollout(self, campaign: str, problem: str, rollout: int) -> Rollout:
        """A rollout with its pivots, their measurements of every run, and continuations; `UserError` without one."""
        with self._reading() as cursor:
            table = queries.nested(cursor, campaign, [problem], rollout)
        records = from_table(table, f"campaign {campaign}")
        if not records:
            raise UserError(f"campaign {campaign} has no problem {problem!r}; `problems` of its page lists them")
        if not records[0].rollouts:
            raise UserError(f"problem {problem} of campaign {campaign} has no rollout {rollout}; they count from 0")
        return records[0].rollouts[0]

    def record(self, campaign: str, problem: str) -> ProblemRecord:
        """Everything stored about one problem; `UserError` if it is not there."""
        with self._reading() as cursor:
            records = from_table(queries.nested(cursor, campaign, [problem]), f"campaign {campaign}")
        if not records:
            raise UserError(f"campaign {campaign} has no problem {problem!r}")
        return records[0]

    def tables(self, campaign: str, problems_a_table: int = 64) -> Iterator[pa.Table]:
        """The campaign's records under `shards.SCHEMA`, problems in order, some at a time."""
        names = [row["problem"] for row in self.problems(campaign)]
        for start in range(0, len(names), problems_a_table):
            with self._reading() as cursor:
                table = queries.nested(cursor, campaign, names[start : start + problems_a_table])
            yield table

    def credits(self, campaigns: Sequence[str]) -> pd.DataFrame:
        """One row a planned pivot, of the campaigns' own runs, for the statistics.

        Columns: campaign, problem (categories), rollout, position (int), margin (Float64), k (Int32), complete (bool:
        every pass of the campaign has its integer, with one k), then by pass its numerator under the pass's name
        (Int32, Â = numerator / k), `probe_diverged_<pass>` (boolean) and `probe_delta_<pass>` (Float64, nats). What
        is missing is NA.
        """
        from backend import measurements

        with self._reading() as cursor:
            return measurements.credits(cursor, campaigns)

    def check_readings(self, campaign: str) -> list[Reading]:
        """The instrument readings of the campaign's own run as the checks take them, equal ones counted together."""
        with self._reading() as cursor:
            return instruments.readings(cursor, campaign)

    def revision(self, campaigns: Sequence[str]) -> tuple[Any, ...]:
        """A value to keep results under: it changes whenever what a report says of the campaigns can."""
        key, written = frozenset(campaigns), Database.written
        kept = self._revisions.get(key)
        if kept is None or kept[0] != written:
            with self._reading() as cursor:
                kept = self._revisions[key] = (written, instruments.revision(cursor, campaigns))
        return kept[1]

    def outcomes(self, campaign: str) -> pd.DataFrame:
        """One row a problem with rollouts: problem and how many are right, graded (could be judged), texts (held)."""
        with self._reading() as cursor:
            return pairing.outcomes(cursor, campaign)

    def shared_problems(self, campaign: str) -> dict[str, int]:
        """By campaign that shares any, how many problems, of the same set, both it and this campaign finished."""
        with self._reading() as cursor:
            return pairing.shared_problems(cursor, campaign)

    def common_prefixes(self, one: str, other: str) -> pd.DataFrame:
        """One row a rollout that both campaigns hold the ids of: problem, rollout, common.

        `common` is how many token ids, prompt included, the two begin with alike.
        """
        with self._reading() as cursor:
            return pairing.common_prefixes(cursor, one, other)

    def windows(
        self, campaign: str, places: Sequence[tuple[str, int, int]], before: int = 24, after: int = 12
    ) -> list[tuple[list[int], int, list[int]]]:
        """The token ids around each (problem, rollout, position) that the campaign holds: before, the token, after."""
        with self._reading() as cursor:
            return pairing.windows(cursor, campaign, list(places), before, after)

    def write_csv(self, table: str, campaign: str, path: Path) -> None:
        """A campaign's rows of one of `queries.CSV_TABLES` as a CSV file, whole or not at all."""
        with replacing(path) as temporary, self._reading() as cursor, sentences(path):
            queries.write_csv(cursor, table, campaign, temporary)

    def wide(self, campaign: str) -> list[dict[str, Any]]:
        """One dict a planned pivot with exact, replica and refeed side by side, as a receipt has them."""
        with self._reading() as cursor:
            return queries.wide(cursor, campaign)

    def token_bytes(self, campaign: str, ids: Iterable[int]) -> dict[int, bytes]:
        """The bytes of those token ids whose text is known."""
        with self._reading() as cursor:
            return queries.token_bytes(cursor, campaign, ids)

    def engines(self, campaign: str) -> dict[str, dict[str, Any]]:
        """The engine facts that a campaign's problems and measurements refer to, by digest."""
        with self._reading() as cursor:
            return queries.engines(cursor, campaign)

    def engine_facts(self, digests: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The engine facts of those digests that the store knows."""
        with self._reading() as cursor:
            return queries.engine_facts(cursor, list(digests))
