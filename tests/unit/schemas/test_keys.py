"""Tests of key bytes against Kafka's serializers, and of null keys."""

import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.schemas import encode_keys, is_keyable


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array(["é", None, ""]), ["é".encode(), None, b""]),
        (pa.array([b"\0", None]), [b"\0", None]),
        (pa.array([1, None, -1], pa.int32()), [b"\0\0\0\1", None, b"\xff" * 4]),
        (pa.array([1, -2], pa.int64()), [b"\0\0\0\0\0\0\0\1", b"\xff" * 7 + b"\xfe"]),
        (pa.array([258], pa.int16()), [b"\1\2"]),
        (pa.array([-1], pa.int8()), [b"\xff"]),
        (pa.array([True, False, None]), [b"\1", b"\0", None]),
        (pa.array([date(1970, 1, 2)]), [b"\0\0\0\1"]),
        (pa.array([datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")), [struct.pack(">q", 10**6)]),
        (pa.array([Decimal("-0.01")], pa.decimal128(5, 2)), [b"\xff" * 16]),
        (pa.array([], pa.string()), []),
    ],
)
def test_a_key_of_one_column_has_the_bytes_of_its_value(array: pa.Array, expected: list[bytes | None]) -> None:
    assert is_keyable(array.type)
    padded = pa.concat_arrays([array, array])
    for source in (array, padded.slice(len(array)), pa.chunked_array([array[:1], array[1:]], type=array.type)):
        assert encode_keys(pa.table({"k": source}), ["k"]).to_pylist() == expected


_rows = st.lists(st.tuples(st.none() | st.text(max_size=5), st.none() | st.integers(-(2**31), 2**31 - 1)), max_size=20)


@given(_rows)
def test_several_columns_are_framed_so_that_different_keys_differ(rows: list[tuple[str | None, int | None]]) -> None:
    table = pa.table(
        {"a": pa.array([a for a, _ in rows], pa.string()), "b": pa.array([b for _, b in rows], pa.int32())}
    )

    def frame(value: bytes | None) -> bytes:
        return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value

    expected = [
        None
        if a is None and b is None
        else frame(None if a is None else a.encode()) + frame(None if b is None else struct.pack(">i", b))
        for a, b in rows
    ]
    assert encode_keys(table, ["a", "b"]).to_pylist() == expected
