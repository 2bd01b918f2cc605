"""Rollouts in columns, aligned where their texts agree; a picked token is replayed by its column's own model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from backend import address, compare_tables, replay_panel
from backend.critical import common_prefix
from backend.drawing import plain
from backend.live import Place
from backend.picked import Picked, read_picked
from backend.records import STANDARD_PASSES, Measurement
from backend.store import Store
from backend.tables import UNDEFINED, decimal
from backend.transcript import Colour, TranscriptView, token_transcript
from backend.transcript_view import UNKNOWN, Run, foremost, token_text


@dataclass(frozen=True)
class Column:
    """One campaign's rollout in its column."""

    place: int
    """The campaign's index in the comparison: in the address it says which column a picked token is in."""
    name: str
    picked: Picked
    view: TranscriptView

    def bytes(self) -> list[bytes]:
        """The generated tokens as bytes."""
        return [self.picked.texts.get(token, UNKNOWN.encode()) for token in self.picked.rollout.ids]


def read(store: Store, place: int, name: str, where: Place) -> Column:
    """A rollout as a column. Raises `UserError` where the store has no such rollout."""
    picked = read_picked(store, where)
    return Column(place, name, picked, picked.view)


def aligned(columns: Sequence[Column]) -> list[Column]:
    """The columns with the token marked at which each text first differs from the first column's.

    The first column is marked where the first of the others leaves it.
    """
    texts = [column.bytes() for column in columns]
    differing = [common_prefix(texts[0], other) for other in texts[1:]]
    here = min((pair[0] for pair in differing if pair is not None), default=None)
    places = [here, *(None if pair is None else pair[1] for pair in differing)]
    return [
        column if at is None else replace(column, view=replace(column.view, parts=column.view.prompt_length + at))
        for column, at in zip(columns, places, strict=True)
    ]


def parting(columns: Sequence[Column]) -> str:
    """Where the texts part, in a sentence."""
    if len(columns) < 2:
        return "One transcript has nothing to be aligned with."
    places = [column.view.parts for column in columns]
    if all(place is None for place in places):
        return "The transcripts are the same text from end to end."
    first, *others = columns
    parts = []
    for column in others:
        if column.view.parts is None:
            parts.append(f"{column.name} is the same text")
            continue
        said = _at(column)
        behind = column.view.parts - column.view.prompt_length
        parts.append(f"{column.name} parts from {first.name} after {behind:,} tokens, {said}")
    return f"{'; '.join(parts)}."


def _at(column: Column) -> str:
    text, at = column.view.text, column.view.parts
    return f"with {text[at]!r}" if at is not None and at < len(text) else "where it ends"


def counterpart(column: Column, position: int, other: Column) -> int | None:
    """The position of the same token in another column: equal ids up to and including it, in equal bytes."""
    generated = position - column.view.prompt_length
    mine, theirs = column.picked.rollout.ids, other.picked.rollout.ids
    if generated < 0 or generated >= len(theirs) or mine[: generated + 1] != theirs[: generated + 1]:
        return None
    if column.view.text[position] != other.view.text[other.view.prompt_length + generated]:
        return None  # another vocabulary
    return other.view.prompt_length + generated


# The picked token's place in the address


def read_pick(columns: Sequence[Column]) -> tuple[Column, int] | None:
    """The picked token, `COLUMN-POSITION` in the address; None for one that is not in the columns."""
    place, _, position = (address.read("picked") or "").partition("-")
    if not (
        place.isascii() and place.isdecimal() and position.isascii() and position.isdecimal() and len(position) < 10
    ):
        return None
    found = next((column for column in columns if column.place == int(place)), None)
    at = None if found is None else found.view.picked(int(position))
    return None if found is None or at is None else (found, at)


def pick(column: Column, position: int, k: int, limit: int) -> None:
    """A click: show what is stored, or replay with the column's own model what is not."""
    address.write(picked=f"{column.place}-{position}")
    replay_panel.clicked(column.picked, position, k, limit)


# Drawing


