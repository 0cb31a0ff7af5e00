"""Tests of Protobuf payloads against the Protobuf library, whatever wrote them."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import Phase, given, settings

from millrace.payloads.protobuf import ProtobufReader
from millrace.payloads.wire import Cursor
from millrace.schemas import compile_proto

PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
message R {
  enum Kind { NONE = 0; SOME = 1; MANY = 500; }
  message Inner {
    string a = 1; optional int32 b = 2; repeated string c = 3; Deep deep = 4; message Deep { bool x = 1; }
  }
  double d = 1; float f = 2; int64 i64 = 3; uint64 u64 = 4; int32 i32 = 5; fixed64 f64 = 6; fixed32 f32 = 7;
  bool flag = 8; string text = 9; bytes raw = 10; uint32 u32 = 11; Kind kind = 12; sfixed32 s32 = 13; sfixed64 s64 = 14;
  sint32 z32 = 15; sint64 z64 = 16;
  optional string maybe = 20; optional Kind maybe_kind = 21; Inner inner = 22; repeated Inner inners = 23;
  repeated int32 packed = 24; repeated double doubles = 25; repeated string texts = 26; repeated Kind kinds = 27;
  map<string, int64> counts = 28; map<int32, Inner> by_number = 29;
  oneof choice { string card = 30; int32 cash = 31; }
  google.protobuf.Timestamp at = 300; google.protobuf.Duration took = 301; google.protobuf.StringValue note = 302;
  google.type.Date day = 303; google.type.TimeOfDay clock = 304;
  repeated sint64 loose = 2000 [packed = false];
}
message Newer {
  string text = 9; repeated string more = 3000; fixed32 x = 3001; fixed64 y = 3002; int64 z = 3003;
}
"""
FILE = compile_proto(PROTO)
DESCRIPTOR = FILE.message("R")
CLASS: Any = FILE.message_class(DESCRIPTOR)
READER = ProtobufReader.of(FILE, DESCRIPTOR)

_i32, _i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_u32, _u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_kind = st.sampled_from([0, 1, 500, 7])
_text = st.text(max_size=20)
_deep = st.fixed_dictionaries({}, optional={"x": st.booleans()})
_inner = st.fixed_dictionaries({}, optional={"a": _text, "b": _i32, "c": st.lists(_text, max_size=3), "deep": _deep})
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "d": st.floats(allow_nan=False), "f": st.floats(width=32, allow_nan=False), "i64": _i64, "u64": _u64, "i32": _i32,
    "f64": _u64, "f32": _u32, "flag": st.booleans(), "text": _text, "raw": st.binary(max_size=20), "u32": _u32,
    "kind": _kind, "s32": _i32, "s64": _i64, "z32": _i32, "z64": _i64, "maybe": _text, "maybe_kind": _kind,
    "inner": _inner, "inners": st.lists(_inner, max_size=3), "packed": st.lists(_i32, max_size=4),
    "doubles": st.lists(st.floats(allow_nan=False), max_size=3), "texts": st.lists(_text, max_size=3),
    "kinds": st.lists(_kind, max_size=3), "counts": st.dictionaries(_text, _i64, max_size=3),
    "by_number": st.dictionaries(_i32, _inner, max_size=2), "card": _text, "cash": _i32,
    "at": st.fixed_dictionaries({"seconds": st.integers(-10**9, 10**11), "nanos": st.integers(0, 10**9 - 1)}),
    "took": st.fixed_dictionaries({"seconds": st.integers(0, 10**6), "nanos": st.integers(0, 10**9 - 1)}),
    "note": st.fixed_dictionaries({"value": _text}),
    "day": st.dates().map(lambda day: {"year": day.year, "month": day.month, "day": day.day}),
    "clock": st.fixed_dictionaries({"hours": st.integers(0, 23), "nanos": st.integers(0, 10**9 - 1)}),
    "loose": st.lists(_i64, max_size=3),
}  # fmt: skip
_messages = st.fixed_dictionaries({}, optional=_FIELDS).map(lambda values: _message(values))


def _message(values: dict[str, Any]) -> Message:
    if "card" in values:
        values.pop("cash", None)
    message = CLASS()
    for name, inner in values.pop("by_number", {}).items():
        message.by_number[name].MergeFrom(type(message.by_number[name])(**inner))
    message.MergeFrom(CLASS(**values))
    return message  # type: ignore[no-any-return]


