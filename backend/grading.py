"""Final answer of a completion, and whether it is right.

Finding the answer is ours: the last `\\boxed{…}`, else the last answer line (`Answer: …`, `The answer is …`), else the
last `####` line, else the last number in the text. An unterminated last box and an empty last answer line are no
answer: the model stopped before it gave one, and an earlier number is not what it would have said.

Judging whether two answers are equal is `equality.py`'s.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from backend.equality import equal

MAX_TEXT = 100_000
"""How many characters at the end of a text are searched for an answer."""
MAX_ANSWER = 1000
"""How many characters of what stands at the answer's place are looked at; a longer single word is no answer."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What a completion answered."""

    answer: str | None
    """The final answer, without separators, currency and units (`1000` for `$1,000 a year`); None for none."""
    correct: bool | None
    """Whether it equals the gold answer; None when there is no gold answer. No answer is wrong."""


def grade(text: str, gold: str | None) -> Grade:
    """Grade a completion's whole text against `gold`: an answer, or a worked solution that ends in one.

    Never raises, whatever the text; safe in any thread.
    """
    answer = final_answer(text)
    if gold is None:
        return Grade(answer, None)
    expected = gold_answer(gold)
    return Grade(answer, answer is not None and expected is not None and same_answer(answer, expected))


def final_answer(text: str) -> str | None:
    """Return the answer that `text` ends on, as `Grade.answer` holds it, or None."""
    text = _plain_characters(text[-MAX_TEXT:])
    found = _boxed(text)
    if found is None:
        found = _answer_line(text)
    if found is None:
        found = _hash_line(text)
    if found is None:
        found = _last_number(text)
    return _settle(found)


@lru_cache(maxsize=4096)
def gold_answer(gold: str) -> str | None:
    """Return the answer in a gold text: of a GSM8K solution the `####` line, of a MATH solution its box, else all."""
    gold = _plain_characters(gold[-MAX_TEXT:]).strip()
    for rule in (_boxed, _hash_line, _answer_line):
        found = rule(gold)
        if found is not None:
            return _settle(found)
    return _settle(_last_number(gold) if "\n" in gold else gold)


@lru_cache(maxsize=65536)
def same_answer(a: str, b: str) -> bool:
    """Say whether answer `a` equals gold answer `b`: exactly, `1/3` is not `0.333333`. Never raises."""
    left, right = (_settle(_plain_characters(x)) for x in (a, b))
    return left is not None and right is not None and equal(left, right)


# --- where the answer stands -----------------------------------------------------------------------------------------

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:(?P<brace>\{)|(?P<bare>-?\d[\d.,]*)|(?P<cut>\Z))")
_MARKER = re.compile(
    r"\banswer\b[*_`]{0,3}[ \t]*(?:(?P<colon>[:=])|(?:(?:to|for)\b[^.:\n]{1,80}?[ \t])?(?P<verb>is|was)\b[ \t]*:?)",
    re.IGNORECASE,
)
_HASH = re.compile(r"####(?!#)[ \t]*([^\n]*)")


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of `pattern`."""
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def _boxed(text: str) -> str | None:
    """Content of the last box, '' for an unterminated one, None without a box."""
    last = _last(_BOX, text)
    if last is None:
        return None
    if not last["brace"]:
        return last["bare"] or ""
    depth, at = 1, last.end()
    while at < len(text):
        if text[at] == "\\":
            at += 1  # an escaped brace is content
        elif text[at] in "{}":
            depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return text[last.end() : at]
        at += 1
    return ""


def _answer_line(text: str) -> str | None:
    """Rest of the line after the last answer marker, '' for an empty one, None without a marker."""
    for marker in reversed(list(_MARKER.finditer(text))):
        rest = text[marker.end() : marker.end() + MAX_ANSWER + 1].split("\n", 1)[0]
        # "The answer is correct." talks about an answer that was given before, so a verb needs something to read.
        if marker["colon"] or re.search(r"[\d\\]|^\W*[A-Za-z]?\W*$", rest):
            return rest
    return None


def _hash_line(text: str) -> str | None:
    """Text after the last `####` that carries a number (or nothing); a heading such as `#### Step 2: …` is none."""
    found = None
    for line in _HASH.finditer(text):
        rest = line[1].strip()
        number = re.match(r"[-+(]?[^\w\s.]{0,2}\.?\d[^:]*$", rest) and not re.match(r"\d+[.)]\s", rest)
        if number or not rest:
            found = rest
    return found


# --- from what stands there to an answer -----------------------------------------------------------------------------

_DIGITS = r"(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)|\d{1,3}(?: \d{3})+(?!\d)|\d+)"
_VALUE = rf"(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+(?![\w.]))?"
_CURRENCY = r"(?:(?:US|AU?|CA?|NZ)?[$€£¥₹]|USD\b|EUR\b|GBP\b|Rs\.?)"
_LEADING = re.compile(
    rf"[~≈]?\s*(?P<sign>[-+]?)\s*{_CURRENCY}?\s*(?P<inner>[-+]?)"
    rf"(?P<mixed>\d+ (?=\d+/\d))?(?P<value>{_VALUE})(?P<over>\s*/\s*\d[\d,]*(?!\.?\d))?(?P<tail>.*)",
    re.DOTALL,
)
# After these a number is part of something longer: an expression, a list, a range, a time, a date.
_GOES_ON = re.compile(
    r"\s*(?:[+*^×÷·<>\d]|=(?!>))|\s*/\s*[\d($\\]|\s*-\s*(?:[\d($\\.]|[a-z]\b)|\s*,\s*-?[\d($\\]|[.:]\d|\(|\s*\\[a-z]"
    r"|\s*(?:and|or|to)\b\W*\d|\s?(?:pi\b|[abcijknpqrtxyz](?![A-Za-z]|\s+[A-Za-z]{2}))"
)
_IN_TEXT = re.compile(
    rf"(?:(?<![\w)\]}}.])-\s?)?(?:(?<![A-Za-z]){_CURRENCY})?(?<![A-Za-z\d^_])(?<!\d[.,:])"
    rf"(?:\\[dt]?frac\s*(?:\d\s*\d|\{{-?\d+\}}\s*\{{\d+\}})|(?:\d+ (?=\d+/\d))?{_VALUE}(?:/\d+(?![\d/]))?)"
)
_PROSE = re.compile(
    r"(?!(?:pi|sqrt|sin|cos|tan|log|ln|exp)\b)(?:[A-Za-z]{2,}|[A-Za-z]['’][a-z]|[A-Za-z]\s+[A-Za-z]{2,})"
)
_CLAUSE = re.compile(r"[.,;](?=\s|$)|(?<=[\w%.])\s\(")
_UNIT_AT_END = re.compile(r"(?<=[\d})\]])\s+(?!pi\b)[A-Za-z]{2,}[\sA-Za-z./]*$")
_UNTEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname|textrm)\s*\{([^{}]*)\}")
_DEGREE = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|°")
_INLINE_MATH = re.compile(r"\$\$?(?!\s)([^$]*[^$\s])\$\$?(?!\d)")
_SYMBOLS = str.maketrans("−–‒﹣－＋．，％＝：＄", "-----+.,%=:$", "\u200b\u200c\u200d\u2060\ufeff\u00ad\x00")
_VULGAR = re.compile(r"(\d*)([¼-¾⅐-⅞])")


def _plain_characters(text: str) -> str:
    """Replace other scripts' digits, spaces and signs by their ASCII forms, which every rule here is written in."""
    if text.isascii() and "\0" not in text:
        return text
    text = _VULGAR.sub(lambda m: f"{m[1]} {unicodedata.normalize('NFKC', m[2]).replace('⁄', '/')}", text)
    text = text.translate(_SYMBOLS)
    return "".join(
        c if c.isascii() else str(unicodedata.decimal(c)) if c.isdecimal() else " " if c.isspace() else c for c in text
    )


