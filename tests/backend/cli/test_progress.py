"""Progress on stderr, in a terminal and in a file."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from backend.cli.progress import Bar, duration, show_campaign
from backend.progress import Progress

HALF = Progress(
    "id", "small", "running", "refeed", 6, 6, 3, 0, 0, 0.5, 900, 45.2, 20.0, 130.0, "t0", "t1", 1, None
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Bar() as bar:
        bar.show("loading toy", None)
        show_campaign(bar, HALF)
    frames = sys.stderr.getvalue().strip().split("\r")
    assert frames[0].startswith("loading toy |")
    assert frames[-1].startswith("3 of 6 problems · refeed |")
    assert frames[-1].endswith("50 %, 45 tok/s, 2 min left")


def test_a_file_gets_a_line_where_something_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        show_campaign(bar, replace(HALF, phase="rollouts", tokens_per_second=None, seconds_left=None))
        show_campaign(bar, HALF)
        show_campaign(bar, replace(HALF, done=4, screened_out=2, failed=1, fraction=0.75))
    assert capsys.readouterr().err.splitlines() == [
        "3 of 6 problems · rollouts, 50%",
        "4 of 6 problems, 2 screened out, 1 failed · refeed, 75%, 45 tok/s, 2 min left",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (89, "89 s"), (100, "2 min"), (5300, "88 min"), (5399, "1 h 30 min"), (5500, "1 h 32 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
