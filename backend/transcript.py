"""The transcript in the browser: a rollout's tokens, and continuations side by side.

Both are components of this project (`assets/`): Streamlit has no widget for ten thousand clickable tokens. Python sends
columns of plain values; the browser draws them, by `textContent` only, because the text is a model's output and may be
anything. Nothing here reads a store or computes a statistic.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import streamlit as st

Colour = Literal["credit", "margin", "refeed − exact", "flip"]
COLOURS: Final[tuple[Colour, ...]] = ("credit", "margin", "refeed − exact", "flip")

UNFINISHED: Final = "·"
"""Stands for bytes whose character ends in a later token."""

_ASSETS = Path(__file__).parent / "assets"


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


_TRANSCRIPT = st.components.v2.component(
    "pivotscope_transcript",
    html=_asset("transcript.html"),
    css=_asset("transcript.css"),
    js=_asset("tokens.js") + _asset("transcript.js"),
)
_CONTINUATIONS = st.components.v2.component(
    "pivotscope_continuations",
    html=_asset("continuations.html"),
    css=_asset("continuations.css"),
    js=_asset("continuations.js"),
)


@dataclass(frozen=True)
class TranscriptView:
    """One rollout as the component shows it. Keys are positions in prompt + generated; a missing one is unmeasured."""

    text: Sequence[str]
    """What to show for each position, prompt first (see `display_text`)."""

    prompt_length: int
    """How many leading positions are the prompt; only positions from here on can be picked."""

    credit: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Pass name → position → Â in [−1, 1], computed as (n_actual − n_alternative) / k so that zero is exactly 0.0."""

    margin: Mapping[int, float] = field(default_factory=dict)
    """Position → raw logprob margin top1 − top2, in nats, ≥ 0."""

    alternative: Mapping[int, str] = field(default_factory=dict)
    """Position → text of the alternative token."""

    candidates: Collection[int] = ()
    """Positions the pivot filter keeps (low margin)."""

    special: Collection[int] = ()
    """Positions of special and end-of-sequence tokens."""

    raw: Mapping[int, str] = field(default_factory=dict)
    """Position → bytes in hexadecimal, where a token is not text on its own (see `partial_bytes`)."""

    parts: int | None = None
    """The first position whose text differs from that of the transcripts beside it; marked."""

    def __post_init__(self) -> None:
        if not 0 <= self.prompt_length <= len(self.text):
            raise ValueError(f"prompt_length is {self.prompt_length}, but there are {len(self.text)} tokens")

    @property
    def delta(self) -> dict[int, float]:
        """Position → Â_refeed − Â_exact, where both passes are measured."""
        exact, refeed = self.credit.get("exact", {}), self.credit.get("refeed", {})
        return {position: refeed[position] - exact[position] for position in exact if position in refeed}

    @property
    def flip(self) -> dict[int, bool]:
        """Position → whether refeed's sign of Â differs from exact's, where both passes are measured."""
        exact, refeed = self.credit.get("exact", {}), self.credit.get("refeed", {})
        return {p: _sign(refeed[p]) != _sign(exact[p]) for p in exact if p in refeed}

    @cached_property
    def content(self) -> dict[str, Any]:
        """What the browser draws; margins rounded to what is shown."""
        return {
            "text": list(self.text),
            "prompt": self.prompt_length,
            "credit": {name: dict(values) for name, values in self.credit.items()},
            "margin": {position: round(margin, 4) for position, margin in self.margin.items()},
            "delta": self.delta,
            "flip": self.flip,
            "alternative": dict(self.alternative),
            "candidates": sorted(self.candidates),
            "special": sorted(self.special),
            "raw": dict(self.raw),
            "parts": self.parts,
        }

    @cached_property
    def document(self) -> str:
        """`content` as JSON text: Streamlit serialises its data twice a run, and a string costs it next to nothing."""
        return _document(self.content)

    @cached_property
    def revision(self) -> str:
        """A hash of the document: the browser reads it, and builds its spans anew, only when this changes."""
        return _revision(self.document)

    def picked(self, value: object) -> int | None:
        """The generated position that the browser sent, or None for anything else: what comes back is not trusted."""
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if self.prompt_length <= value < len(self.text) else None


