"""The bundled arithmetic problems and their generator."""

from __future__ import annotations

import ast
import json
import operator
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest

from backend.grading import grade
from data.problems.generate import BUNDLED_FILE, Row, bundled_text, generate

# Each template's arithmetic on the numbers of its question in reading order, written independently of the generator.
FORMULAS: dict[str, Callable[..., Fraction]] = {
    "find-more": lambda a, b: a + b,
    "give-away": lambda a, b: a - b,
    "equal-groups": lambda a, b: a * b,
    "fair-share": lambda a, b: a / b,
    "two-prices": lambda p, q: p + q,
    "ribbon": lambda a, d: a * d,
    "buy-then-give": lambda a, b, c: a + b - c,
    "groups-and-loose": lambda a, b, c: a * b + c,
    "change": lambda n, p, paid: paid - n * p,
    "keep-then-share": lambda a, b, c: (a - b) / c,
    "walk-and-ride": lambda n, d, e: n * d + e,
    "two-kinds": lambda n, p, m, q: n * p + m * q,
    "wages": lambda h, r, bonus, spent: h * r + bonus - spent,
    "rows-of-plants": lambda r, c, f, k: (r * c - f) / k,
    "rest-of-the-book": lambda t, a, d, e: (t - a * d) / e,
    "bakery": lambda t, n, u, p, cost: (t * n - u) * p - cost,
    "class-trip": lambda s, p, a, q, bus: s * p + a * q + bus,
    "two-kinds-change": lambda n, p, m, q, paid: paid - n * p - m * q,
    "average": lambda a, b, c, d, n: (a + b + c + d) / n,
    "tank": lambda size, r, t, leak, u: size - r * t + leak * u,
}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
NUMBER = r"\d+(?:\.\d+)?"


def value_of(expression: str) -> Fraction:
    """Evaluate `left operator right` exactly."""
    node = ast.parse(expression, mode="eval").body
    assert isinstance(node, ast.BinOp)
    left, right = (Fraction(ast.get_source_segment(expression, side) or "") for side in (node.left, node.right))
    return OPERATORS[type(node.op)](left, right)


def faults(row: Row) -> list[str]:
    """Return what is wrong with a row, as sentences."""
    answer = Fraction(row["answer"])
    numbers = [Fraction(x) for x in re.findall(NUMBER, row["question"])]
    found = []
    if FORMULAS[row["template"]](*numbers) != answer:
        found.append(f"{row['problem']}: the formula gives another answer than {row['answer']}")
    *lines, last = row["solution"].split("\n")
    equations = [re.findall(rf"({NUMBER} [-+*/] {NUMBER}) = ({NUMBER})", line) for line in lines]
    if [len(e) for e in equations] != [1] * row["tier"]:
        found.append(f"{row['problem']}: not one equation a step")
    steps = [(left, Fraction(right)) for ((left, right),) in equations]
    found += [f"{row['problem']}: {left} is not {right}" for left, right in steps if value_of(left) != right]
    known = set(numbers)
    for left, right in steps:
        if not {Fraction(x) for x in re.findall(NUMBER, left)} <= known:
            found.append(f"{row['problem']}: {left} uses a number from nowhere")
        known.add(right)
    if last != f"Answer: {row['answer']}" or steps[-1][1] != answer or answer <= 0:
        found.append(f"{row['problem']}: the solution does not end in the answer")
    if not grade(row["solution"], row["answer"]).correct:
        found.append(f"{row['problem']}: its own solution is graded wrong")
    return found


@pytest.fixture(scope="module")
def bundled() -> list[Row]:
    return [json.loads(line) for line in BUNDLED_FILE.read_text(encoding="utf-8").splitlines()]


def test_the_shipped_file_is_what_the_generator_writes() -> None:
    assert BUNDLED_FILE.read_text(encoding="utf-8") == bundled_text()


def test_the_generator_runs_as_a_script(tmp_path) -> None:  # type: ignore[no-untyped-def]
    for name in ("generate.py", "templates.py"):
        (tmp_path / name).write_bytes(BUNDLED_FILE.with_name(name).read_bytes())
    subprocess.run([sys.executable, "generate.py"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / BUNDLED_FILE.name).read_bytes() == BUNDLED_FILE.read_bytes()


def test_every_bundled_answer_agrees_with_an_independent_evaluation(bundled: list[Row]) -> None:
    assert [fault for row in bundled for fault in faults(row)] == []


def test_every_template_is_present_and_questions_differ(bundled: list[Row]) -> None:
    assert len(bundled) >= 600
    assert {row["template"] for row in bundled} == set(FORMULAS)
    assert len({row["question"] for row in bundled}) == len({row["problem"] for row in bundled}) == len(bundled)
    assert any("." in row["answer"] for row in bundled)
    assert any("." not in row["answer"] for row in bundled)


def test_any_range_of_the_file_mixes_the_tiers(bundled: list[Row]) -> None:
    assert all(b["tier"] == a["tier"] % 4 + 1 for a, b in pairwise(bundled))


def test_training_problems_are_right_and_share_no_question_with_the_bundled_set(bundled: list[Row]) -> None:
    train = generate("train", 5000, seed=1)
    questions = {row["question"] for row in train}
    assert len(questions) == 5000
    assert questions.isdisjoint(row["question"] for row in bundled)
    assert [fault for row in train for fault in faults(row)] == []


def test_the_splits_do_not_even_share_their_numbers(bundled: list[Row]) -> None:
    def numbers(row: Row) -> tuple[str, ...]:
        return row["template"], *(str(Fraction(x)) for x in re.findall(NUMBER, row["question"]))

    assert {numbers(row) for row in bundled}.isdisjoint(numbers(row) for row in generate("train", 5000, seed=2))


def test_the_seed_decides_the_training_problems() -> None:
    assert generate("train", 40, seed=3) == generate("train", 40, seed=3)
    assert generate("train", 40, seed=3) != generate("train", 40, seed=4)
    assert generate("train", 40, seed=3) == generate("train", 80, seed=3)[:40]
