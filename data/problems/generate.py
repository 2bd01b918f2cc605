"""Write the bundled arithmetic word problems, or draw others for training.

`python data/problems/generate.py` writes `arithmetic.jsonl` beside this file, the same bytes every time. A row holds
`problem` (id), `tier` (number of steps, 1 to 4), `template`, `question`, `answer` and `solution` (one equation a line
and the answer line at the end).

The bundled and the training split never share a question: a hash of template and operands says which split a problem
may be in, and a question names all its operands.
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

if __package__:
    from .templates import TEMPLATES, Numbers, Template
else:
    from templates import TEMPLATES, Numbers, Template  # type: ignore[no-redef]

Split = Literal["bundled", "train"]
T = TypeVar("T")

BUNDLED_FILE = Path(__file__).with_name("arithmetic.jsonl")
BUNDLED_COUNT = 1600
BUNDLED_SHARE = 4
"""One in so many operand tuples belongs to the bundled split."""
MAX_TRIES = 20_000
"""Draws for one problem before a template counts as used up."""

# fmt: off
NAMES = (
    "Amara", "Ben", "Chloe", "Diego", "Elif", "Farid", "Grace", "Hana",
    "Ivan", "Jonas", "Keiko", "Lena", "Mateo", "Nadia", "Omar", "Priya",
    "Quinn", "Rosa", "Samir", "Tess", "Uma", "Viktor", "Wanda", "Yusuf",
)
THINGS = (
    "marbles", "stickers", "apples", "pencils", "seashells", "cards", "buttons", "beads",
    "coins", "stamps", "acorns", "badges", "crayons", "magnets", "postcards", "walnuts",
)
# fmt: on
GROUPS = (("bag", "bags"), ("box", "boxes"), ("jar", "jars"), ("basket", "baskets"), ("tin", "tins"), ("tray", "trays"))
GOODS = (
    ("pen", "pens"),
    ("notebook", "notebooks"),
    ("muffin", "muffins"),
    ("ruler", "rulers"),
    ("candle", "candles"),
    ("mug", "mugs"),
    ("sandwich", "sandwiches"),
    ("melon", "melons"),
    ("poster", "posters"),
    ("brush", "brushes"),
    ("lemonade", "lemonades"),
    ("keyring", "keyrings"),
)

OPERATIONS: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


class Row(TypedDict):
    """One problem as the file holds it."""

    problem: str
    tier: int
    template: str
    question: str
    answer: str
    solution: str


def generate(split: Split, count: int, seed: int = 0) -> list[Row]:
    """Return `count` different problems of a split, the tiers taking turns; the same seed gives the same problems.

    Raises ValueError when the templates have no more different questions to give.
    """
    rng = random.Random(f"{split}-{seed}")
    stem = "arithmetic" if split == "bundled" else f"arithmetic-train-{seed}"
    tiers = [[t for t in TEMPLATES if t.tier == tier] for tier in (1, 2, 3, 4)]
    seen: set[str] = set()
    rows = []
    for index in range(count):
        templates = tiers[index % len(tiers)]
        template = templates[index // len(tiers) % len(templates)]
        question, answer, solution = _unseen(template, split, rng, seen)
        rows.append(
            Row(
                problem=f"{stem}-{index:04d}",
                tier=template.tier,
                template=template.name,
                question=question,
                answer=answer,
                solution=solution,
            )
        )
    return rows


def _unseen(template: Template, split: Split, rng: random.Random, seen: set[str]) -> tuple[str, str, str]:
    """Draw until the numbers make sense, belong to the split and make a question that `seen` lacks; add it there."""
    for _ in range(MAX_TRIES):
        operands = {name: _draw(numbers, rng) for name, numbers in template.operands.items()}
        if split_of(template.name, operands) != split:
            continue
        solved = _solve(template, operands)
        if solved is None:
            continue
        words = _words(rng)
        written = {name: _written(operands[name], numbers) for name, numbers in template.operands.items()}
        question = _pick(template.wordings, rng).format(**words, **written)
        if question in seen:
            continue
        seen.add(question)
        equations, answer = solved
        lines = [step[2].format(eq=eq, **words) for step, eq in zip(template.steps, equations, strict=True)]
        return question, answer, "\n".join([*lines, f"Answer: {answer}"])
    raise ValueError(f"template {template.name} has no further question for the split {split}")


def split_of(template: str, operands: dict[str, Decimal]) -> Split:
    """Say which split a problem with these operands may be in."""
    key = f"{template}|" + "|".join(show(value) for value in operands.values())
    return "train" if hashlib.sha256(key.encode()).digest()[0] % BUNDLED_SHARE else "bundled"


def _solve(template: Template, operands: dict[str, Decimal]) -> tuple[list[str], str] | None:
    """Return the steps' equations and the answer; None when a count would be broken, negative, zero or one."""
    whole = all(numbers.whole for numbers in template.operands.values())
    values = dict(operands)
    equations = []
    for result, expression, _ in template.steps:
        left, sign, right = expression.split()
        value = OPERATIONS[sign](values[left], values[right])
        if value <= 1 or value != round(value, 0 if whole else 2):
            return None
        values[result] = value
        equations.append(f"{show(values[left])} {sign} {show(values[right])} = {show(value)}")
    return equations, show(value)


def show(value: Decimal) -> str:
    """Write a number as equations and answers hold it: no exponent, no trailing zeros."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _written(value: Decimal, numbers: Numbers) -> str:
    """Write an operand as the question holds it."""
    if not numbers.money:
        return show(value)
    return f"${show(value)}" if value == int(value) else f"${value:.2f}"


def _draw(numbers: Numbers, rng: random.Random) -> Decimal:
    low, high, step = Decimal(numbers.low), Decimal(numbers.high), Decimal(numbers.step)
    return low + step * rng.randrange(int((high - low) / step) + 1)


def _pick(choices: Sequence[T], rng: random.Random) -> T:
    return choices[rng.randrange(len(choices))]


def _words(rng: random.Random) -> dict[str, str]:
    """Draw the names and nouns that a wording may use."""
    name, other = rng.sample(NAMES, 2)
    group, groups = _pick(GROUPS, rng)
    (item, items), (item2, items2) = rng.sample(GOODS, 2)
    return {
        "name": name,
        "other": other,
        "things": _pick(THINGS, rng),
        "group": group,
        "groups": groups,
        "item": item,
        "items": items,
        "item2": item2,
        "items2": items2,
    }


def bundled_text() -> str:
    """Return the bundled file's content."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in generate("bundled", BUNDLED_COUNT))


if __name__ == "__main__":
    BUNDLED_FILE.write_text(bundled_text(), encoding="utf-8", newline="\n")
    print(f"wrote {BUNDLED_COUNT} problems to {BUNDLED_FILE.name}")
