"""Problem sets, and the prompt around a question.

A set is the bundled arithmetic, GSM8K, a JSONL file (GSM8K's, MATH's or our own fields) or a data set of the hub. Every
set ends up as `Problem` records with stable ids, in the set's own order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from backend.errors import UserError, WorkFailed, first_line
from backend.records import Problem

BUNDLED = Path(__file__).resolve().parents[1] / "data" / "problems" / "arithmetic.jsonl"

MAX_FILE_BYTES = 256 * 2**20
"""Largest problem file that is read."""
MAX_LINE_BYTES = 2**20
"""Longest line of a problem file."""
MAX_QUESTION = 20_000
"""Longest question in characters."""

REQUEST = "Reason step by step, and end with the line `Answer: <number>`."
"""What every prompt asks for after the question."""

QUESTION_FIELDS = ("question", "problem", "prompt")
GOLD_FIELDS = ("answer", "solution")


def load_problems(
    *,
    set: str | None = None,
    file: Path | None = None,
    first: int = 0,
    count: int | None = None,
    split: str = "test",
) -> list[Problem]:
    """Return problems `first` … `first + count − 1` of a set or a file, or all from `first` on; fewer where it ends.

    Args:
        set: `arithmetic` (bundled), `gsm8k`, `hf:<data set>` or `hf:<data set>:<configuration>`.
        file: a JSONL file with `question` and `answer` (GSM8K), or `problem` and `solution` or `answer` (MATH), a line.
        first: index of the first problem, from 0.
        count: how many at most.
        split: the hub data set's split.

    Raises:
        UserError: for an unknown set, a malformed line, or a range outside the set.
        WorkFailed: when the hub cannot be reached.
    """
    if (set is None) == (file is None):
        raise UserError("problems: name either a set (arithmetic, gsm8k, hf:<data set>) or a file, and not both")
    if first < 0:
        raise UserError(f"problems: first is {first}, and it must be 0 or more")
    if count is not None and count < 1:
        raise UserError(f"problems: count is {count}, and it must be 1 or more")
    stop = None if count is None else first + count
    if file is not None:
        problems, name = _read_jsonl(Path(file), Path(file).name), Path(file).name
    elif set == "arithmetic":
        problems, name = _read_jsonl(BUNDLED, "arithmetic"), "arithmetic"
    elif set == "gsm8k":
        problems, name = _read_hub("openai/gsm8k", "main", split, stop), "gsm8k"
    elif set is not None and set.startswith("hf:") and set[3:].partition(":")[0]:
        dataset, _, configuration = set[3:].partition(":")
        problems, name = _read_hub(dataset, configuration or None, split, stop), dataset
    else:
        raise UserError(f"problems: there is no set {set!r}; the sets are arithmetic, gsm8k and hf:<data set>")
    chosen = problems[first:stop]
    if not chosen:
        raise UserError(f"problems: {name} has {len(problems)} problems, so none from index {first} on")
    return chosen


def pasted(question: str) -> Problem:
    """Return a question without a gold answer as a problem whose id is the text's hash. Raises UserError if empty."""
    question = question.strip()
    fault = _question_fault(question)
    if fault:
        raise UserError(f"the pasted question {fault}")
    digest = hashlib.sha256(question.encode()).hexdigest()
    return Problem(problem=f"pasted-{digest[:8]}", question=question, gold=None, source="pasted")


def messages(question: str) -> list[dict[str, str]]:
    """Return the chat that asks `question`: one user message, for the model's own chat template."""
    return [{"role": "user", "content": f"{question}\n\n{REQUEST}"}]


def plain_prompt(question: str) -> str:
    """Return the prompt for a model without a chat template: text whose continuation is the solution."""
    return f"Question: {question}\n\n{REQUEST}\n\nSolution:"