def _kind_name(number: int) -> str:
    found = DESCRIPTOR.enum_types_by_name["Kind"].values_by_number.get(number)
    return found.name if found else str(number)


def _inner_row(inner: Any) -> dict[str, Any]:
    return {
        "a": inner.a,
        "b": inner.b if inner.HasField("b") else None,
        "c": list(inner.c),
        "deep": {"x": inner.deep.x} if inner.HasField("deep") else None,
    }


def _row(message: Any) -> dict[str, Any]:
    """Return a message as our columns have it, by the library's own accessors."""
    row = {name: getattr(message, name) for name in list(_FIELDS)[:16]}
    row["kind"] = _kind_name(message.kind)
    for name in ("maybe", "maybe_kind", "card", "cash"):
        row[name] = getattr(message, name) if message.HasField(name) else None
    row["maybe_kind"] = None if row["maybe_kind"] is None else _kind_name(row["maybe_kind"])
    for name in ("packed", "doubles", "texts", "loose"):
        row[name] = list(getattr(message, name))
    row["kinds"] = list(map(_kind_name, message.kinds))
    row["inner"] = _inner_row(message.inner) if message.HasField("inner") else None
    row["inners"] = list(map(_inner_row, message.inners))
    row["counts"] = dict(message.counts)
    row["by_number"] = {number: _inner_row(inner) for number, inner in message.by_number.items()}
    for name in ("at", "took"):
        value = getattr(message, name)
        row[name] = value.seconds * 10**6 + value.nanos // 1000 if message.HasField(name) else None
    row["note"] = message.note.value if message.HasField("note") else None
    day, clock = message.day, message.clock
    row["day"] = (day.year, day.month, day.day) if message.HasField("day") else None
    row["clock"] = clock.hours * 3_600 * 10**9 + clock.nanos if message.HasField("clock") else None
    return row


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    numbers = {"at": pa.int64(), "took": pa.int64(), "clock": pa.int64()}
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        column = column.cast(numbers[name]) if name in numbers else column
        values = column.to_pylist()
        if name in ("counts", "by_number"):
            values = [dict(value) for value in values]
        if name == "day":
            values = [value and (value.year, value.month, value.day) for value in values]
        columns.append(values)
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _read(payloads: list[bytes]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    cursor = Cursor.over(pa.array(payloads, pa.binary()))
    batch = READER.read(cursor)
    batch.validate(full=True)
    assert batch.schema.types == READER.schema.types
    faults = cursor.faults.texts()
    good = batch.filter(pa.array([row not in faults for row in range(len(payloads))]))
    return _rows(good), faults


@given(st.lists(_messages, min_size=1, max_size=10))
def test_messages_are_read_as_the_library_reads_them(messages: list[Message]) -> None:
    assert _read([message.SerializeToString() for message in messages]) == ([_row(message) for message in messages], {})


@given(st.lists(_messages, min_size=2, max_size=5))
def test_messages_one_after_the_other_in_a_payload_are_merged(messages: list[Message]) -> None:
    # By Protobuf's rules two messages one after the other in a payload are one message.
    payloads = [b"".join(each.SerializeToString() for each in messages[at:]) for at in range(len(messages))]
    assert _read(payloads) == ([_row(CLASS.FromString(payload)) for payload in payloads], {})


@settings(max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(_messages, min_size=3, max_size=5), st.randoms(use_true_random=False))
def test_damage_is_what_the_library_refuses(messages: list[Message], chance: random.Random) -> None:
    payloads = [message.SerializeToString() for message in messages]
    for at in range(0, len(payloads), 2):
        damaged = bytearray(payloads[at] or b"\x08")
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        payloads[at] = bytes(damaged[: chance.randrange(len(damaged) + 1)])
    rows, faults = _read(payloads)
    good = iter(rows)
    for at, payload in enumerate(payloads):
        try:
            expected = _row(CLASS.FromString(payload))
        except DecodeError:
            assert at in faults
            continue
        if at not in faults:
            assert _differences(next(good), expected) == {}
        else:
            # The library accepts a date without a day, or an hour of 99. A column does not.
            assert faults[at].startswith(("day:", "clock:", "at:", "took:"))


@pytest.mark.parametrize(
    ("field", "parts", "is_valid"),
    [
        ("day", {"year": 2024, "month": 2, "day": 29}, True),
        ("day", {"year": 2023, "month": 2, "day": 29}, False),
        ("day", {"year": 2024, "month": 4, "day": 31}, False),
        ("day", {"year": 9999, "month": 12, "day": 31}, True),
        ("day", {"year": 0, "month": 1, "day": 1}, False),
        ("day", {"year": 2024, "month": 2}, False),
        ("clock", {"hours": 23, "minutes": 59, "seconds": 59, "nanos": 999_999_999}, True),
        ("clock", {"hours": 1, "minutes": 90}, False),
        ("clock", {"hours": 1, "minutes": -30}, False),
        ("clock", {"hours": 1, "seconds": 60}, False),
        ("clock", {"hours": 1, "nanos": 10**9}, False),
        ("at", {"seconds": -62_135_596_800}, True),
        ("at", {"seconds": -62_135_596_801}, False),
        ("at", {"seconds": 253_402_300_799, "nanos": 999_999_999}, True),
        ("at", {"seconds": 253_402_300_800}, False),
        ("at", {"seconds": 10, "nanos": -1_500}, False),
        ("at", {"seconds": 10, "nanos": 2 * 10**9}, False),
        ("took", {"seconds": 315_576_000_000}, True),
        ("took", {"seconds": -315_576_000_001}, False),
        ("took", {"seconds": 10, "nanos": 10**9}, False),
    ],
)
def test_a_date_or_time_that_does_not_exist_is_a_fault(field: str, parts: dict[str, int], is_valid: bool) -> None:
    message = CLASS(i32=1)
    for name, number in parts.items():
        setattr(getattr(message, field), name, number)
    rows, faults = _read([message.SerializeToString(), CLASS(i32=2).SerializeToString()])
    assert [row["i32"] for row in rows] == ([1, 2] if is_valid else [2])
    assert list(faults) == ([] if is_valid else [0])


def test_a_packed_field_after_an_unfinished_one_keeps_its_first_number() -> None:
    tag = _varint(DESCRIPTOR.fields_by_name["packed"].number << 3 | 2)
    unfinished, sound = tag + b"\x02\x05\x80", tag + b"\x03\x07\x08\x09"
    rows, faults = _read([sound, unfinished, sound, unfinished, b"", sound])
    assert sorted(faults) == [1, 3]
    assert [row["packed"] for row in rows] == [[7, 8, 9], [7, 8, 9], [], [7, 8, 9]]


def test_of_numbers_too_long_for_their_type_the_low_bits_count() -> None:
    # The writer may have the field's earlier type.
    fields = {name: DESCRIPTOR.fields_by_name[name].number for name in ("i32", "u32", "z32", "kind")}
    words = [2**32, 2**33 + 5, 2**63 + 2**32 + 3, 2**64 - 1]
    payloads = [_varint(number << 3) + _varint(word) for number in fields.values() for word in words]
    assert _read(payloads) == ([_row(CLASS.FromString(payload)) for payload in payloads], {})


def _varint(word: int) -> bytes:
    low, high = word & 0x7F, word >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that differ. Two NaNs are equal."""
    return {
        name: (value, expected[name])
        for name, value in found.items()
        if value != expected[name] and not ("nan" in repr(value) and repr(value) == repr(expected[name]))
    }


def test_fields_of_newer_versions_are_left_out() -> None:
    newer: Any = FILE.message_class(FILE.message("Newer"))
    known = newer(text="kept", more=["x" * 300], x=1, y=2, z=-1).SerializeToString()
    rows, faults = _read([known, known, CLASS(text="plain").SerializeToString()])
    assert ([row["text"] for row in rows], faults) == (["kept", "kept", "plain"], {})


def test_a_malformed_message_is_named() -> None:
    rows, faults = _read([CLASS(i32=1).SerializeToString(), b"\xff\xff\xff", b""])
    assert [row["i32"] for row in rows] == [1, 0]
    assert list(faults) == [1]
    assert faults[1].startswith("it is not a R: ")


def test_an_entry_of_a_map_with_more_in_it_is_what_the_library_makes_of_it() -> None:
    payload = CLASS(counts={"a": 1}).SerializeToString()
    longer = payload[:2] + bytes([payload[2] + 2]) + payload[3:] + b"\x18\x05"
    rows, faults = _read([longer, payload])
    assert ([row["counts"] for row in rows], faults) == ([dict(CLASS.FromString(longer).counts), {"a": 1}], {})
