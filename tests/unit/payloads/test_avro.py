"""Tests of Avro payloads of any schema against fastavro, damaged ones included."""

from __future__ import annotations

import datetime
import io
import json
import math
import random
import re
from decimal import Decimal
from typing import Any

import fastavro
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from millrace.payloads.avro import AvroReader
from millrace.payloads.wire import Cursor

UTC = datetime.UTC
EVERYTHING: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "big", "type": "long"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "text", "type": "string"},
        {"name": "raw", "type": ["null", "bytes"]},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B", "C"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 5}},
        {"name": "number", "type": ["int", "null", "long"]},
        {"name": "either", "type": ["string", "null", "double", "K"]},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "deep", "type": {"type": "array", "items": {"type": "array", "items": "long"}}},
        {"name": "counts", "type": ["null", {"type": "map", "values": "int"}]},
        {
            "name": "inner",
            "type": ["null", {"type": "record", "name": "I", "fields": [
                {"name": "a", "type": "string"}, {"name": "b", "type": "H"}]}],
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}},
        {"name": "fixed_price", "type": {
            "type": "fixed", "name": "P", "size": 7, "logicalType": "decimal", "precision": 9, "scale": 0}},
    ],
}  # fmt: skip
SCHEMA = fastavro.parse_schema(json.loads(json.dumps(EVERYTHING)))
READER = AvroReader.of(json.dumps(EVERYTHING))

_text = st.text(max_size=30)
_long = st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)
_int = st.integers(-(2**31), 2**31 - 1) | st.integers(-70, 70)
_instants = st.datetimes(datetime.datetime(1800, 1, 1), datetime.datetime(2200, 1, 1))
_records = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": _int,
        "big": _long,
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "text": _text,
        "raw": st.none() | st.binary(max_size=30),
        "kind": st.sampled_from("ABC"),
        "hash": st.binary(min_size=5, max_size=5),
        "number": st.none() | _long,
        "either": st.none()
        | st.floats(allow_nan=False)
        | st.sampled_from([("K", "B"), ("string", "x"), ("string", "y" * 20)]),
        "tags": st.lists(st.none() | _text, max_size=4),
        "deep": st.lists(st.lists(_long, max_size=3), max_size=3),
        "counts": st.none() | st.dictionaries(_text, _int, max_size=3),
        "inner": st.none() | st.fixed_dictionaries({"a": _text, "b": st.binary(min_size=5, max_size=5)}),
        "day": st.dates(datetime.date(1800, 1, 1)),
        "at": _instants.map(lambda each: each.replace(tzinfo=UTC)),
        "ms": _instants.map(lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000, tzinfo=UTC)),
        "local": _instants,
        "clock": st.times(),
        "price": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-3)),
        "fixed_price": st.integers(-(10**9) + 1, 10**9 - 1).map(Decimal),
    }
)  # fmt: skip


def _written(record: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, SCHEMA, record)
    return buffer.getvalue()


def _expected(payload: bytes) -> dict[str, Any] | None:
    """Return fastavro's result as our columns have it, or None if it does not read the payload to its end."""
    buffer = io.BytesIO(payload)
    try:
        record: Any = fastavro.schemaless_reader(buffer, SCHEMA, None, return_named_type=True)
    except (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, ArithmeticError):
        return None
    if buffer.tell() != len(payload):
        return None
    either = record["either"]
    record["either"] = None if either is None else {"member0": None, "member1": None, "member2": None}
    if isinstance(either, tuple):
        record["either"]["member2"] = either[1]
    elif either is not None:
        record["either"]["member1" if isinstance(either, float) else "member0"] = either
    if isinstance(record["inner"], tuple):
        record["inner"] = record["inner"][1]
    return record


def _read(payloads: list[bytes], reader: AvroReader = READER) -> tuple[list[dict[str, Any]], dict[int, str]]:
    cursor = Cursor.over(pa.array(payloads, pa.binary()))
    batch = reader.read(cursor)
    batch.validate(full=True)
    assert batch.schema.types == reader.schema.types
    return _plain(batch), cursor.faults.texts()


def _plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = []
    for row in range(batch.num_rows):
        found = {}
        for name in batch.schema.names:
            try:
                found[name] = batch.column(name)[row].as_py()
            except (ValueError, OverflowError):
                found[name] = "beyond Python's range"
        if found.get("counts") is not None:
            found["counts"] = dict(found["counts"])
        rows.append(found)
    return rows


