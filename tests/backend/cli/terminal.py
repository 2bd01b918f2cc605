"""The command line as a person meets it: exit statuses, and what is printed.

A command that is neither killed nor watched runs in this process, which has the libraries already; what stands between
`main` and a shell is tested with `process`.
"""

from __future__ import annotations

import contextlib
import io
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from backend.cli import main
from backend.runs import RunFolder
from backend.settings import load_settings
from tests.conftest import ROOT

PATIENCE = 300.0
"""Seconds after which a test gives up; a busy machine loads weights in minutes."""

SMALL = """
name = "small"
model = "toy"
engine = "scripted"
dtype = "float32"
problems = { file = "sums.jsonl", count = 2 }
rollouts = 2
k = 2
max_pivots_per_rollout = 2
max_rollout_tokens = 100
max_continuation_tokens = 60
"""

SUMS = [{"question": f"What is {n + 3} + {2 * n + 5}?", "answer": str(3 * n + 8)} for n in (13, 4, 7, 22)]


def campaign_file(folder: Path, extra: str = "") -> Path:
    """A small scripted campaign with its problems beside it; `extra` lines are added, and win over the same key."""
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SUMS), encoding="utf-8")
    keys = {line.partition("=")[0].strip() for line in extra.splitlines()}
    kept = [line for line in SMALL.splitlines() if line.partition("=")[0].strip() not in keys]
    path = folder / "small.toml"
    path.write_text("\n".join([*kept, extra]) + "\n", encoding="utf-8")
    return path


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "backend", *map(str, words)]


def call(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in this process; its worker is a process of its own, as always."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return subprocess.CompletedProcess(command(*words), code, out.getvalue(), err.getvalue())


def process(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a process of its own."""
    return subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)


def document(*words: object) -> Any:
    """What a command that must succeed prints with `--json`."""
    done = call(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refusal(*words: object, code: int = 2) -> str:
    """The one line that a command which must fail prints."""
    done = call(*words)
    assert (done.returncode, done.stdout) == (code, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: "), line
    assert line.endswith((".", "?")), line
    return line


@contextlib.contextmanager
def started(*words: object) -> Iterator[subprocess.Popen[str]]:
    """A command that is still running; killed at the end if it is."""
    process = subprocess.Popen(
        command(*words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            # Its worker may be suspended, and then does not notice that its host has gone.
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line that a running command prints on stderr; a silent one fails the test."""
    assert process.stderr is not None
    ready, _, _ = select.select([process.stderr], [], [], PATIENCE)
    assert ready, "it says nothing"
    return process.stderr.readline().removesuffix("\n")


def folder_of(config: Path, store: Path) -> RunFolder:
    """Where a campaign file's run lies."""
    return RunFolder.of(store.resolve(), load_settings(config).campaign)


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str] | None = None, every: float = 0.002) -> Any:
    """Wait until `what` gives something true; fail when `process` ends before."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        ended = process is not None and process.poll() is not None
        assert not ended, f"it ended before: {process.communicate() if process else None}"
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(every)
    return found


def worker_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The engine process of a running command, as soon as it has one."""

    def workers() -> list[psutil.Process]:
        children = psutil.Process(process.pid).children()
        return [child for child in children if "backend.worker" in child.cmdline()]

    (worker,) = wait_for(workers, process)
    return worker
