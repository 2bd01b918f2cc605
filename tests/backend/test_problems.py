"""Reading problem sets: what is accepted, what is refused, and with which sentence."""

from __future__ import annotations

import hashlib
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest

from backend import problems as module
from backend.errors import UserError, WorkFailed
from backend.problems import REQUEST, load_problems, messages, pasted, plain_prompt
from backend.records import Problem

GSM8K = {"question": "Ann has 2 hats and buys 3. How many?", "answer": "She has 2+3=<<2+3=5>>5.\n#### 5"}
MATH = {"problem": "What is $1+1$?", "level": "Level 1", "solution": "It is $\\boxed{2}$."}


def write(folder: Path, *lines: str | bytes | Mapping[str, object]) -> Path:
    path = folder / "set.jsonl"
    encoded = [x if isinstance(x, bytes) else (json.dumps(x) if isinstance(x, Mapping) else x).encode() for x in lines]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return path


def test_the_bundled_set_is_read_in_its_order() -> None:
    found = load_problems(set="arithmetic")
    assert len(found) >= 600
    assert [p.problem for p in found[:3]] == ["arithmetic-0000", "arithmetic-0001", "arithmetic-0002"]
    assert {p.source for p in found} == {"arithmetic"}
    assert load_problems(set="arithmetic", first=5, count=7) == found[5:12]
    assert load_problems(set="arithmetic", first=len(found) - 2, count=50) == found[-2:]


def test_gsm8k_and_math_files_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, GSM8K, "", MATH, {"question": "How much?", "answer": 0})
    assert load_problems(file=path) == [
        Problem("set-0000", str(GSM8K["question"]), str(GSM8K["answer"]), "set.jsonl"),
        Problem("set-0001", "What is $1+1$?", "It is $\\boxed{2}$.", "set.jsonl"),
        Problem("set-0002", "How much?", "0", "set.jsonl"),
    ]
    assert load_problems(file=path, first=1, count=1)[0].problem == "set-0001"


def test_an_answer_wins_over_a_solution_and_numbers_keep_their_spelling(tmp_path: Path) -> None:
    line = '{"problem": "How much?", "solution": "long", "answer": 0.10000000000000000001}'
    assert load_problems(file=write(tmp_path, line))[0].gold == "0.10000000000000000001"


def test_our_own_format_keeps_its_ids(tmp_path: Path) -> None:
    row = {"problem": "mine-7", "question": "How much?", "answer": "3", "tier": 1}
    assert load_problems(file=write(tmp_path, row))[0].problem == "mine-7"
    with pytest.raises(UserError, match=r"line 2: id 'mine-7' stands at .*line 1 too"):
        load_problems(file=write(tmp_path, row, row))


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + json.dumps(GSM8K).encode() + b"\r", json.dumps(MATH).encode() + b"\r")
    assert len(load_problems(file=path)) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("7", "not a JSON object"),
        ({"answer": "5"}, "no question"),
        ({"question": 5, "answer": "5"}, "field question must be a text"),
        ({"question": None, "answer": "5"}, "field question must be a text"),
        ({"question": "  ", "answer": "5"}, "field question is empty"),
        ({"question": "x" * 30_000, "answer": "5"}, "field question has 30,000 characters"),
        ('{"question": "\\ud800", "answer": "5"}', "half a character"),
        ({"question": "How much?"}, "no gold answer"),
        ({"question": "How much?", "answer": None}, "no gold answer"),
        ({"question": "How much?", "answer": " "}, "field answer must be a text or a number"),
        ({"question": "How much?", "answer": ["5"]}, "field answer must be a text or a number"),
        ({"question": "How much?", "answer": True}, "field answer must be a text or a number"),
        ({"problem": "", "question": "How much?", "answer": "5"}, "field problem beside question is the id"),
        (b"\xff\xfe", "not UTF-8"),
        ("x" * (2**20 + 2), "longer than 1,048,576 bytes"),
    ],
)
def test_a_malformed_line_is_named_in_one_sentence(
    tmp_path: Path, line: str | bytes | Mapping[str, object], reason: str
) -> None:
    path = write(tmp_path, GSM8K, line, MATH)
    with pytest.raises(UserError) as caught:
        load_problems(file=path, count=1)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}, line 2: ")
    assert reason in sentence
    assert "\n" not in sentence


