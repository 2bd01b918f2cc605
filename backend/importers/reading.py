"""Reading a file that somebody else wrote: bounded, validated, and refused in one sentence."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from backend.errors import UserError

MAX_BYTES = 1 << 30
"""Largest file that is looked at. The published receipts are under a megabyte, a million pivots are about 400 MB."""

Model = TypeVar("Model", bound=BaseModel)


def read_bytes(path: Path) -> bytes:
    """The file's content. Raises `UserError` for one that cannot be read, is empty, or larger than `MAX_BYTES`."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise UserError(f"{path}: has {size:,} bytes; a file to import has at most {MAX_BYTES:,}, split it")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a file that exists") from None
    if not content:
        raise UserError(f"{path}: is empty; give a receipt, a rollout, or a Parquet export")
    return content


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """The JSON object in the bytes. Raises `UserError` naming the line."""
    try:
        data = from_json(content)
    except ValueError as error:
        raise UserError(f"{where}: is not JSON: {error}; give a receipt, a rollout, or a Parquet export") from None
    if not isinstance(data, dict):
        raise UserError(f"{where}: holds a JSON {_kind(data)}; a receipt or a rollout is an object")
    return data


def validate(model: type[Model], data: dict[str, Any], where: str) -> Model:
    """The data as the model, strictly. Raises `UserError` with the first fault: field or index, and what is right."""
    try:
        return model.model_validate(data, strict=True)
    except ValidationError as error:
        raise UserError(f"{where}: {_sentence(error.errors(include_url=False)[0])}") from None


def content_id(content: bytes) -> str:
    """The id of a campaign that is imported: its content's hash."""
    return hashlib.sha256(content).hexdigest()[:12]


def _sentence(fault: ErrorDetails) -> str:
    place = ""
    for part in fault["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f"{'.' if place else ''}{part}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "missing":
        return f"field {place} is missing"
    if fault["type"] == "value_error":
        return f"{place + ': ' if place else ''}{message}"
    given = repr(fault["input"])
    given = given if len(given) <= 60 else f"a {_kind(fault['input'])}"
    return f"field {place} is {given}: {message[:1].lower()}{message[1:]}"


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "truth value", int: "number", float: "number"}
    return names.get(type(value), "null")
