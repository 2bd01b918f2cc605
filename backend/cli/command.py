"""What a command of the command line is made of."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command has to say."""

    document: Any
    """Plain data, printed with `--json`."""
    text: str
    """The same for people."""
    code: int = 0
    """Exit status: 0 done, 1 the work failed."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    describe: Callable[[ArgumentParser], None]
    """Adds its arguments to a parser."""
    work: Callable[[Namespace], Answer]
    """Does it. Raises `PivotscopeError` with the sentence to print."""
