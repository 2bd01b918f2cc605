"""Every mistake is one sentence on stderr and exit status 2, and never a traceback."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from backend import cli
from backend.cli import judging
from backend.cli.command import Answer, Command
from tests.backend.cli.terminal import call, campaign_file, document, process, refusal


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a command, one of models, run"),
        (["rnu"], "did you mean run?"),
        (["grade", "--text", "x"], "the following arguments are required: --gold"),
        (["grade", "--txt", "x"], "did you mean --text?"),
        (["models", "fetch"], "needs the NAME of a model"),
        (["models", "fetch", "no-such-model"], "model 'no-such-model' is unknown"),
        (["audit", "missing.json"], "missing.json"),
        (["run", "missing.toml"], "missing.toml: cannot be read"),
        (["replay", "--campaign", "c", "--problem", "p", "--rollout", "-1", "--position", "3"], "'-1' is not a whole"),
        (["bench", "--quick", "--full"], "not allowed with argument"),
    ],
)
def test_wrong_words(words: list[str], said: str) -> None:
    assert said in refusal(*words)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["grade", "--text", "Answer: 3/4", "--gold", "0.75", "--json"], 0),
        (["--help"], 0),
        (["doctor", "--store", "{folder}/torn.duckdb"], 1),
        (["campaigns", "--store", "{folder}/torn.duckdb"], 2),
        (["rnu"], 2),
    ],
)
def test_a_process_says_and_ends_as_the_function_behind_it(words: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "torn.duckdb").write_bytes(b"torn" * 1000)
    given = [word.format(folder=tmp_path) for word in words]
    ended, returned = process(*given), call(*given)
    assert (ended.returncode, ended.stderr) == (returned.returncode, returned.stderr)
    assert ended.returncode == code
    # What the doctor says of memory and disk changes from one moment to the next.
    assert ended.stdout == returned.stdout or (words[0] == "doctor" and ended.stdout)


def test_wrong_values_on_a_store(tmp_path: Path) -> None:
    store = ("--store", tmp_path / "a.duckdb")
    assert "there is no campaign 'nope'" in refusal("report", "nope", *store)
    assert "there is no pass 'exakt'" in refusal(
        *["replay", "--campaign", "c", "--problem", "p", "--rollout", 0, "--position", 3, "--passes", "exakt"], *store
    )
    assert "neither `pivots`" in refusal("import", _written(tmp_path / "x.json", "{}"), *store)


@pytest.mark.parametrize(
    ("content", "said"), [(b"not a store", "is not a DuckDB file"), (None, "does not exist; create the folder first")]
)
def test_wrong_stores(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "a.duckdb" if content is not None else tmp_path / "none" / "a.duckdb"
    if content is not None:
        path.write_bytes(content * 1000)
    assert said in refusal("campaigns", "--store", path)
    assert said in refusal("run", campaign_file(tmp_path), "--store", path)
    assert not list(tmp_path.glob("*.runs")), "a run that cannot be stored is not begun"


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("rollout = 2", "unknown key `rollout`; did you mean `rollouts`?"),
        ("k = 0", "key `k` is 0"),
        ("engine_options = { dely = 1 }", "did you mean `delay`?"),
        ('problems = { file = "sums.jsonl", count = 5 }', "has only 4 problems from index 0 on"),
        ('problems = { file = "none.jsonl" }', "none.jsonl cannot be read"),
        ("name =", "small.toml: not valid TOML"),
    ],
)
def test_wrong_campaign_files(tmp_path: Path, extra: str, said: str) -> None:
    done = call("run", campaign_file(tmp_path, extra), "--store", tmp_path / "a.duckdb")
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_options_stand_anywhere_and_text_may_begin_with_a_hyphen(tmp_path: Path) -> None:
    assert document("grade", "--text", "-x\n-5 apples", "--gold", "-5") == {"answer": "-5", "correct": True}
    first = call("report", "--json", "a", "--store", tmp_path / "a.duckdb", "b", "--threshold", "0.3", "c")
    assert "no campaign 'a'" in first.stderr


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert cli.COMMANDS[name][1] in " ".join(text.split())
    assert "--store FILE" in text


def test_what_should_not_happen_leaves_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_args: Namespace) -> Answer:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setitem(judging.COMMANDS, "grade", Command(judging.COMMANDS["grade"].describe, broken))
    assert cli.main(["grade", "--text", "a", "--gold", "b"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    log = Path(line.rpartition("the traceback is in ")[2].removesuffix("."))
    assert "ZeroDivisionError: two" in log.read_text(encoding="utf-8")
    log.unlink()


def test_json_is_strict() -> None:
    assert json.loads(cli.as_json({"credit": None, "text": "Â\ud800"})) == {"credit": None, "text": "Â\ud800"}
    with pytest.raises(ValueError, match="JSON"):
        cli.as_json({"credit": float("nan")})


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
