"""Tests of the quick conversion of columnar batches to rows."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.records import (
    HEADERS_TYPE,
    OPAQUE_SCHEMA,
    ROWS_BYTES_MAX,
    Compression,
    TimestampType,
    build_columnar_batch,
    conversion,
    read_columns_header,
    read_header,
    rows_of_opaque,
    seal,
    validate_batch,
)
from millrace.records.columnar import ColumnFlags
from millrace.records.usual_conversion import usual_rows_of
from millrace.records.usual_message import read_usual_message

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=20)
_UNLIKE_MOST: dict[str, dict[str, Any]] = {
    "compressed": {"compression": Compression.LZ4},
    "stamped by the broker": {"timestamp_type": TimestampType.LOG_APPEND_TIME},
    "a delete horizon": {"delete_horizon_ms": 7, "timestamps_ms": pa.array([5, 6], pa.int64())},
    "a gap": {"offsets": pa.array([0, 2], pa.int64())},
    "a gap at the end": {"last_offset_delta": 5},
    "headers": {"headers": pa.array([[("h", b"1")], []], HEADERS_TYPE)},
}


def built(values: list[bytes | None], keys: list[bytes | None] | None = None, **fields: Any) -> bytes:
    columns = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        columns = {"key": pa.array(keys, pa.binary())} | columns
    schema = pa.schema([OPAQUE_SCHEMA.field(name) for name in columns])
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    return bytes(build_columnar_batch(batch, **{"timestamps_ms": 5} | fields))


def quick(batch: bytes) -> bytes | None:
    return usual_rows_of(batch, read_header(batch), bytes_max=ROWS_BYTES_MAX)


def slow(batch: bytes) -> list[bytes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "usual_rows_of", lambda *_, **__: None)
        return list(rows_of_opaque(batch))


@given(
    values=VALUES,
    has_keys=st.booleans(),
    times_ms=st.one_of(st.integers(-1, 2**50), st.lists(st.integers(-1, 2**50), min_size=20, max_size=20)),
    base_offset=st.integers(0, 2**40),
    producer=st.sampled_from(
        [
            {},
            {"producer_id": 3, "producer_epoch": 1, "base_sequence": 9},
            {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True},
        ]
    ),
)
def test_usual_batches_become_the_same_rows(
    values: list[bytes], has_keys: bool, times_ms: int | list[int], base_offset: int, producer: dict[str, Any]
) -> None:
    batch = built(
        list(values),
        [value[::-1] for value in values] if has_keys else None,
        timestamps_ms=times_ms if isinstance(times_ms, int) else pa.array(times_ms[: len(values)], pa.int64()),
        base_offset=base_offset,
        leader_epoch=4,
        **producer,
    )
    found = quick(batch)
    assert found is not None
    assert [found] == slow(batch) == list(rows_of_opaque(batch))
    validate_batch(found, 0, read_header(found), lambda schema_id: pa.schema([]))


@pytest.mark.parametrize("count", [255, 256, 8_000])
def test_batches_with_and_without_statistics_are_usual(count: int) -> None:
    batch = built([b"x" * 100] * count, timestamps_ms=pa.array(range(count), pa.int64()))
    assert [quick(batch)] == slow(batch)


@pytest.mark.parametrize("name", _UNLIKE_MOST)
def test_batches_unlike_most_are_left_to_arrow(name: str) -> None:
    batch = built([b"a", b"b"], **_UNLIKE_MOST[name])
    assert quick(batch) is None
    assert list(rows_of_opaque(batch)) == slow(batch)


@pytest.mark.parametrize("column", ["key", "value"])
def test_nulls_are_left_to_arrow(column: str) -> None:
    nulls: list[bytes | None] = [b"a", None]
    batch = built(nulls if column == "value" else [b"a", b"b"], nulls if column == "key" else None)
    assert quick(batch) is None


def test_batches_of_typed_topics_are_left_to_others() -> None:
    columns = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
    assert quick(bytes(build_columnar_batch(columns, schema_id=1, timestamps_ms=5))) is None


@pytest.mark.parametrize("size_bytes", [ROWS_BYTES_MAX - 40, ROWS_BYTES_MAX - 5, ROWS_BYTES_MAX, ROWS_BYTES_MAX + 1])
def test_batches_that_may_be_divided_are_left_to_others(size_bytes: int) -> None:
    batch = built([b"a", b"x" * size_bytes])
    found = quick(batch)
    assert found is None or [found] == slow(batch)
    assert (found is None) is (size_bytes > ROWS_BYTES_MAX - 40)


def test_offsets_of_values_that_do_not_ascend_are_left_to_arrow() -> None:
    batch = bytearray(built([b"first", b"second", b"third"]))
    header = read_header(batch)
    message = read_usual_message(batch, 0, header)
    assert message is not None
    body_at = bytes(batch).index(bytes(message.body), read_columns_header(batch, 0, header).message_position)
    for row, offset in [(0, -1), (1, 2**30), (1, 12), (2, 4), (3, 17), (3, -5)]:
        damaged = bytearray(batch)
        struct.pack_into("<i", damaged, body_at + message.columns[-1][1].start + 4 * row, offset)
        assert quick(bytes(damaged)) is None, (row, offset)


@given(
    values=VALUES,
    has_keys=st.booleans(),
    damages=st.lists(st.tuples(st.integers(61, 700), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_a_damaged_message_is_never_read_beyond_its_end(
    values: list[bytes], has_keys: bool, damages: list[tuple[int, int]]
) -> None:
    """The caller verifies the checksum, so the content may be wrong, but it stays within the batch."""
    batch = bytearray(built(list(values), list(values) if has_keys else None))
    for position, mask in damages:
        if position < len(batch):
            batch[position] ^= mask
    header = read_header(batch)
    found = usual_rows_of(bytes(batch), header, bytes_max=ROWS_BYTES_MAX)
    if found is not None:
        message = read_usual_message(batch, 0, header)
        assert message is not None
        assert bool(message.flags & ColumnFlags.KEY) is has_keys or not has_keys
        assert len(found) <= 61 + 31 * header.count + 2 * len(message.body)
        validate_batch(found, 0, read_header(found), lambda schema_id: pa.schema([]))


def test_a_batch_at_an_odd_address_is_converted_too() -> None:
    batch = built([b"a", b"b"], timestamps_ms=pa.array([5, 6], pa.int64()))
    shifted = memoryview(b"x" + batch)[1:]
    assert list(rows_of_opaque(shifted)) == slow(batch)


def test_a_header_that_contradicts_the_message_is_left_to_arrow() -> None:
    batch = built([b"a", b"b"])
    header = read_header(batch)._replace(count=3, last_offset_delta=2)
    assert usual_rows_of(seal(header, batch[61:]), header, bytes_max=ROWS_BYTES_MAX) is None