def token_transcript(
    view: TranscriptView,
    *,
    key: str,
    colour: Colour = "credit",
    intensity: float = 1.0,
    selected: int | None = None,
    height: int = 480,
    group: str | None = None,
    show: Literal["all", "legend", "text"] = "all",
    on_pick: Callable[[int], None] | None = None,
) -> int | None:
    """Draw the transcript; return the position picked in this run (click, Enter or Space), else None.

    `intensity` multiplies the colour's strength (1: full strength at |Â| = 1); `height` is in pixels, the most the
    tokens take before they scroll; `selected` is the position to outline. Transcripts with one `group` scroll together
    and share one selection, which the browser keeps: leave `selected` as it is from click to click there, since a
    change sends the whole transcript again. `show`: transcripts in columns share one legend, so it can be drawn alone
    and left out of them. `on_pick` is called with the position before the script runs.
    """

    def picked() -> None:
        position = view.picked(getattr(st.session_state.get(key), "pick", None))
        if on_pick is not None and position is not None:
            on_pick(position)

    result = _TRANSCRIPT(
        key=key,
        data={
            "rev": view.revision,
            "view": view.document,
            "colour": colour,
            "intensity": intensity,
            "selected": selected,
            "height": height,
            "group": group,
            "show": show,
        },
        on_pick_change=picked,
    )
    return view.picked(result.pick)


@dataclass(frozen=True, slots=True)
class ContinuationCell:
    """One continuation of one pass."""

    text: Sequence[str]
    """Its tokens as shown, the arm's token excluded."""

    outcome: Literal["right", "wrong", "truncated", "ungraded"]
    """Graded right or wrong; truncated: ended by length without an answer, so wrong; ungraded: nothing to grade by."""

    answer: str | None
    """The final answer found in it."""

    finish: str
    """The engine's finish reason, such as `stop` or `length`."""

    difference: int | None = None
    """Index in `text` of the first token that differs from exact's (see `first_difference`); None: identical."""


@dataclass(frozen=True, slots=True)
class ContinuationRow:
    """The same arm and seed in every pass."""

    arm: Literal["actual", "alternative"]
    token: str
    """The arm's token as shown."""

    sample: int
    """Which of the k continuations, from 0."""

    cells: Mapping[str, ContinuationCell]
    """Pass name → continuation; a pass that has not arrived yet is missing."""


def continuation_table(rows: Sequence[ContinuationRow], *, passes: Sequence[str], key: str, height: int = 560) -> None:
    """Draw continuations, a row a seed and a column a pass, `exact` being what the others are compared with."""
    content = {
        "passes": list(passes),
        "rows": [
            {
                "arm": row.arm,
                "token": row.token,
                "sample": row.sample,
                "cells": {name: _cell(name, cell) for name, cell in row.cells.items()},
            }
            for row in rows
        ],
    }
    document = _document(content)
    _CONTINUATIONS(key=key, data={"rev": _revision(document), "content": document, "height": height})


def _document(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _revision(document: str) -> str:
    return hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _cell(name: str, cell: ContinuationCell) -> dict[str, Any]:
    return {
        "text": list(cell.text),
        "outcome": cell.outcome,
        "answer": cell.answer,
        "finish": cell.finish,
        "difference": cell.difference,
        "reference": name == "exact",
    }


def first_difference(exact: Sequence[int], other: Sequence[int]) -> int | None:
    """The first index at which two continuations' token ids differ; the shorter one's length if it is a prefix."""
    for index, (a, b) in enumerate(zip(exact, other, strict=False)):
        if a != b:
            return index
    return None if len(exact) == len(other) else min(len(exact), len(other))


def display_text(token_bytes: Sequence[bytes]) -> list[str]:
    """What to show for each token of a byte sequence.

    A character spread over several tokens is shown on the last of them, `·` on those before it; bytes that never become
    a character are shown as U+FFFD on the token that holds them.
    """
    shown: list[str] = []
    unfinished = b""
    for raw in token_bytes:
        if unfinished and _broken_at_start(unfinished + raw):
            shown[-1] = shown[-1].removesuffix(UNFINISHED) + "\ufffd"
            unfinished = b""
        data = unfinished + raw
        text, used = codecs.utf_8_decode(data, "replace", False)
        unfinished = data[used:]
        shown.append(text + UNFINISHED if unfinished else text)
    if unfinished:
        shown[-1] = shown[-1].removesuffix(UNFINISHED) + "\ufffd"
    return shown


def partial_bytes(token_bytes: Sequence[bytes], first: int = 0) -> dict[int, str]:
    """Position → bytes in hexadecimal, for tokens that are no UTF-8 text on their own; `first` is where they start."""
    return {first + index: raw.hex(" ") for index, raw in enumerate(token_bytes) if _undecodable(raw)}


def _broken_at_start(data: bytes) -> bool:
    try:
        codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError as error:
        return error.start == 0
    return False


def _undecodable(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
