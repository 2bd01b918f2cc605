"""Arguments: argparse, with each mistake as one sentence."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from backend.errors import UserError

DEFAULT_STORE = Path(__file__).resolve().parents[2] / "data" / "pivotscope.duckdb"

VERBATIM = ("--text", "--gold")
"""Options whose value is any text, also one that begins with a hyphen."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises its complaints instead of printing its usage and leaving."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}; `{self.prog} --help` explains the arguments")

    def refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Name the nearest option, where argparse would first complain about something that is missing."""
        for word in words:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions:
                near = difflib.get_close_matches(name, self._option_string_actions, n=1)
                self.error(f"unknown option {name}" + (f", did you mean {near[0]}?" if near else ""))


def parser_for(command: str, summary: str) -> Parser:
    """A parser with the options that every command takes."""
    parser = Parser(prog=f"python -m backend {command}", description=summary, allow_abbrev=False)
    parser.add_argument(
        "--store",
        type=Path,
        default=DEFAULT_STORE,
        metavar="FILE",
        help="the store's file (default: data/pivotscope.duckdb of the project)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document; progress goes to stderr")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a failure")
    return parser


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Read a command's arguments; options may stand between them. Raises `UserError`."""
    words = _joined(argv)
    parser.refuse_unknown_options(words)
    return parser.parse_intermixed_args(words)


def _joined(argv: Sequence[str]) -> list[str]:
    """Verbatim options joined with their values, since argparse would take `-5 apples` for an option."""
    joined: list[str] = []
    words = iter(argv)
    for word in words:
        value = next(words, None) if word in VERBATIM else None
        joined.append(word if value is None else f"{word}={value}")
    return joined


def whole(least: int) -> Callable[[str], int]:
    """An argument type: a whole number of at least `least`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return number

    return read