def _settle(found: str | None) -> str | None:
    """Reduce what stands at the answer's place to the answer: a number alone, an expression, or the words."""
    if found is None:
        return None
    if len(found) > MAX_ANSWER:
        found = found[:MAX_ANSWER].rpartition(" ")[0]
    text = _undress(found)
    if not text:
        return None
    text = _right_hand_side(text)
    number = _leading_number(text)
    if number is not None:
        return number
    if _PROSE.match(text):
        return _last_number(_CLAUSE.split(text, maxsplit=1)[0]) or _last_number(text) or text
    return _UNIT_AT_END.sub("", text).rstrip("*_`.;, \t") or None


def _undress(text: str) -> str:
    """Take off markup that says nothing: emphasis, math delimiters, spacing commands, `\\text{}`, quotes, the stop."""
    text = re.sub(r"(?<!\d)\*\*|\*\*(?!\d)", "", text).strip().strip("*_`\"'“”").strip()
    text = re.sub(r"\\[()\[\]]|\\left\b|\\right\b|\\displaystyle\b", " ", text)
    text = text.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%")
    text = re.sub(r"(?<=\d)\\[,!;: ](?=\d{3})", ",", text)
    text = re.sub(r"\\[,!;: ]|~", " ", text)
    text = _DEGREE.sub("", _UNTEXT.sub(r" \1 ", text)).strip()
    math = _INLINE_MATH.match(text)
    if math:
        text = math[1] + text[math.end() :]
    text = re.sub(r"(?<=\d)\s*[xX]\s*(?=\d)", " * ", text.strip().strip("*_`\"'“”").strip())
    return text.rstrip(". \t") if not re.search(r"\d\.\s*$", text) else text.rstrip().removesuffix(".")


def _right_hand_side(text: str) -> str:
    """Return 5 of `x = 5`, and 18 of `5 + 13 = 18 apples`; an equation in variables and a list stay whole."""
    clause = _CLAUSE.split(text, maxsplit=1)[0]
    left, equals, right = clause.rpartition("=")
    if not equals or "," in left or right.strip()[:1] in ("", ">") or left.rstrip()[-1:] in ("<", ">", "!", "\\", ":"):
        return text
    first = left.partition("=")[0].strip()
    variable = re.search(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", first)
    if re.search(r"\d|[+*/^-]", first):
        # "18 because x = 5" starts with its answer; "2x + z = 1" is an equation.
        arithmetic = re.search(r"[+*/×÷·-]|\\times|\\cdot|\\div", first) and not variable
        return _undress(right) if arithmetic or _leading_number(first) == first else text
    return _undress(right) if len(first) <= 40 else text


def _leading_number(text: str) -> str | None:
    """Return the number that `text` starts with when it stands for itself, without separators, currency and unit."""
    inner = re.fullmatch(r"[(\[{<]\s*([^()\[\]{}<>,]*)\s*[)\]}>]", text)
    match = _LEADING.match(inner[1] if inner else text)
    if match is None or (match["sign"] and match["inner"]) or _GOES_ON.match(match["tail"]):
        return None
    sign = "-" if "-" in (match["sign"], match["inner"]) else ""
    over = (match["over"] or "").replace(" ", "")
    return sign + (match["mixed"] or "") + re.sub(r"[, ]", "", match["value"] + over)


def _last_number(text: str) -> str | None:
    """Return the last number in running text; a hyphen after a word or a digit is no sign."""
    last = _last(_IN_TEXT, text)
    return None if last is None else re.sub(rf"{_CURRENCY}|,|(?<=-)\s|(?<=\d) (?=\d{{3}}(?!/))", "", last[0])
