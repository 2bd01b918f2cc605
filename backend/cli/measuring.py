"""`doctor` and `bench`: this machine, looked at and measured."""

from __future__ import annotations

import textwrap
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from backend.cli.command import Answer, Command
from backend.cli.parsing import whole
from backend.models import PACKAGED_MODEL


def _describe_doctor(_parser: ArgumentParser) -> None:
    """A command without arguments of its own."""


def _doctor(args: Namespace) -> Answer:
    from backend.doctor import Finding, examine

    def line(finding: Finding) -> str:
        advice = f" → {finding.advice}" if finding.advice else ""
        head = f"{finding.status:<8} {finding.name}: "
        return textwrap.fill(head + finding.detail + advice, 110, subsequent_indent=" " * 9, break_on_hyphens=False)

    findings = examine(args.store)
    fatal = [finding.name for finding in findings if finding.fatal]
    verdict = f"Pivotscope does not work here yet: see {', '.join(fatal)}." if fatal else "Pivotscope works here."
    text = "\n".join([*map(line, findings), "", verdict])
    return Answer({"ok": not fatal, "checks": [asdict(finding) for finding in findings]}, text, 1 if fatal else 0)


def _describe_bench(parser: ArgumentParser) -> None:
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="short continuations and a tenth of the pivots")
    extent.add_argument("--full", action="store_true", help="a campaign's throughput as well; takes many minutes")
    parser.add_argument("--model", default=PACKAGED_MODEL, help="library name or folder (default: the packaged one)")
    parser.add_argument("--threads", type=whole(1), help="processor threads of every engine (default: half the cores)")


def _bench(args: Namespace) -> Answer:
    from backend.bench import Extent, measure, table
    from backend.cli.progress import say

    extent: Extent = "quick" if args.quick else "full" if args.full else "standard"
    document = measure(extent, args.threads, say, args.model)
    return Answer(document, table(document))


COMMANDS = {"doctor": Command(_describe_doctor, _doctor), "bench": Command(_describe_bench, _bench)}
