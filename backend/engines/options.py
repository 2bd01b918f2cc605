"""What the engines' own readers of `engine_options` have in common."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from backend.errors import UserError


def kind_of(name: str, kinds: Mapping[str, type], engine: str) -> type:
    """The type of an engine's option. Raises `UserError` for one that it does not know."""
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known ones are {', '.join(kinds)}"
        raise UserError(f"engine_options: unknown option `{name}` of the {engine} engine; {hint}")
    return kinds[name]


def check_type(name: str, value: Any, kind: type) -> None:
    """Raise `UserError` for a value of another type; whole numbers are floats too, and truth values are no numbers."""
    right = isinstance(value, (int, float) if kind is float else kind)
    if not right or (isinstance(value, bool) and kind is not bool):
        raise UserError(f"engine_options: `{name}` is {value!r}, but must be of type {kind.__name__}")
