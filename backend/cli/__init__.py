"""The command line: one document or one text on stdout, progress on stderr, and one sentence for every error.

Exit status: 0 done, 1 the work failed, 2 the arguments or the input are wrong. Each command's module is imported when
it is asked for, so that `grade` does not wait for the libraries of `report`.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from backend.cli.command import Answer, Command
from backend.cli.parsing import parse, parser_for
from backend.errors import PivotscopeError, UserError

COMMANDS = {
    "models": ("fetching", "List the models that can be named, or fetch one to this disk."),
    "run": ("running", "Run a campaign file, or what is missing of it."),
    "watch": ("running", "Follow a campaign that another process runs."),
    "cancel": ("running", "Ask the process that runs a campaign to stop."),
    "campaigns": ("stored", "List the campaigns of the store."),
    "remove": ("stored", "Remove a campaign with everything it holds."),
    "import": ("stored", "Take receipts, rollouts and exports into the store."),
    "export": ("stored", "Write a campaign to files."),
    "report": ("stored", "Report flip rates, their floor, intervals, selection and checks."),
    "replay": ("replaying", "Replay one token of a stored rollout in every pass."),
    "audit": ("judging", "Count the phantom pivots of mis-sorted rollout files."),
    "grade": ("judging", "Find the final answer of a text and say whether it is right."),
    "bench": ("measuring", "Measure the budgets on this machine."),
    "doctor": ("measuring", "Say what works on this machine, what does not, and what to do."),
}
"""By name, the module of `backend.cli` that holds the command, and what it does."""

INTERRUPTED = "stopped by Ctrl-C; what was stored before stays, and the same command goes on from there"


def main(argv: Sequence[str]) -> int:
    """Run one command; gives the exit status. Prints exactly one line for an error."""
    debug = "--debug" in argv
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # a test's stream has no encoding to be lenient about
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        return _run(argv)
    except KeyboardInterrupt:
        return _complain(INTERRUPTED, 1)
    except BrokenPipeError:
        # The reader has gone, as `| head` does; Python would complain once more at exit about what is left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except PivotscopeError as error:
        if debug:
            traceback.print_exc()
        return _complain(str(error), 2 if isinstance(error, UserError) else 1)
    except Exception as error:
        if debug:
            traceback.print_exc()
        detail = (str(error).strip().splitlines() or ["no message"])[0]
        what = f"{type(error).__name__}: {detail}"
        return _complain(f"this should not have happened ({what}); the traceback is in {_traceback_file()}", 1)


def _run(argv: Sequence[str]) -> int:
    if not argv or argv[0] in {"-h", "--help"}:
        if not argv:
            raise UserError(f"give a command, one of {', '.join(COMMANDS)}")
        print(_overview())
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"give one of {', '.join(COMMANDS)}"
        raise UserError(f"there is no command {name!r}; {hint}")
    module, summary = COMMANDS[name]
    command: Command = import_module(f"backend.cli.{module}").COMMANDS[name]
    parser = parser_for(name, summary)
    command.describe(parser)
    args = parse(parser, rest)
    answer: Answer = command.work(args)
    print(as_json(answer.document) if args.json else answer.text)
    sys.stdout.flush()
    return answer.code


def as_json(document: Any) -> str:
    """One document. Strict JSON: what is undefined is null."""
    return json.dumps(document, indent=1, allow_nan=False)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: python -m backend COMMAND … [--store FILE] [--json]",
            "",
            *lines,
            "",
            "`python -m backend COMMAND --help` explains a command's arguments.",
        ]
    )


def _complain(sentence: str, code: int) -> int:
    line = " ".join(sentence.split())
    print(f"error: {line}{'' if line.endswith(('.', '?', '!')) else '.'}", file=sys.stderr)
    return code


def _traceback_file() -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="pivotscope-", suffix=".log", delete=False, encoding="utf-8") as log:
        log.write(traceback.format_exc())
    return Path(log.name)
