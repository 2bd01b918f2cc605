"""Worked solutions in many wordings, for supervised training.

A policy trained on one wording would be certain of every word, and a certain token is no pivot. So each step of a
problem's own solution is phrased anew: how it is introduced, whether it names the operation, and whether a product is
worked out in two parts. The equations and the answer line are always right.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from decimal import Decimal

from data.problems.generate import Row, show

_NUMBER = r"\d+(?:\.\d+)?"
_EQUATION = re.compile(rf"({_NUMBER}) ([-+*/]) ({_NUMBER}) = ({_NUMBER})")

_OPENINGS = (
    "Let's work it out.",
    "Let's go step by step.",
    "We take it one step at a time.",
    "Here is the calculation.",
    "This can be done in steps.",
)
_PLAIN = ("We get {eq}.", "This gives {eq}.", "So {eq}.", "Now {eq}.", "Calculate {eq}.", "Work out {eq}.", "{eq}.")
_NAMED = {
    "+": ("Add {a} and {b}: {eq}.", "Adding {b} to {a} gives {eq}.", "The sum is {eq}."),
    "-": ("Subtract {b} from {a}: {eq}.", "Taking {b} away leaves {eq}.", "The difference is {eq}."),
    "*": ("Multiply {a} by {b}: {eq}.", "{a} times {b} is {eq}.", "The product is {eq}."),
    "/": ("Divide {a} by {b}: {eq}.", "Splitting {a} into {b} parts gives {eq}.", "The quotient is {eq}."),
}
_PARTS = (
    "Split it: {first}, {second}, and {sum}, so {eq}.",
    "In two parts, {first} and {second}. Then {sum}, which means {eq}.",
    "Take {first}. Take {second}. Together {sum}. So {eq}.",
)
OPENING_SHARE = 0.5
"""How often a solution starts with a line that only announces it."""
PARTS_SHARE = 0.45
"""How often a product that can be worked out in two parts is."""


def phrase(row: Row, rng: random.Random) -> str:
    """Return a worked solution of `row` in a wording drawn from `rng`: one step a line, then the answer line."""
    *steps, answer = row["solution"].split("\n")
    lines = [rng.choice(_OPENINGS)] if rng.random() < OPENING_SHARE else []
    numbered = rng.random() < 0.25
    for number, step in enumerate(steps, 1):
        line = _step(step, rng)
        lines.append(f"Step {number}: {line}" if numbered else line)
    return "\n".join([*lines, answer])


def _step(sentence: str, rng: random.Random) -> str:
    """Return one step in another wording, its equation unchanged."""
    equation = _EQUATION.search(sentence)
    if equation is None:
        raise ValueError(f"a step without an equation: {sentence}")
    a, sign, b, result = equation.groups()
    parts = _parts(a, b, result) if sign == "*" and rng.random() < PARTS_SHARE else None
    if parts is not None:
        return rng.choice(_PARTS).format(eq=equation[0], **parts)
    styles: tuple[Callable[[], str], ...] = (
        lambda: sentence,
        lambda: rng.choice(_PLAIN),
        lambda: rng.choice(_NAMED[sign]),
    )
    return rng.choice(styles)().format(a=a, b=b, eq=equation[0])


def _parts(a: str, b: str, result: str) -> dict[str, str] | None:
    """Split the longer factor of a product into tens and ones, or dollars and cents; None where it is short."""
    left, right = Decimal(a), Decimal(b)
    large, small = (left, right) if len(a) > len(b) or (len(a) == len(b) and left > right) else (right, left)
    head = Decimal(int(large)) if large != int(large) else large // 10 * 10
    tail = large - head
    if not head or not tail or small < 2:
        return None
    first, second = small * head, small * tail
    return {
        "first": f"{show(small)} * {show(head)} = {show(first)}",
        "second": f"{show(small)} * {show(tail)} = {show(second)}",
        "sum": f"{show(first)} + {show(second)} = {result}",
    }
