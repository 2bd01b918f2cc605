"""Child processes that leave nothing behind when their parent is told to stop."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_EVERY = 0.2
"""Seconds between two looks at a child."""


def run_child(
    command: Sequence[str], log: Path, tick: Callable[[], None], variables: Mapping[str, str] | None = None
) -> str | None:
    """Run a command to its end in the project's folder; its last words if it failed, None if it did not.

    `tick` is called while it runs and may raise, upon which the child is killed: that is how it is cancelled. What it
    says goes to the file `log`; `variables` are added to its environment.
    """
    with log.open("wb") as out:
        child = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, **(variables or {})})
        try:
            while child.poll() is None:
                tick()
                time.sleep(_EVERY)
        finally:
            child.kill()
            child.wait()
    return _last_line(log.read_text(errors="replace")) if child.returncode else None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1][:200] if lines else "no message"