def transcripts(
    columns: Sequence[Column], opened: tuple[Column, int] | None, colour: Colour, intensity: float, k: int, limit: int
) -> None:
    """The columns on one colour scale, scrolled together, and the panel of the picked token.

    `opened` is the token that was picked when the page was drawn: later ones the browser marks by itself.
    """
    parted = any(column.view.parts is not None for column in columns)
    legend = TranscriptView(text=[], prompt_length=0, parts=0 if parted else None)
    token_transcript(legend, key="compare_legend", colour=colour, intensity=intensity, height=0, show="legend")
    for column, drawn in zip(columns, st.columns(len(columns), gap="small"), strict=True):
        with drawn:
            _head(column)
            token_transcript(
                column.view,
                key=f"compare_tokens_{column.picked.place.handle}",
                colour=colour,
                intensity=intensity,
                selected=_selected(column, opened),
                height=420,
                group="compare",
                show="text",
                on_pick=_picker(column, k, limit),
            )
    picked = read_pick(columns)
    if picked is None:
        st.caption(
            "Click any token of any column: it is replayed with that column's model. "
            "Columns scroll together; ≠ marks where a text parts from the first column's."
        )
        return
    column, position = picked
    with st.container(border=True):
        st.markdown(f"#### {plain(column.name)}")
        _beside(columns, column, position)
        replay_panel.token(column.picked, position, k, limit, key=f"compare_{column.place}_")


def _picker(column: Column, k: int, limit: int) -> Any:
    return lambda position: pick(column, position, k, limit)


def _selected(column: Column, picked: tuple[Column, int] | None) -> int | None:
    if picked is None:
        return None
    return picked[1] if picked[0].place == column.place else counterpart(picked[0], picked[1], column)


def _head(column: Column) -> None:
    rollout, row = column.picked.rollout, column.picked.row
    verdict = {True: ":material/check: right", False: ":material/close: wrong", None: "not graded"}[rollout.correct]
    answer = f"answer {plain(repr(rollout.answer))}" if rollout.answer is not None else "no answer"
    model = f"{plain(row['model'] or 'unknown model')}, {row['engine'] or 'unknown engine'}"
    st.markdown(
        f"**{plain(column.name)}**  \n:small[:gray[{verdict} · {answer} · {len(rollout.ids):,} tokens · {model}]]"
    )


def _beside(columns: Sequence[Column], column: Column, position: int) -> None:
    """What the other columns measured at the same token of the same text."""
    rows = []
    for other in columns:
        at = position if other is column else counterpart(column, position, other)
        run = foremost(other.picked.runs(at)) if at is not None else None
        found = run.by_pass if run is not None else {}
        rows.append(
            {
                "campaign": plain(other.name),
                "in its place": _replacement(other, at, run),
                **{f"Â {name}": _credit(found.get(name)) for name in STANDARD_PASSES},
                "k": next((str(one.k) for one in found.values()), UNDEFINED),
                "note": _note(at, run is not None),
            }
        )
    if len(rows) > 1:
        st.markdown(f"The same token, {plain(repr(column.view.text[position]))}, in every column:")
        if not any(row["note"] for row in rows):
            rows = [{key: cell for key, cell in row.items() if key != "note"} for row in rows]
        st.table(rows, hide_index=True, border="horizontal", alt="Credit of this token by campaign and pass")


def _replacement(column: Column, position: int | None, run: Run | None) -> str:
    """The token that a run put in the place of the one at a position: models differ in it, and readers choose it."""
    token = None if position is None or run is None else column.picked.alternative(position, run)
    return UNDEFINED if token is None else plain(repr(token_text(token, column.picked.texts)))


def _credit(one: Measurement | None) -> str:
    if one is None or one.numerator is None:
        return UNDEFINED
    return compare_tables.signed(one.numerator / one.k, decimal)


def _note(position: int | None, measured: bool) -> str:
    if position is None:
        return "the texts have parted before it"
    return "" if measured else "not measured there: click it in its column"
