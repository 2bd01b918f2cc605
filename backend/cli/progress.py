"""Progress on stderr: a bar in a terminal, now and then a line in a log file."""

from __future__ import annotations

import sys
import time
from typing import Self

from tqdm import tqdm

from backend.progress import Progress

LINE_EVERY = 30.0
"""Seconds between two lines where stderr is no terminal."""


def say(sentence: str) -> None:
    """One line on stderr."""
    print(sentence, file=sys.stderr, flush=True)


class Bar:
    """A share of some work, from 0 to 1, with what is being done before it and details after it."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._bar: tqdm | None = None  # type: ignore[type-arg]
        self._said = ("", 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, what: str, share: float | None, details: str = "") -> None:
        """Show where the work stands; None for a share that is unknown."""
        if self._terminal:
            self._draw(what, share, details)
            return
        before, when = self._said
        if what.partition(" · ")[0] != before.partition(" · ")[0] or time.monotonic() - when > LINE_EVERY:
            self._said = (what, time.monotonic())
            known = "" if share is None else f", {share:.0%}"
            say(f"{what}{known}{', ' if details else ''}{details}")

    def fetching(self, what: str, share: float | None) -> None:
        """Progress of a model's fetch."""
        self.show(what, share)

    def _draw(self, what: str, share: float | None, details: str) -> None:
        if self._bar is None:
            form = "{desc}|{bar:30}| {percentage:3.0f} %{postfix}"
            # A terminal that does not know its height would hide the bar.
            self._bar = tqdm(total=1.0, file=sys.stderr, bar_format=form, nrows=20, delay=1e9)
        self._bar.set_description_str(f"{what} ", refresh=False)
        self._bar.set_postfix_str(details, refresh=False)
        self._bar.n = share or 0.0
        self._bar.refresh()


def show_campaign(bar: Bar, progress: Progress) -> None:
    """A campaign's progress."""
    counts = f"{progress.done} of {progress.total} problems"
    if progress.screened_out:
        counts += f", {progress.screened_out} screened out"
    if progress.failed:
        counts += f", {progress.failed} failed"
    details = [f"{progress.tokens_per_second:.0f} tok/s"] if progress.tokens_per_second is not None else []
    details += [f"{duration(progress.seconds_left)} left"] if progress.seconds_left else []
    bar.show(f"{counts} · {progress.phase}" if progress.phase else counts, progress.fraction, ", ".join(details))


def duration(seconds: float) -> str:
    """A time for people: 40 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
