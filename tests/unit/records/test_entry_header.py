from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records import (
    Compression,
    Record,
    TimestampType,
    build_entries,
    message_bytes,
    read_entries,
    read_entry_header,
    read_header,
    verify_crc,
)

COMPRESSIONS = [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]


def records(count: int, first_offset: int) -> list[Record]:
    return [Record(key=b"k", value=b"v" * n, timestamp_ms=1000 + n % 3, offset=first_offset + n) for n in range(count)]


@given(
    magic=st.sampled_from([0, 1]),
    compression=st.sampled_from(COMPRESSIONS),
    count=st.integers(1, 20),
    first_offset=st.integers(0, 2**40),
    timestamp_type=st.sampled_from(TimestampType),
)
def test_headers_of_messages_agree_with_their_entries(
    magic: int, compression: Compression, count: int, first_offset: int, timestamp_type: TimestampType
) -> None:
    written = records(count, first_offset)
    data = build_entries(written, magic=magic, compression=compression, timestamp_type=timestamp_type)
    position = 0
    for entry in read_entries(data):
        header = read_entry_header(data, position)
        assert message_bytes(data, position) == entry.size_bytes == header.size_bytes
        assert (header.magic, header.base_offset, header.last_offset) == (magic, entry.base_offset, entry.last_offset)
        assert header.max_timestamp == entry.max_timestamp_ms
        assert header.count == len(list(entry.records()))
        assert not header.is_control
        assert not header.is_columnar
        position += header.size_bytes
    assert position == len(data)


def test_the_entry_header_of_a_batch_is_its_batch_header() -> None:
    data = build_entries(records(3, 7), magic=2)
    assert message_bytes(data) is None
    assert read_entry_header(data) == read_header(data)


def check(data: bytearray) -> None:
    header = read_entry_header(data)
    if header.magic == 2:  # the header claims it now, and the body must confirm it
        verify_crc(data, 0, header)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("magic", [0, 1])
def test_damage_and_incomplete_messages_are_noticed(magic: int, compression: Compression) -> None:
    data = build_entries(records(1, 7), magic=magic, compression=compression)
    for bit in range(8 * 12, 8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatchError):
            check(damaged)
    for size in range(len(data)):
        with pytest.raises(CorruptBatchError):
            read_entry_header(data[:size])


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [Compression.ZSTD, 5])
def test_a_sound_message_with_a_compression_that_its_format_does_not_have_is_corrupt(
    magic: int, compression: int
) -> None:
    data = bytearray(build_entries(records(1, 7), magic=magic))
    data[17] = compression
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match=r"message at position 0 cannot be read: .*compression"):
        read_entry_header(data)
