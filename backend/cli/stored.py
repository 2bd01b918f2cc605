"""What the store holds: `campaigns`, `remove`, `import`, `export` and `report`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from backend.cli.command import Answer, Command
from backend.cli.parsing import whole
from backend.errors import UserError
from backend.opening import open_store
from backend.tables import Column, Table

_CAMPAIGN_COLUMNS = (
    Column("campaign", "id"),
    Column("name", "name"),
    Column("model", "model"),
    Column("engine", "engine"),
    Column("dtype", "dtype"),
    Column("k", "k", "count"),
    Column("problems", "problems", "count"),
    Column("rollouts", "rollouts", "count"),
    Column("pivots", "pivots", "count"),
    Column("origin", "origin"),
    Column("state", "state"),
)


def _nothing(_parser: ArgumentParser) -> None:
    """A command without arguments of its own."""


def _campaigns(args: Namespace) -> Answer:
    with open_store(args.store) as store:
        found = store.campaigns()
    if not found:
        return Answer(found, "The store holds no campaigns yet; run or import one.")
    return Answer(found, Table("campaigns", "Campaigns", _CAMPAIGN_COLUMNS, found).text())


def _describe_remove(parser: ArgumentParser) -> None:
    parser.add_argument("campaign", metavar="CAMPAIGN", help="an id or a unique name")


def _remove(args: Namespace) -> Answer:
    from backend.removing import remove_campaign

    with open_store(args.store, campaigns=[args.campaign]) as store:
        removed = remove_campaign(store, args.campaign)
    return Answer({"removed": removed}, f"Campaign {removed} is removed.")


def _describe_import(parser: ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="receipts, rollouts, exports, or folders")


def _import(args: Namespace) -> Answer:
    from backend.importers import Imported, import_path

    imported: list[Imported] = []
    with open_store(args.store, campaigns=[]) as store:
        for path in args.paths:
            try:
                imported += import_path(store, path)
            except UserError as error:
                kept = f" ({len(imported)} files before it are imported)" if imported else ""
                raise UserError(f"{error}{kept}") from None
    columns = (
        Column("path", "file"),
        Column("campaign", "campaign"),
        Column("pivots", "pivots", "count"),
        Column("rollouts", "rollouts", "count"),
    )
    rows: list[Any] = list(imported)
    return Answer(imported, Table("imported", "Imported", columns, rows).text())


def _describe_export(parser: ArgumentParser) -> None:
    parser.add_argument("campaign", metavar="CAMPAIGN", help="an id or a unique name")
    parser.add_argument("--format", required=True, metavar="FORMAT", help="parquet, csv, receipt or html")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write into")
    parser.add_argument(
        "--continuations",
        type=whole(0),
        metavar="N",
        help="with parquet: keep only the continuations of N problems, and no rollouts that were screened out",
    )


def _export(args: Namespace) -> Answer:
    from backend.bundling import bundle
    from backend.exporters import export

    if args.continuations is not None and args.format != "parquet":
        raise UserError(f"--continuations goes with --format parquet, not {args.format}")
    with open_store(args.store, campaigns=[args.campaign]) as store:
        campaign = store.find_campaign(args.campaign)
        if args.continuations is None:
            files = [str(path) for path in export(store, campaign, args.format, args.out)]
        else:
            files = [str(bundle(store, campaign, args.out, continuations_of=args.continuations))]
    return Answer({"campaign": campaign, "format": args.format, "files": files}, "\n".join(files))


def _describe_report(parser: ArgumentParser) -> None:
    parser.add_argument("campaigns", nargs="+", metavar="CAMPAIGN", help="ids or unique names")
    parser.add_argument("--pool", action="store_true", help="one report over all of them; problems are the clusters")
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="τ",
        help="a selection threshold beside the attainable ones; may be repeated",
    )


def _report(args: Namespace) -> Answer:
    from backend.report import reports
    from backend.report_tables import as_text

    with open_store(args.store, campaigns=args.campaigns) as store:
        document = reports(store, args.campaigns, pool=args.pool, thresholds=args.threshold)
    return Answer(document, as_text(document))


COMMANDS = {
    "campaigns": Command(_nothing, _campaigns),
    "remove": Command(_describe_remove, _remove),
    "import": Command(_describe_import, _import),
    "export": Command(_describe_export, _export),
    "report": Command(_describe_report, _report),
}