def _read_jsonl(path: Path, source: str) -> list[Problem]:
    """Read a whole problem file, so that a malformed line is reported wherever it stands."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise UserError(f"{path} has {size:,} bytes, more than the {MAX_FILE_BYTES:,} a problem file may have")
        with path.open("rb") as lines:
            problems = list(_problems(_rows(lines, path), path.stem, source))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a JSONL file of problems") from None
    if not problems:
        raise UserError(f"{path} holds no problems; it needs one JSON object a line, with question and answer")
    return problems


def _rows(lines: Iterable[bytes], path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield (where, object) of each line that is not blank; `where` names file and line."""
    for number, raw in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if len(raw) > MAX_LINE_BYTES:
            raise UserError(f"{where}: longer than {MAX_LINE_BYTES:,} bytes; a line holds one problem")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise UserError(f"{where}: not UTF-8 text; a problem file is JSONL in UTF-8") from None
        if not text:
            continue
        try:
            # Numbers stay as they are written: an answer of 0.10 must not pass through a float.
            row = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        except (ValueError, RecursionError):
            raise UserError(f"{where}: not valid JSON; a line holds one object with question and answer") from None
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a JSON object; a line holds one object with question and answer")
        yield where, row


class _Number(str):
    """A number's own spelling, told apart from a string."""

    __slots__ = ()


def _problems(rows: Iterable[tuple[str, Mapping[str, object]]], stem: str, source: str) -> Iterator[Problem]:
    """Turn rows into problems; a row without an id of its own is numbered by its place."""
    places: dict[str, str] = {}
    for index, (where, row) in enumerate(rows):
        problem = _problem(where, row, f"{stem}-{index:04d}", source)
        if problem.problem in places:
            raise UserError(f"{where}: id {problem.problem!r} stands at {places[problem.problem]} too; ids must differ")
        places[problem.problem] = where
        yield problem


def _problem(where: str, row: Mapping[str, object], default_id: str, source: str) -> Problem:
    """Read one row: GSM8K's fields, MATH's, or ours, where `problem` beside `question` is the id."""
    field = next((f for f in QUESTION_FIELDS if f in row), None)
    if field is None:
        raise UserError(f"{where}: no question; it needs a field question (GSM8K) or problem (MATH)")
    question = row[field]
    if not isinstance(question, str) or isinstance(question, _Number):
        raise UserError(f"{where}: field {field} must be a text")
    fault = _question_fault(question)
    if fault:
        raise UserError(f"{where}: field {field} {fault}")
    gold_field = next((f for f in GOLD_FIELDS if row.get(f) is not None), None)
    if gold_field is None:
        raise UserError(f"{where}: no gold answer; it needs a field answer or solution")
    gold = row[gold_field]
    if isinstance(gold, int | float) and not isinstance(gold, bool):
        gold = str(gold)  # a hub data set's column of numbers
    if not isinstance(gold, str) or not gold.strip() or not _encodable(gold):
        raise UserError(f"{where}: field {gold_field} must be a text or a number that holds the answer")
    own_id = row.get("problem") if field == "question" else None
    if own_id is not None and not (isinstance(own_id, str) and own_id.strip() and len(own_id) <= 200):
        raise UserError(f"{where}: field problem beside question is the id, a text of 1 to 200 characters")
    return Problem(
        problem=str(own_id) if own_id is not None else default_id,
        question=question.strip(),
        gold=str(gold),
        source=source,
    )


def _question_fault(question: str) -> str | None:
    """Return what is wrong with a question's text, as the end of a sentence, or None."""
    if not question.strip():
        return "is empty; write a question"
    if len(question) > MAX_QUESTION:
        return f"has {len(question):,} characters, more than the {MAX_QUESTION:,} a question may have"
    if not _encodable(question):
        return "holds half a character (a lone surrogate); write it as UTF-8"
    return None


def _encodable(text: str) -> bool:
    """Say whether `text` has a UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_hub(dataset: str, configuration: str | None, split: str, stop: int | None) -> list[Problem]:
    """Read the first `stop` rows (all for None) of a hub data set's split, by the `datasets` library."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError(
            f"problems: reading {dataset} needs the datasets library; run pip install datasets, or give a JSONL file"
        ) from None
    try:
        table = load_dataset(dataset, configuration, split=split)
        rows = [(f"{dataset} ({split}), row {i}", dict(row)) for i, row in enumerate(islice(table, stop))]
    except (ValueError, FileNotFoundError) as error:  # an unknown data set, split or configuration
        raise UserError(f"problems: {dataset} ({split}): {first_line(error)}") from None
    except Exception as error:  # the library raises many kinds for a hub it cannot reach
        raise WorkFailed(
            f"problems: {dataset} could not be fetched ({first_line(error)}); give a JSONL file instead"
        ) from None
    stem = f"{dataset.rpartition('/')[2]}-{split}"
    return list(_problems(rows, stem, f"{dataset}/{split}"))
