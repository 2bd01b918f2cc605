"""Shards hold a record bit for bit, whole or not at all."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trees
from hypothesis import given, settings
from hypothesis import strategies as st

from backend import shards
from backend.errors import UserError
from backend.records import ContinuationRecord, Measurement, Pivot, ProblemRecord, Rollout, TokenText


def bits(values: list[float]) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (ProblemRecord, shards.SCHEMA),
        (Rollout, shards.ROLLOUT),
        (Pivot, shards.PIVOT),
        (Measurement, shards.MEASUREMENT),
        (ContinuationRecord, shards.CONTINUATION),
        (TokenText, shards.TOKEN),
    ],
)
def test_the_schema_has_every_field_of_the_records_in_order(kind: Any, schema: Any) -> None:
    assert [item.name for item in schema] == [item.name.rstrip("_") for item in fields(kind)]


def test_a_shard_gives_its_record_back(tmp_path: Path) -> None:
    record = trees.record(stated='{"a": 1}')
    path = shards.write_shard(tmp_path, record)
    assert shards.read_shard(path) == record
    assert shards.shard_files(tmp_path) == [path]


def test_an_empty_tree_with_everything_unknown_gives_itself_back(tmp_path: Path) -> None:
    record = ProblemRecord("p", None, None, None, "failed", "CUDA out of memory", None, None, None)
    assert shards.read_shard(shards.write_shard(tmp_path, record)) == record


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=8))
def test_doubles_survive_bit_for_bit(values: list[float]) -> None:
    values = [0.0, -0.0, float("-inf"), 5e-324, *values]
    rollout = replace(trees.rollout(), ids=[1] * len(values), logprobs=values, topk_logprobs=[[v] for v in values])
    table = shards.to_table([trees.record(rollouts=[rollout])])
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    (record,) = shards.from_table(pq.read_table(pa.BufferReader(sink.getvalue())), "memory")
    assert bits(record.rollouts[0].logprobs) == bits(values)
    assert [bits(row) for row in record.rollouts[0].topk_logprobs] == [bits([value]) for value in values]


def test_a_file_of_the_first_format_is_read_as_if_nobody_chose_an_alternative(tmp_path: Path) -> None:
    record, path = trees.record(), tmp_path / "old.parquet"
    rows = shards.to_table([record]).to_pylist()
    schema = shards._FORMERLY[1].with_metadata({shards.METADATA_KEY: b'{"format": 1}'})
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    assert shards.read_shard(path) == record
    assert all(one.alternative is None for one in record.rollouts[0].pivots[0].measurements)
    assert shards.read_shard_table(path).schema.equals(shards.SCHEMA)


def test_names_are_safe_on_any_file_system_and_differ() -> None:
    problems = ["a/b", "a_b", "a b", "A B", "..", ".", "", "../../etc", "x" * 500, "x" * 501, "ä", "問題", "a\0b"]
    names = [shards.shard_name(problem) for problem in problems]
    assert len({name.lower() for name in names}) == len(problems)
    assert all(len(name) < 120 and name.isascii() and not name.startswith(".") and "/" not in name for name in names)
    assert shards.shard_name("a/b") == names[0]


def test_files_still_being_written_are_no_shards(tmp_path: Path) -> None:
    (tmp_path / ".tmp-abc.parquet").write_bytes(b"PAR1")
    (tmp_path / "notes.txt").write_text("x")
    assert shards.shard_files(tmp_path) == []


def test_nothing_is_left_of_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    record = trees.record()
    (record.rollouts[0].ids)[0] = 2**40
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        shards.write_shard(tmp_path, record)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        shards.write_shard(tmp_path / "none", trees.record())


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def newer(path: Path) -> None:
    schema = shards.SCHEMA.with_metadata({shards.METADATA_KEY: b'{"format": 99}'})
    pq.write_table(schema.empty_table(), path)


def other_columns(path: Path) -> None:
    pq.write_table(pa.table({"problem": ["p"]}).replace_schema_metadata({shards.METADATA_KEY: b'{"format": 1}'}), path)


def two_rows(path: Path) -> None:
    shards.write_table(path, [shards.to_table([trees.record("a"), trees.record("b")])], {})


def unreadable_footer(path: Path) -> None:
    pq.write_table(shards.SCHEMA.with_metadata({shards.METADATA_KEY: b"{"}).empty_table(), path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (torn, "not a whole Parquet file"),
        (empty, "not a whole Parquet file"),
        (foreign, "not one that Pivotscope wrote"),
        (newer, "format 99"),
        (other_columns, "column question"),
        (two_rows, "holds 2 problems"),
        (unreadable_footer, "footer"),
    ],
)
def test_a_torn_or_foreign_file_is_refused_with_the_reason(tmp_path: Path, damage: Any, reason: str) -> None:
    path = shards.write_shard(tmp_path, trees.record())
    damage(path)
    with pytest.raises(UserError, match=reason) as caught:
        shards.read_shard(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_page_is_refused(tmp_path: Path) -> None:
    path = shards.write_shard(tmp_path, trees.record())
    content = bytearray(path.read_bytes())
    # In the middle of the pages: no header, no footer, a single bit.
    content[len(content) // 8] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        shards.read_shard(path)


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        shards.read_shard(tmp_path / "none.parquet")


def test_a_word_outside_the_vocabulary_is_refused_with_its_place(tmp_path: Path) -> None:
    broken = trees.record(state="finished")
    with pytest.raises(UserError, match=r"row 0, field state"):
        shards.read_shard(shards.write_shard(tmp_path, broken))
