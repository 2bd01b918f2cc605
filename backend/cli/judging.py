"""`audit ROLLOUT.json…` and `grade --text T --gold G`: judgements on what is given, without a store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from backend.cli.command import Answer, Command


def _describe_audit(parser: ArgumentParser) -> None:
    parser.add_argument("rollouts", nargs="+", type=Path, metavar="ROLLOUT.json", help="rollout files")


def _audit(args: Namespace) -> Answer:
    from backend.audit import audit_rollouts

    counts = audit_rollouts(args.rollouts)
    text = (
        f"{counts['phantom_pivots']:,} of {counts['recorded_low_margin']:,} low-margin positions are phantoms of the "
        f"recorded order: sorted, {counts['true_low_margin']:,} of {counts['tokens']:,} tokens have a low margin.\n"
        f"Tokens with a logprob of exactly 0.0: {counts['zero_logprobs']:,}. Ties for the top: {counts['ties']:,}."
    )
    return Answer(counts, text)


def _describe_grade(parser: ArgumentParser) -> None:
    parser.add_argument("--text", required=True, help="the completion, whole")
    parser.add_argument("--gold", required=True, help="the right answer, or a worked solution that ends in it")


def _grade(args: Namespace) -> Answer:
    from backend.grading import grade

    found = grade(args.text, args.gold)
    verdict = "right" if found.correct else "wrong"
    return Answer(asdict(found), f"{verdict}: {found.answer}" if found.answer is not None else "wrong: no answer found")


COMMANDS = {"audit": Command(_describe_audit, _audit), "grade": Command(_describe_grade, _grade)}
