"""Shards: one `ProblemRecord` as one nested row of a Parquet file, whole or absent.

The Arrow schema below mirrors the records field by field. A shard is a file with one row; a bundle (an export, a
campaign that ships) has a row a problem and the campaign's facts in the file's metadata.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from backend.errors import UserError
from backend.files import replacing
from backend.records import ContinuationRecord, Measurement, Pivot, ProblemRecord, Rollout, TokenText

METADATA_KEY = b"pivotscope"
FORMAT = 2
"""Raised when the schema below changes in a way that an older reader cannot take. 2: `measurement.alternative`."""

_TOGETHER = 1 << 26
"""Bytes of a table from which on it is passed on alone: each one costs its reader the same few statements."""

_INTEGERS = pa.list_(pa.int32())
_DOUBLES = pa.list_(pa.float64())

CONTINUATION = pa.struct(
    {
        "arm": pa.string(),
        "i": pa.int32(),
        "seed": pa.int32(),
        "ids": _INTEGERS,
        "logprobs": _DOUBLES,
        "finish_reason": pa.string(),
        "answer": pa.string(),
        "correct": pa.bool_(),
        "expected_cached": pa.int32(),
        "cached": pa.int32(),
    }
)
MEASUREMENT = pa.struct(
    {
        "pass": pa.string(),
        "run": pa.string(),
        "k": pa.int32(),
        "n_actual": pa.int32(),
        "n_alternative": pa.int32(),
        "numerator": pa.int32(),
        "truncated_actual": pa.int32(),
        "truncated_alternative": pa.int32(),
        "provenance": pa.string(),
        "started": pa.string(),
        "seconds": pa.float64(),
        "output_sha256": pa.string(),
        "requests": pa.int32(),
        "cache_misses": pa.int32(),
        "warm_requests": pa.int32(),
        "preemptions": pa.int32(),
        "logprobs_equal": pa.bool_(),
        "logprobs_max_difference": pa.float64(),
        "seeds_sha256": pa.string(),
        "engine": pa.string(),
        "probe_diverged": pa.bool_(),
        "probe_delta": pa.float64(),
        "continuations": pa.list_(CONTINUATION),
        "alternative": pa.int32(),
    }
)
PIVOT = pa.struct(
    {
        "position": pa.int32(),
        "actual": pa.int32(),
        "alternative": pa.int32(),
        "margin": pa.float64(),
        "planned": pa.bool_(),
        "measurements": pa.list_(MEASUREMENT),
    }
)
ROLLOUT = pa.struct(
    {
        "rollout": pa.int32(),
        "seed": pa.int32(),
        "prompt_ids": _INTEGERS,
        "ids": _INTEGERS,
        "logprobs": _DOUBLES,
        "topk_ids": pa.list_(_INTEGERS),
        "topk_logprobs": pa.list_(_DOUBLES),
        "finish_reason": pa.string(),
        "answer": pa.string(),
        "correct": pa.bool_(),
        "pivots": pa.list_(PIVOT),
    }
)
TOKEN = pa.struct({"id": pa.int32(), "bytes": pa.binary()})
SCHEMA = pa.schema(
    {
        "problem": pa.string(),
        "question": pa.string(),
        "gold": pa.string(),
        "source": pa.string(),
        "state": pa.string(),
        "error": pa.string(),
        "seconds": pa.float64(),
        "engine": pa.string(),
        "engine_info": pa.string(),
        "rollouts": pa.list_(ROLLOUT),
        "tokens": pa.list_(TOKEN),
        "stated": pa.string(),
    }
)


def _formerly(kind: pa.DataType) -> pa.DataType:
    """A type of `SCHEMA` as format 1 had it: without a measurement's `alternative`."""
    if pa.types.is_list(kind):
        return pa.list_(_formerly(kind.value_type))
    if pa.types.is_struct(kind):
        lost = "alternative" if kind == MEASUREMENT else None
        return pa.struct([item.with_type(_formerly(item.type)) for item in kind if item.name != lost])
    return kind


_FORMERLY = {1: pa.schema([item.with_type(_formerly(item.type)) for item in SCHEMA])}
"""The schemas of older formats, which are read as if the columns that they lack were there and unknown."""

_RECORD = TypeAdapter(ProblemRecord)


def to_table(records: Iterable[ProblemRecord]) -> pa.Table:
    """One row a record, under `SCHEMA`."""
    return pa.Table.from_pylist([_plain(record) for record in records], schema=SCHEMA)


def from_table(table: pa.Table, where: str) -> list[ProblemRecord]:
    """Records from rows of `SCHEMA`. Raises `UserError`, naming `where`, the row and the field."""
    records = []
    for index, row in enumerate(table.to_pylist()):
        try:
            records.append(_RECORD.validate_python(_renamed(row)))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in fault["loc"])
            raise UserError(f"{where}: row {index}, field {field}: {fault['msg']}, not {fault['input']!r}") from None
    return records


def shard_name(problem: str) -> str:
    """File name for a problem's shard: readable, safe on any file system, different for different problems."""
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", problem).strip("-")[:60]
    return f"{readable or 'problem'}-{hashlib.sha256(problem.encode()).hexdigest()[:16]}.parquet"


