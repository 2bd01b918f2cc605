"""Grading against the table of cases, on arbitrary text, and in threads."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.grading import Grade, final_answer, gold_answer, grade, same_answer

CASES = Path(__file__).parent / "cases" / "grading.jsonl"
ROOT = Path(__file__).resolve().parents[2]


def wrong_rows(path: Path) -> list[str]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert rows
    return [
        f"{row['why']}: {row['text']!r} against {row['gold']!r} gave {found}"
        for row in rows
        if (found := grade(row["text"], row["gold"])).correct is not row["correct"]
    ]


def test_every_case_holds() -> None:
    assert wrong_rows(CASES) == []


def test_every_published_case_holds(shared: Path) -> None:
    assert wrong_rows(shared / "cases" / "grading.jsonl") == []


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: $1,000 a year", "1000"),
        ("Answer: 18.00", "18.00"),
        ("\\boxed{-\\frac{1}{2}}", "-\\frac{1}{2}"),
        ("Answer: −5", "-5"),
        ("Answer: 3-5", "3-5"),
        ("The total is 18.", "18"),
        ("The answer is 18. " + "And so on. " * 500, "18"),
        ("Answer: " + "9" * 5000, None),
        ("Answer:", None),
        ("", None),
    ],
)
def test_final_answer_is_what_a_reader_would_write(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


def test_without_a_gold_answer_nothing_is_right_or_wrong() -> None:
    assert grade("Answer: 18", None) == Grade("18", None)


@pytest.mark.parametrize("gold", ["", "   ", "\\boxed{"])
def test_a_gold_text_without_an_answer_is_matched_by_nothing(gold: str) -> None:
    assert gold_answer(gold) is None
    assert grade("Answer: 18", gold).correct is False


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9**9",
        "9^{9^{9^9}}",
        "(((9^{999})^{999})^{999})^{999}",
        "99999999!",
        "\\binom{99999999}{4999999}",
        "\\int_0^1 x^x dx",
        "\\prod_{n=1}^{999999999} n",
        "(a+b+c+d+e+f)^{999}",
        "x^{30} + 7x^{11} = 3",
        "\\log(1000000000000000000000000000057)",
        "{" * 500 + "}" * 500,
        "\\frac{1}" * 20,
        "1e-999999999",
    ],
)
def test_shapes_that_could_run_for_ever_are_not_evaluated(answer: str) -> None:
    assert same_answer(answer, "5") is False
    assert grade(f"\\boxed{{{answer}}}", "x^2 + 1").correct is False


def test_expressions_are_judged_outside_the_main_thread() -> None:
    pairs = [(f"\\frac{{{n}}}{{7}} + \\sqrt{{{n}}}", f"\\sqrt{{{n}}} + \\frac{{{n}}}{{7}}") for n in range(2, 12)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda pair: same_answer(*pair), pairs)) == [True] * len(pairs)


def test_plain_numbers_load_neither_sympy_nor_torch() -> None:
    code = (
        "import sys; from backend.grading import grade; assert grade('Answer: 1/2', '0.5').correct;"
        "print([m for m in ('torch', 'transformers', 'sympy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300), st.none() | st.text(max_size=60))
def test_arbitrary_text_never_raises(text: str, gold: str | None) -> None:
    found = grade(text, gold)
    assert (found.correct is None) == (gold is None)


WORDS = st.sampled_from(["Answer:", "the answer is", "\\boxed{", "####", "\\frac{", "\\text{", "and", "**", "23", "e9"])
FRAGMENTS = WORDS | st.sampled_from("\n =x-−$,./^1{}()½%\\")


@settings(max_examples=300, deadline=None)
@given(st.lists(FRAGMENTS, max_size=25).map("".join), st.lists(FRAGMENTS, max_size=8).map("".join))
def test_fragments_of_answers_never_raise_and_settle(text: str, gold: str) -> None:
    grade(text, gold)
    answer = final_answer(text)
    if answer is not None:
        assert same_answer(answer, answer)


NUMBERS = st.decimals(min_value=-(10**15), max_value=10**15, allow_nan=False, allow_infinity=False, places=3)
DRESSES = ["{}", "${}", "{}.", "{} dollars", "**{}**", "\\({}\\)", "$ {} $", "{}%", "`{}`", "x = {}", "{}, that is all"]
PLACES = ["Answer: {}", "So the final answer is {}\n", "#### {}", "First 3, then 4.\nAnswer: {}\nDone with 7 steps."]


@settings(max_examples=300, deadline=None)
@given(NUMBERS, st.booleans(), st.sampled_from(DRESSES), st.sampled_from(PLACES))
def test_a_dressed_number_equals_itself_and_not_its_neighbour(number, commas, dress, place) -> None:  # type: ignore[no-untyped-def]
    written = f"{number:,f}" if commas else f"{number:f}"
    if place.startswith("####"):
        dress = "{}"
    text = place.format(dress.format(written))
    assert grade(text, f"{number:f}").correct, text
    assert grade(text, str(Fraction(number) + Fraction(1, 1000))).correct is False, text
    boxed = "The result: \\boxed{" + written.replace(",", "{,}") + "}"
    assert grade(boxed, f"{number:f}").correct, boxed
