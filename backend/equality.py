"""Whether two final answers are equal.

Judging mathematics is math-verify's. Plain numbers are compared here as exact fractions: the same verdict, thousands of
times a second. math-verify's own time-outs need the main thread, so they are off; what goes to it is bounded in length
and shape first. It is never given a decimal point, because its comparison of floats rounds.
"""

from __future__ import annotations

import logging
import re
import threading
from fractions import Fraction

MAX_EXPRESSION = 200
"""Longest answer, in characters, given to math-verify; a longer one must equal the gold answer's text."""
MAX_EXPONENT = 400
"""Largest decimal exponent of a plain number (`1e400`), and largest product of the exponents in arithmetic."""
MAX_SYMBOLIC_EXPONENT = 12
"""Largest product of the exponents in an expression with variables, whose powers may have to be expanded."""
MAX_DEPTH = 8
"""How deep brackets may nest in an expression."""

_NUMBER = re.compile(r"(-?)(?:(\d+) )?(\d*)(?:\.(\d+))?(?:[eE]([+-]?\d{1,6}))?(?:/(\d+))?")
_RANGE = re.compile(r"[\d.,]+-[\d.,]+")
_COMMANDS = re.compile(
    r"frac|dfrac|tfrac|sqrt|pi|times|cdot|div|pm|cup|cap|in|leq?|geq?|lt|gt|neq?|infty|begin|end|sin|cos|tan|log|ln"
    r"|theta|alpha|beta|mathbb|emptyset|quad"
)
_ENVIRONMENTS = frozenset(("pmatrix", "bmatrix", "matrix"))
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|log|ln|sqrt)")
_DECIMAL = re.compile(r"(\d*)\.(\d+)")
_LOCK = threading.Lock()  # sympy's parser keeps state in its module


def equal(answer: str, gold: str) -> bool:
    """Say whether two settled answers are equal, exactly: `1/3` is not `0.333333`. Never raises; safe in any thread."""
    if answer == gold:
        return True
    x, y = _number(answer), _number(gold)
    if x is not None and y is not None:
        return x == y
    return _judgeable(answer) and _judgeable(gold) and _math_verify(_exact(answer, x), _exact(gold, y))


def _number(text: str) -> Fraction | None:
    """Return the exact value of a plain number (`-12.50`, `1.5e3`, `3/4`, `2 1/2`), or None."""
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[3] or match[4]):
        return None
    sign, mixed, whole, decimals, exponent, over = match.groups()
    power = int(exponent or 0)
    if abs(power) > MAX_EXPONENT or (over and int(over) == 0):
        return None
    value = Fraction(int((whole or "") + (decimals or "")), 10 ** len(decimals or ""))
    value = value * Fraction(10) ** power / int(over or 1) + int(mixed or 0)
    return -value if sign else value


def _judgeable(text: str) -> bool:
    """Say whether math-verify may judge `text`: mathematics, not prose, and of a shape that cannot take long."""
    text = text.replace("**", "^")
    if len(text) > MAX_EXPRESSION or not text.isascii() or "!" in text or _RANGE.fullmatch(text):
        return False
    bare = re.sub(r"\\[A-Za-z]+", " ", text)
    if not all(_COMMANDS.fullmatch(command) for command in re.findall(r"\\([A-Za-z]+)", text)):
        return False
    if not _ENVIRONMENTS.issuperset(re.findall(r"[A-Za-z]{3,}", bare)) or _depth(text) > MAX_DEPTH:
        return False
    symbolic = bool(re.search(r"[A-Za-z]", bare) or _FUNCTION.search(text))
    if symbolic and re.search(r"\d{16}", text):
        return False  # simplifying may factor an integer
    relation = re.search(r"[=<>]|\\(?:le|ge|lt|gt|ne)", text)
    if relation and (len(text) > 80 or _FUNCTION.search(text)):
        return False  # comparing relations may solve them
    return _powers(text) <= (MAX_SYMBOLIC_EXPONENT if symbolic else MAX_EXPONENT)


def _depth(text: str) -> int:
    """Return how deep brackets nest."""
    depth = deepest = 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _powers(text: str) -> int:
    """Return the product of all integers that stand in exponents; a power inside an exponent is beyond any bound."""
    product = 1
    for caret in re.finditer(r"\^\s*", text):
        at, depth = caret.end(), 0
        while at < len(text) and (depth or at == caret.end() or text[at].isalnum() or text[at - 1] in "-+"):
            depth += (text[at] in "([{") - (text[at] in ")]}")
            at += 1
        exponent = text[caret.end() :] if text[caret.end() : at].startswith("\\") else text[caret.end() : at]
        if "^" in exponent or "!" in exponent or text[at : at + 1] in ("^", "!"):
            return MAX_EXPONENT + 1
        for digits in re.findall(r"\d+", exponent):
            product *= max(1, int(digits))
    return product


def _exact(text: str, value: Fraction | None) -> str:
    """Write an answer as LaTeX without a decimal point, so that no float comes into being."""
    if value is not None:
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    text = text.replace("**", "^")
    return _DECIMAL.sub(lambda m: rf"{{\frac{{{int(m[1] + m[2])}}}{{{10 ** len(m[2])}}}}}", text)


def _math_verify(answer: str, gold: str) -> bool:
    """Let math-verify say whether two LaTeX expressions are equal; what it cannot read is not equal."""
    # Imported late: sympy takes a second, and most runs never leave plain numbers.
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # its one warning says that time-outs are off
    try:
        with _LOCK:
            read = [
                parse(f"${x}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=0)
                for x in (gold, answer)
            ]
            if not all(read):
                return False
            values = [x[0].doit() for x in read]
            if all(getattr(v, "is_Rational", False) for v in values):
                return bool(values[0] == values[1])
            return bool(verify(read[0], read[1], numeric_precision=50, timeout_seconds=0))
    except Exception:  # the library raises whatever its parser met, and a verdict must come out
        return False
