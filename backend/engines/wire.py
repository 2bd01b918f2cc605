"""How a host and an engine process talk: one JSON document a line.

Host → worker: `{"id", "op", "args"}`, or `{"cancel": id}`. Worker → host: `{"id", "tick"}` while it works, then
`{"id", "result"}` or `{"id", "error", "kind"}`. Plain JSON rather than pickle: the two may run different interpreters,
and nothing that arrives can be code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from backend.engines.base import (
    Batch,
    ContinuationRequest,
    EngineInfo,
    Point,
    Rebuilt,
    RolloutRequest,
    Verification,
)
from backend.errors import CallFailed, Cancelled, OutOfMemory, PivotscopeError, UserError, WorkFailed
from backend.records import Trace

ERRORS: dict[str, type[PivotscopeError]] = {
    kind.__name__: kind for kind in (UserError, WorkFailed, OutOfMemory, CallFailed, Cancelled)
}
"""The failures that cross the pipe as what they are; any other arrives as `CallFailed`."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine process is asked to load."""

    engine: str
    """`transformers`, `vllm` or `scripted`."""
    name: str
    """The model as people call it."""
    path: str
    """Checkpoint folder; for `scripted` the seed of its text."""
    dtype: str
    sha256: str | None = None
    batch_invariant: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    """`engine_options` of the campaign."""


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """The validator of a type."""
    return TypeAdapter(kind)


ARGUMENTS: dict[str, Any] = {
    "load": EngineSpec,
    "rollouts": list[RolloutRequest],
    "continuations": list[ContinuationRequest],
    "verify": list[Point],
    "rebuild": list[Trace],
    "holds": list[str],
    "release": list[str],
}
RESULTS: dict[str, Any] = {
    "load": EngineInfo,
    "rollouts": list[Trace],
    "continuations": Batch,
    "verify": list[Verification],
    "rebuild": list[Rebuilt],
    "holds": list[bool],
    "prompt_ids": list[int],
    "token_bytes": list[str],
    "capacity": int | None,
}


def plain(value: Any) -> Any:
    """Records as JSON data; non-finite floats stay floats, which Python's JSON writes and reads."""
    if isinstance(value, (str, int, float, bool, dict)) or value is None:
        return value
    if isinstance(value, Sequence):
        return [plain(item) for item in value] if value and not isinstance(value[0], (int, float, str)) else list(value)
    return asdict(value)


def encode(message: dict[str, Any]) -> bytes:
    """One line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """One message. Raises `ValueError` for a line that is none."""
    message: dict[str, Any] = json.loads(line)
    return message


def parse(kind: Any, value: Any) -> Any:
    """Validated records from JSON data."""
    return adapter(kind).validate_python(value)


def failure(error: BaseException) -> dict[str, str]:
    """An exception as the two fields of an error message."""
    for kind in (type(error), *type(error).__mro__):
        if kind.__name__ in ERRORS and issubclass(kind, PivotscopeError):
            return {"error": str(error), "kind": kind.__name__}
    detail = str(error).strip().splitlines()
    return {
        "error": f"the engine failed ({type(error).__name__}: {detail[0] if detail else 'no message'})",
        "kind": "CallFailed",
    }


def raised(message: dict[str, Any]) -> PivotscopeError:
    """The exception that an error message stands for."""
    return ERRORS.get(str(message.get("kind")), WorkFailed)(str(message.get("error")))
