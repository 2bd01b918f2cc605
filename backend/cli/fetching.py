"""`models list` and `models fetch NAME`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from backend import models
from backend.cli.command import Answer, Command
from backend.errors import UserError


def _describe(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "fetch"], help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to fetch: a library name or a hub id OWNER/NAME")


def _work(args: Namespace) -> Answer:
    if args.action == "list":
        if args.name is not None:
            raise UserError(f"`models list` takes no name; to bring {args.name} to this disk use `models fetch`")
        return _list()
    if args.name is None:
        raise UserError(f"`models fetch` needs the NAME of a model, for example {models.DEFAULT_MODEL}")
    return _fetch(args.name)


def _list() -> Answer:
    from backend.tables import Column, Table

    found = [asdict(model) for model in models.list_models()]
    columns = (
        Column("name", "name"),
        Column("parameters", "parameters", "count"),
        Column("dtype", "dtype"),
        Column("source", "source"),
        Column("where", "path"),
    )
    rows = [{**one, "where": one["path"] or "not fetched yet"} for one in found]
    return Answer(found, Table("models", "Models", columns, rows).text())


def _fetch(name: str) -> Answer:
    from backend.cli.progress import Bar

    with Bar() as bar:
        model = models.fetch(name, bar.fetching)
    return Answer(asdict(model), f"{model.name} is at {model.path}")


COMMANDS = {"models": Command(_describe, _work)}