def write_shard(folder: Path, record: ProblemRecord) -> Path:
    """Write a record as its shard; it is there whole, flushed to the disk, or not at all."""
    path = folder / shard_name(record.problem)
    write_table(path, [to_table([record])], {})
    return path


def read_shard(path: Path) -> ProblemRecord:
    """A shard's record. Raises `UserError` for a torn or foreign file, with the reason."""
    return from_table(read_shard_table(path), str(path))[0]


def shard_files(folder: Path) -> list[Path]:
    """The folder's finished shards by name; files still being written have other names."""
    return sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))


def read_shard_table(path: Path) -> pa.Table:
    """A shard's single row under `SCHEMA`. Raises `UserError` for a torn or foreign file."""
    with open_table(path) as file:
        table = pa.concat_tables([SCHEMA.empty_table(), *row_groups(file, path)])
    if table.num_rows != 1:
        raise UserError(f"{path}: holds {table.num_rows} problems; a shard holds exactly one")
    return table


def write_table(path: Path, tables: Iterable[pa.Table], metadata: Mapping[str, Any]) -> None:
    """Write tables of `SCHEMA` as the row groups of one file, with `metadata` as a JSON document in its footer."""
    document = json.dumps({"format": FORMAT, **metadata}, sort_keys=True)
    schema = SCHEMA.with_metadata({METADATA_KEY: document.encode()})
    with replacing(path) as temporary, _writer(temporary, schema) as writer:
        for table in tables:
            writer.write_table(table.replace_schema_metadata(schema.metadata))


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    # Logprobs are singles kept as doubles: byte by byte their empty halves compress away, which halves a file.
    leaves = [leaf for field in schema for leaf in _leaves(field.name, field.type)]
    doubles = [name for name, kind in leaves if pa.types.is_float64(kind)]
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        write_page_checksum=True,
        use_dictionary=[name for name, _ in leaves if name not in doubles],
        use_byte_stream_split=doubles,
    )


def _leaves(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """The columns of a nested type, under the names that Parquet gives them."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{name}.{field.name}", field.type)
    elif pa.types.is_list(kind):
        yield from _leaves(f"{name}.list.element", kind.value_type)
    else:
        yield name, kind


def open_table(path: Path) -> pq.ParquetFile:
    """Open one of our Parquet files. Raises `UserError` for a torn one, a foreign one, and one of a newer format."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); give a Parquet file") from None
    except pa.ArrowInvalid:
        raise UserError(f"{path}: is not a whole Parquet file; it is torn or of another kind") from None
    found = file.schema_arrow
    if METADATA_KEY not in (found.metadata or {}):
        file.close()
        raise UserError(f"{path}: is a Parquet file, but not one that Pivotscope wrote")
    try:
        version = int(metadata_of(file)["format"])
    except (ValueError, KeyError, TypeError):
        file.close()
        raise UserError(f"{path}: its footer is not the one that Pivotscope wrote; export the campaign again") from None
    if version > FORMAT:
        file.close()
        raise UserError(f"{path}: is of format {version}, and this Pivotscope reads up to {FORMAT}; update Pivotscope")
    wanted = _FORMERLY.get(version, SCHEMA)
    if not found.equals(wanted):
        wrong = next((name for name in wanted.names if name not in found.names), None)
        wrong = wrong or next((name for name in wanted.names if found.field(name) != wanted.field(name)), "order")
        file.close()
        raise UserError(f"{path}: column {wrong} is missing or of another type; export the campaign again")
    return file


def row_groups(file: pq.ParquetFile, path: Path) -> Iterator[pa.Table]:
    """The file's rows under `SCHEMA`, as many row groups at a time as are small together, in the file's order.

    Raises `UserError` for a damaged one: pages carry checksums.
    """
    together: list[pa.Table] = []
    for group in range(file.num_row_groups):
        try:
            # Many short columns: handing each to another thread takes longer than reading it.
            together.append(file.read_row_group(group, use_threads=False).cast(SCHEMA))
        except (OSError, pa.ArrowInvalid):
            raise UserError(f"{path}: is damaged in row group {group}; write it again") from None
        if sum(table.nbytes for table in together) > _TOGETHER:
            yield pa.concat_tables(together)
            together = []
    if together:
        yield pa.concat_tables(together)


def metadata_of(file: pq.ParquetFile) -> dict[str, Any]:
    """The JSON document in the file's footer."""
    document: dict[str, Any] = json.loads(file.schema_arrow.metadata[METADATA_KEY])
    return document


_COLUMNS = {
    kind: tuple((item.name, item.name.rstrip("_")) for item in fields(kind))
    for kind in (ProblemRecord, Rollout, Pivot, Measurement, ContinuationRecord, TokenText)
}
"""Attribute and column of each field of the records."""


def _plain(value: Any) -> Any:
    # dataclasses.asdict copies every number of every list; these lists are long, so they are passed through.
    if columns := _COLUMNS.get(type(value)):
        return {column: _plain(getattr(value, attribute)) for attribute, column in columns}
    if isinstance(value, list) and value and type(value[0]) in _COLUMNS:
        return [_plain(item) for item in value]
    return value


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    for rollout in row["rollouts"] or []:
        for pivot in rollout["pivots"] or []:
            for measurement in pivot["measurements"] or []:
                measurement["pass_"] = measurement.pop("pass")
    return row