@given(st.lists(_records, min_size=1, max_size=12))
def test_records_are_read_as_they_were_written(records: list[dict[str, Any]]) -> None:
    payloads = [_written(record) for record in records]
    rows, faults = _read(payloads)
    assert faults == {}
    assert rows == [_expected(payload) for payload in payloads]


@settings(max_examples=150)
@given(st.lists(_records, min_size=3, max_size=6), st.randoms(use_true_random=False))
def test_damage_is_found_where_it_is(records: list[dict[str, Any]], chance: random.Random) -> None:
    payloads = [_written(record) for record in records]
    for at in range(0, len(payloads), 2):
        damaged = bytearray(payloads[at])
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(damaged))
            match chance.randrange(3):
                case 0:
                    damaged[place] = chance.randrange(256)
                case 1:
                    del damaged[place:]
                    damaged += b"\0"
                case _:
                    damaged[place:place] = bytes([chance.randrange(256)])
        payloads[at] = bytes(damaged)
    rows, faults = _read(payloads)
    for at, payload in enumerate(payloads):
        expected = _expected(payload)
        if at % 2:
            assert at not in faults
            assert rows[at] == expected
        elif at not in faults:
            # If we read a value, fastavro reads the same one. Fastavro may refuse values that Python does not have.
            assert expected is None or _same(rows[at], expected)


def _same(row: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(
        value == expected[name]
        or value == "beyond Python's range"
        or name in ("flag", "fixed_price", "price", "clock")
        or (isinstance(value, float) and math.isnan(value))
        or name == "either"
        for name, value in row.items()
    )


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ("long", b"", "a: it ends in the middle"),
        ("long", b"\x80" * 9, "a: it ends in the middle"),
        ("long", b"\xff" * 11, "a: an integer is too long"),
        ("int", b"\x80\x80\x80\x80\x80\x01", "a: a number is out of range"),
        ("string", b"\x0aab", "a: it ends in the middle"),
        ("string", b"\x01", "a: it ends in the middle"),
        ("string", b"\x04\xff\xfe", "a: text is not UTF-8"),
        ("boolean", b"\x01\x01", "the record ends before the payload"),
        (["null", "int"], b"\x04\x00", "a: the union has no alternative"),
        ({"type": "enum", "name": "E", "symbols": ["X"]}, b"\x02", "a: the enum has no symbol"),
        ({"type": "array", "items": "int"}, b"\x80\x80\x80\x80\x80\x80\x80\x01", "a: it ends in the middle"),
        ({"type": "array", "items": "string"}, b"\x04\x02a\x08b", r"a\.element: it ends in the middle"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "a: a time of day is out of range"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            b"\x02\x7f",
            "a: a number has more digits",
        ),
    ],
)
def test_faults_name_the_field(schema: Any, payload: bytes, reason: str) -> None:
    reader = AvroReader.of(json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}]}))
    cursor = Cursor.over(pa.array([payload], pa.binary()))
    reader.read(cursor)
    [(row, text)] = cursor.faults.texts().items()
    assert row == 0
    assert re.match(reason, text), text


def test_arrays_of_several_blocks_with_and_without_sizes_are_read() -> None:
    reader = AvroReader.of(
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "int"}}]}'
    )
    # Two items in a block with its size, one item in a block without, the end marker, and an empty array.
    payloads = [b"\x03\x04\x02\x04\x02\x06\x00", b"\x00", b"\x02\x08\x00"]
    rows, faults = _read(payloads, reader)
    assert (rows, faults) == ([{"a": [1, 2, 3]}, {"a": []}, {"a": [4]}], {})


def test_a_slice_is_read_from_its_own_bytes() -> None:
    payloads = pa.array([_simple(number) for number in range(1000)], pa.binary())
    reader = AvroReader.of('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}')
    batch = reader.read(Cursor.over(payloads.slice(700, 200)))
    assert batch.column("a").to_pylist() == [str(number) * (number % 9) for number in range(700, 900)]


def _simple(number: int) -> bytes:
    text = (str(number) * (number % 9)).encode()
    return bytes([len(text) * 2]) + text
