"""The quick check of small columnar batches never contradicts the complete one."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.records import (
    OPAQUE_SCHEMA,
    Compression,
    TimestampType,
    build_columnar_batch,
    read_columns_header,
    read_header,
    seal,
    usual_column_times,
    validate_batch,
)
from millrace.records.ipc_message import number_positions

NOW_MS = 1_790_000_000_000
VALUES = st.lists(st.binary(max_size=70), min_size=1, max_size=12)


def built(values: list[bytes | None], keys: list[bytes | None] | None = None, **fields: object) -> bytes:
    columns = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        columns = {"key": pa.array(keys, pa.binary())} | columns
    schema = pa.schema([OPAQUE_SCHEMA.field(name) for name in columns])
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)
    return build_columnar_batch(batch, **{"timestamps_ms": NOW_MS} | fields)  # type: ignore[arg-type]


def check(batch: bytes) -> tuple[int, int] | None:
    """Return the result of the quick check, which must not contradict the complete one."""
    header = read_header(batch)
    times_ms = usual_column_times(batch, 0, header)
    if times_ms is not None:
        found = validate_batch(batch, 0, header, lambda schema_id: pa.schema([]))
        assert not found.has_gaps
        assert found.time_range_ms() == times_ms
    return times_ms


@pytest.mark.parametrize("count", [1, 2, 255])
@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, 100, 1_000])
def test_batches_of_producers_pass_the_quick_check(count: int, has_keys: bool, size_bytes: int) -> None:
    values: list[bytes | None] = [b"x" * size_bytes] * count
    assert check(built(values, values if has_keys else None)) == (NOW_MS, NOW_MS)


def test_a_batch_is_checked_wherever_it_is() -> None:
    batch = built([b"value"])
    for data in (batch + batch, memoryview(batch + batch), pa.py_buffer(batch + batch)):
        assert usual_column_times(data, len(batch), read_header(batch)) == (NOW_MS, NOW_MS)


@pytest.mark.parametrize(
    "batch",
    [
        built([b"a", None]),
        built([b"a", b"b"], [b"key", None]),
        built([b"a", b"b"], timestamps_ms=pa.array([NOW_MS, NOW_MS + 1])),
        built([b"a"], headers=pa.array([[("name", b"value")]], pa.list_(pa.struct(
            [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
        )))),
        built([b"a"] * 100, compression=Compression.LZ4),
        built([b"a"] * 256),
        built([]),
        built([b"a", b"b"], offsets=pa.array([0, 5])),
        built([b"a", b"b"], last_offset_delta=5),
        built([b"a"], timestamp_type=TimestampType.LOG_APPEND_TIME),
        built([b"a"], delete_horizon_ms=NOW_MS + 1),
    ],
    ids=[
        "null", "null key", "times", "headers", "compressed", "many rows", "no rows", "offsets", "gap at the end",
        "broker's time", "delete horizon",
    ],
)  # fmt: skip
def test_other_batches_are_left_to_the_complete_check(batch: bytes) -> None:
    assert check(batch) is None


def test_a_batch_whose_header_says_rows_is_left_to_the_complete_check() -> None:
    batch = built([b"a"])
    as_rows = read_header(batch)._replace(attributes=0)
    assert usual_column_times(seal(as_rows, batch[61:]), 0, as_rows) is None


@given(VALUES, st.booleans(), st.data())
def test_the_quick_check_of_a_damaged_batch_never_contradicts_the_complete_one(
    values: list[bytes], has_keys: bool, data: st.DataObject
) -> None:
    batch = bytearray(built([*values], [*values] if has_keys else None))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(61, len(batch) - 1))
        if data.draw(st.booleans()):
            batch[position] ^= 1 << data.draw(st.integers(0, 7))
        else:
            batch[position] = data.draw(st.sampled_from([0, 1, 2, 4, 8, 0x7F, 0xFF]))
    check(bytes(batch))


NUMBERS = st.integers(0, 40) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 2**31, 2**32, 2**62])


@given(VALUES, st.booleans(), st.integers(0, 17), NUMBERS)
@example([b"a"], False, 0, 0)
def test_the_quick_check_of_other_numbers_never_contradicts_the_complete_one(
    values: list[bytes], has_keys: bool, which: int, number: int
) -> None:
    batch = bytearray(built([*values], [*values] if has_keys else None))
    start = read_columns_header(batch, 0, read_header(batch)).message_position
    positions, _ = number_positions(pa.py_buffer(bytes(batch)).slice(start))
    struct.pack_into("<q", batch, start + positions[which % len(positions)], number)
    check(bytes(batch))


OFFSETS = st.integers(-2, 12) | st.sampled_from([2**31 - 1, -(2**31)])


@given(VALUES, st.integers(0, 12), OFFSETS)
def test_the_quick_check_of_other_offsets_never_contradicts_the_complete_one(
    values: list[bytes], which: int, offset: int
) -> None:
    batch = bytearray(built([*values]))
    columns = read_columns_header(batch, 0, read_header(batch))
    body = columns.message_position + number_positions(pa.py_buffer(bytes(batch)).slice(columns.message_position))[1]
    struct.pack_into("<i", batch, body + 4 * (which % (len(values) + 1)), offset)
    check(bytes(batch))


@given(VALUES, st.sampled_from(["count", "last_offset_delta", "base_timestamp", "max_timestamp"]), st.integers(-3, 3))
def test_the_quick_check_of_another_header_never_contradicts_the_complete_one(
    values: list[bytes], field: str, difference: int
) -> None:
    batch = built([*values])
    header = read_header(batch)
    changed = header._replace(**{field: getattr(header, field) + difference})
    check(seal(changed, batch[61:]))
