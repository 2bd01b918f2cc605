"""The wordings of worked solutions."""

from __future__ import annotations

import random
import re
from fractions import Fraction

from backend.grading import grade
from data.problems.generate import generate
from data.training.phrasing import phrase

NUMBER = r"\d+(?:\.\d+)?"
EQUATION = re.compile(rf"({NUMBER}) ([-+*/]) ({NUMBER}) = ({NUMBER})")
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def test_every_wording_is_right_and_stepwise() -> None:
    rng = random.Random(5)
    for row in generate("train", 800, seed=3):
        text = phrase(row, rng)
        *steps, last = text.split("\n")
        assert last == f"Answer: {row['answer']}", text
        assert grade(text, row["answer"]).correct, text
        assert "{" not in text, text
        found = [EQUATION.findall(line) for line in steps]
        assert sum(bool(line) for line in found) == row["tier"], text
        for a, sign, b, result in (one for line in found for one in line):
            assert OPERATIONS[sign](Fraction(a), Fraction(b)) == Fraction(result), (
                f"{a} {sign} {b} = {result} in {text}"
            )
        assert EQUATION.findall(row["solution"]) == [line[-1] for line in found if line], text


def test_wordings_vary_and_follow_the_seed() -> None:
    row = generate("train", 4, seed=3)[3]
    texts = [phrase(row, random.Random(seed)) for seed in range(200)]
    assert texts == [phrase(row, random.Random(seed)) for seed in range(200)]
    assert len(set(texts)) > 150
