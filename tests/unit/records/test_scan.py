from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records import (
    Record,
    TimestampType,
    assign_offsets,
    build_rows_batch,
    crc_matches,
    read_header,
    read_rows,
    scan_headers,
    set_max_timestamp,
    stamp_append_time,
    verify_crc,
)


def batch(count: int, base_offset: int = 0) -> bytes:
    return build_rows_batch([Record(value=b"v", timestamp_ms=7)] * count, base_offset=base_offset)


THREE = batch(1) + batch(2, 1) + batch(3, 3)


def test_finds_every_batch_and_its_position() -> None:
    found = [(position, header.base_offset, header.count) for position, header in scan_headers(THREE)]
    assert found == [(0, 0, 1), (len(batch(1)), 1, 2), (len(batch(1) + batch(2)), 3, 3)]
    assert [header.count for _, header in scan_headers(pa.py_buffer(THREE), len(batch(1)))] == [2, 3]


@given(st.integers(0, len(THREE)))
def test_ends_before_an_incomplete_last_batch(end: int) -> None:
    headers = [header for _, header in scan_headers(THREE[:end])]
    complete = sum(end >= size for size in (len(batch(1)), len(batch(1) + batch(2)), len(THREE)))
    assert [header.count for header in headers] == [1, 2, 3][:complete]


def test_stops_with_an_error_at_what_cannot_be_a_batch() -> None:
    damaged = bytearray(THREE)
    damaged[len(batch(1)) + 16] = 9
    scan = scan_headers(damaged)
    assert next(scan)[1].count == 1
    with pytest.raises(CorruptBatchError, match="magic 9"):
        next(scan)
    with pytest.raises(CorruptBatchError, match="length 0"):
        list(scan_headers(bytes(12)))


@given(st.integers(17, len(batch(3)) - 1), st.integers(0, 7))
def test_any_flipped_bit_under_the_checksum_is_noticed(position: int, bit: int) -> None:
    damaged = bytearray(batch(3))
    header = read_header(damaged)
    verify_crc(damaged, 0, header)
    damaged[position] ^= 1 << bit
    header = read_header(damaged)
    assert not crc_matches(damaged, 0, header)
    with pytest.raises(CorruptBatchError, match="fails its checksum"):
        verify_crc(damaged, 0, header)


def test_a_checksum_over_missing_bytes_is_an_error_too() -> None:
    cut = batch(3)[:-5]
    with pytest.raises(CorruptBatchError, match=r"has \d+ of its \d+ bytes"):
        verify_crc(cut, 0, read_header(cut))


def test_assigning_offsets_leaves_the_checksum_right() -> None:
    buffer = bytearray(THREE)
    second = len(batch(1))
    assign_offsets(buffer, second, base_offset=1_000, leader_epoch=4)
    header = read_header(buffer, second)
    verify_crc(buffer, second, header)
    assert (header.base_offset, header.partition_leader_epoch) == (1_000, 4)
    assert [record.offset for record in read_rows(buffer, second, header)] == [1_000, 1_001]
    assert read_header(buffer, 0) == read_header(THREE, 0)


@pytest.mark.parametrize("wrap", [bytearray, lambda data: memoryview(bytearray(data))])
def test_stamping_gives_all_records_the_append_time(wrap: type[bytearray]) -> None:
    buffer = wrap(THREE)
    second = len(batch(1))
    stamp_append_time(buffer, second, 99)
    header = read_header(buffer, second)
    verify_crc(buffer, second, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp_ms for record in read_rows(buffer, second, header)] == [99, 99]
    assert bytes(buffer[:second]) == THREE[:second]


def test_an_incomplete_batch_is_not_stamped() -> None:
    cut = bytearray(batch(3)[:-5])
    with pytest.raises(CorruptBatchError, match="5 bytes are missing"):
        stamp_append_time(cut, 0, 1)


def test_a_new_maximum_timestamp_leaves_the_checksum_right() -> None:
    buffer = bytearray(THREE)
    second = len(batch(1))
    set_max_timestamp(buffer, second, 99)
    header = read_header(buffer, second)
    verify_crc(buffer, second, header)
    assert (header.max_timestamp, header.timestamp_type) == (99, TimestampType.CREATE_TIME)
    assert (buffer[:second], buffer[second + len(batch(2)) :]) == (batch(1), batch(3, 3))