def test_files_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"absent\.jsonl cannot be read"):
        load_problems(file=tmp_path / "absent.jsonl")
    with pytest.raises(UserError, match="cannot be read"):
        load_problems(file=tmp_path)
    with pytest.raises(UserError, match="holds no problems"):
        load_problems(file=write(tmp_path, ""))
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 10)
    with pytest.raises(UserError, match=r"has \d+ bytes, more than the 10"):
        load_problems(file=write(tmp_path, GSM8K))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "either a set"),
        ({"set": "arithmetic", "file": Path("x")}, "either a set"),
        ({"set": "algebra"}, "no set 'algebra'"),
        ({"set": "hf:"}, "no set 'hf:'"),
        ({"set": "arithmetic", "first": -1}, "first is -1"),
        ({"set": "arithmetic", "count": 0}, "count is 0"),
        ({"set": "arithmetic", "first": 100_000}, "has 1600 problems, so none from index 100000"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load_problems(**arguments)  # type: ignore[arg-type]


def install_datasets(monkeypatch: pytest.MonkeyPatch, result: object) -> list[tuple[object, ...]]:
    """Put a hub library in place that answers `result` (or raises it); return the list of its calls."""
    calls: list[tuple[object, ...]] = []

    def load_dataset(name: str, configuration: str | None = None, *, split: str) -> object:
        calls.append((name, configuration, split))
        if isinstance(result, Exception):
            raise result
        return result

    library = types.ModuleType("datasets")
    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    return calls


def test_hub_rows_become_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install_datasets(monkeypatch, [GSM8K, {"question": "How much?", "answer": 3}])
    assert load_problems(set="gsm8k", split="train", first=1, count=1) == [
        Problem("gsm8k-train-0001", "How much?", "3", "openai/gsm8k/train")
    ]
    assert len(load_problems(set="hf:someone/sums:easy")) == 2
    assert calls == [("openai/gsm8k", "main", "train"), ("someone/sums", "easy", "test")]


def test_the_real_library_reads_a_local_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets", reason="the datasets library is optional and not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write(tmp_path, GSM8K).rename(tmp_path / "test.jsonl")
    assert [p.gold for p in load_problems(set=f"hf:{tmp_path}")] == [GSM8K["answer"]]
    with pytest.raises(UserError, match="Unknown split"):
        load_problems(set=f"hf:{tmp_path}", split="tset")


def test_hub_faults_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    install_datasets(monkeypatch, ValueError("Unknown split 'tset'.\nmore"))
    with pytest.raises(UserError, match=r"^problems: openai/gsm8k \(tset\): Unknown split 'tset'$"):
        load_problems(set="gsm8k", split="tset")
    install_datasets(monkeypatch, ConnectionError("no route"))
    with pytest.raises(WorkFailed, match=r"could not be fetched \(no route\)"):
        load_problems(set="gsm8k")
    install_datasets(monkeypatch, [{"text": "no fields"}])
    with pytest.raises(UserError, match=r"openai/gsm8k \(test\), row 0: no question"):
        load_problems(set="gsm8k")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match="needs the datasets library; run pip install datasets"):
        load_problems(set="gsm8k")


def test_a_pasted_question_is_named_by_its_text() -> None:
    digest = hashlib.sha256(b"What is 2+2?").hexdigest()
    assert pasted(" What is 2+2?\n") == Problem(f"pasted-{digest[:8]}", "What is 2+2?", None, "pasted")
    with pytest.raises(UserError, match="the pasted question is empty"):
        pasted(" \n")


def test_prompts_put_the_request_after_the_question() -> None:
    assert messages("What is 2+2?") == [{"role": "user", "content": f"What is 2+2?\n\n{REQUEST}"}]
    assert "`Answer: <number>`" in REQUEST
    assert plain_prompt("What is 2+2?") == f"Question: What is 2+2?\n\n{REQUEST}\n\nSolution:"
