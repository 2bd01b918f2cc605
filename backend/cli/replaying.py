"""`replay`: one token of a stored rollout, in every pass."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import closing
from typing import Any, get_args

from backend.cli.command import Answer, Command
from backend.cli.parsing import whole
from backend.cli.progress import Bar
from backend.engines.remote import RemoteEngine
from backend.errors import UserError
from backend.live import Bench, Place, engine_spec
from backend.opening import open_store
from backend.pivots import pivot_at
from backend.records import STANDARD_PASSES, Pass
from backend.store import Store
from backend.tables import Column, Table


def _describe(parser: ArgumentParser) -> None:
    parser.add_argument("--campaign", required=True, metavar="C", help="an id or a unique name")
    parser.add_argument("--problem", required=True, metavar="P", help="a problem of the campaign")
    parser.add_argument("--rollout", required=True, type=whole(0), metavar="R", help="its rollout, from 0")
    parser.add_argument("--position", required=True, type=whole(0), metavar="N", help="index in prompt + generated ids")
    parser.add_argument("--k", type=whole(1), help="continuations an arm (default: the campaign's)")
    parser.add_argument("--max-tokens", type=whole(1), metavar="T", help="continuation limit (default: the campaign's)")
    parser.add_argument(
        "--alternative",
        type=whole(0),
        metavar="ID",
        help="token id to put in the actual one's place (default: the most probable other one)",
    )
    parser.add_argument(
        "--passes", default=",".join(STANDARD_PASSES), metavar="A,B", help=f"of {', '.join(get_args(Pass))}"
    )


def _work(args: Namespace) -> Answer:
    passes = _passes(args.passes)
    with open_store(args.store, campaigns=[args.campaign]) as store, Bar() as bar:
        place = Place(store.find_campaign(args.campaign), args.problem, args.rollout)
        _refuse(store, place, args.position, args.alternative)
        row = store.campaign(place.campaign)
        spec, python = engine_spec(row, bar.fetching), row["settings"].get("worker_python")
        bar.show(f"loading {spec.name}", None)
        with closing(RemoteEngine(spec, python=python)) as engine:
            control = _Share(bar, len(passes))
            document = Bench(engine, store).replay(
                place,
                args.position,
                control,
                k=args.k,
                max_continuation_tokens=args.max_tokens,
                passes=passes,
                alternative=args.alternative,
                on_start=control.begin,
            )
        texts = store.token_bytes(place.campaign, [document["actual"], document["alternative"]])
    return Answer(document, _text(document, texts))


def _passes(text: str) -> list[Pass]:
    known = {name: name for name in get_args(Pass)}
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in known:
            raise UserError(f"--passes: there is no pass {name!r}; the passes are {', '.join(known)}")
    return [known[name] for name in chosen]


def _refuse(store: Store, place: Place, position: int, alternative: int | None) -> None:
    """Raise `UserError` for what can be seen to be wrong before a model is loaded."""
    rollout = store.rollout(place.campaign, place.problem, place.rollout)
    if not rollout.prompt_ids or not rollout.ids:
        raise UserError(
            f"rollout {place.rollout} of problem {place.problem} was imported without its transcript, so it cannot be "
            "replayed; import its rollout file, or run the campaign here"
        )
    pivot_at(rollout, position, chosen=alternative)


class _Share:
    """Shows the passes that are done and the tokens of the one that runs."""

    def __init__(self, bar: Bar, passes: int) -> None:
        self._bar, self._passes = bar, passes
        self._begun, self._phase, self._tokens = 0, "bringing the state back", 0

    def begin(self, pass_: Pass) -> None:
        self._phase, self._tokens = pass_, 0
        self._begun += 1
        self.tick(0)

    def tick(self, tokens: int) -> None:
        self._tokens += tokens
        share = max(self._begun - 1, 0) / self._passes
        self._bar.show(self._phase, share, f"{self._tokens} tokens" if self._tokens else "")


def _text(document: dict[str, Any], texts: dict[int, bytes]) -> str:
    def token(number: int) -> str:
        return f"{texts[number].decode(errors='replace')!r} ({number})" if number in texts else str(number)

    columns = (
        Column("pass", "pass"),
        Column("n_actual", "actual right", "count"),
        Column("n_alternative", "alternative right", "count"),
        Column("credit", "credit Â", "decimal"),
        Column("seconds", "seconds", "decimal"),
        Column("provenance", "state"),
    )
    rows = [{"pass": name, **found} for name, found in document["passes"].items()]
    where = f"position {document['position']} of rollout {document['rollout']} of {document['problem']}"
    checks = [f"  {check['status']:<8} {check['name']}: {check['detail']}" for check in document["checks"]]
    tokens = f"{token(document['actual'])} against {token(document['alternative'])}, k = {document['k']}"
    return "\n".join([Table("passes", f"{where}: {tokens}", columns, rows).text(), "", "Checks", *checks])


COMMANDS = {"replay": Command(_describe, _work)}
