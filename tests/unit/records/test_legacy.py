from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    MillraceError,
    UnsupportedCompressionError,
    UnsupportedForFormatError,
)
from millrace.records import Compression, MessageEntry, Record, TimestampType, read_entries
from millrace.records.legacy import build_messages

LEGACY_COMPRESSIONS = [Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]
RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=8),
        value=st.none() | st.binary(max_size=40),
        timestamp_ms=st.integers(-1, 2**63 - 1),
        offset=st.integers(0, 2**62),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda record: record.offset,
).map(lambda records: sorted(records, key=lambda record: record.offset))


def read(data: bytes) -> list[Record]:
    found = []
    for entry in read_entries(data):
        entry.check()
        found += entry.records()
    return found


@given(RECORDS, st.sampled_from(LEGACY_COMPRESSIONS))
def test_magic_1_reads_back(records: list[Record], compression: Compression) -> None:
    assert read(build_messages(records, magic=1, compression=compression)) == records


@given(RECORDS, st.sampled_from(LEGACY_COMPRESSIONS))
def test_magic_0_reads_back_without_timestamps(records: list[Record], compression: Compression) -> None:
    timeless = [Record(key=record.key, value=record.value, offset=record.offset) for record in records]
    assert read(build_messages(records, magic=0, compression=compression)) == timeless


@pytest.mark.parametrize("compression", LEGACY_COMPRESSIONS)
def test_append_time_is_one_for_all(compression: Compression) -> None:
    records = [Record(offset=3, timestamp_ms=5), Record(offset=4, timestamp_ms=9)]
    data = build_messages(records, magic=1, compression=compression, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert [record.timestamp_ms for record in read(data)] == [9, 9]
    assert {entry.timestamp_type for entry in read_entries(data)} == {TimestampType.LOG_APPEND_TIME}


@pytest.mark.parametrize("compression", LEGACY_COMPRESSIONS)
def test_magic_0_has_no_type_of_timestamps(compression: Compression) -> None:
    of_producer, of_broker = (
        build_messages([Record(value=b"v")], magic=0, compression=compression, timestamp_type=type_)
        for type_ in (TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME)
    )
    assert of_broker == of_producer


def test_a_wrappers_first_offset_is_found_by_reading_it() -> None:
    records = [Record(offset=offset, value=b"v") for offset in (70, 75, 90)]
    for magic in (0, 1):
        (entry,) = read_entries(build_messages(records, magic=magic, compression=Compression.LZ4))
        assert (entry.base_offset, entry.last_offset) == (70, 90)


@given(RECORDS, st.sampled_from(LEGACY_COMPRESSIONS), st.integers(0, 1), st.integers(0, 10_000), st.integers(0, 255))
def test_damaged_messages_give_records_or_an_error(
    records: list[Record], compression: Compression, magic: int, position: int, value: int
) -> None:
    data = bytearray(build_messages(records, magic=magic, compression=compression))
    data[position % len(data)] = value
    try:
        for entry in read_entries(data):
            list(entry.records(max_bytes=100_000))
    except MillraceError:
        return


def test_a_flipped_bit_fails_the_checksum() -> None:
    data = bytearray(build_messages([Record(value=b"abc")], magic=1))
    data[-1] ^= 1
    (entry,) = read_entries(data)
    assert isinstance(entry, MessageEntry)
    with pytest.raises(CorruptBatchError, match="fails its checksum"):
        entry.check()


def test_a_wrapper_may_not_end_after_its_own_offset() -> None:
    data = bytearray(build_messages([Record(offset=0), Record(offset=9)], magic=1, compression=Compression.GZIP))
    data[:8] = (3).to_bytes(8, "big")
    (entry,) = read_entries(data)
    with pytest.raises(InvalidRecordError, match="relative offset 9"):
        list(entry.records())


def wrapper(inner: bytes, offset: int, magic: int = 1, append_time_ms: int | None = None) -> bytes:
    value = zlib.compress(inner, wbits=31)
    attributes = Compression.GZIP | (0 if append_time_ms is None else 0x08)
    content = struct.pack(">bb", magic, attributes) + struct.pack(">q", append_time_ms or 0) * magic
    content += struct.pack(">ii", -1, len(value)) + value
    return struct.pack(">qiI", offset, 4 + len(content), zlib.crc32(content)) + content


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (1, 0), (2, 1), (70, 69)])
def test_relative_offsets_end_at_the_wrappers_own_unless_that_is_0(offset: int, first: int) -> None:
    inner = build_messages([Record(offset=0), Record(offset=1)], magic=1)
    assert [record.offset for record in read(wrapper(inner, offset))] == [first, first + 1]


def test_the_brokers_time_in_a_wrapper_replaces_the_times_of_its_messages() -> None:
    inner = build_messages([Record(offset=0, timestamp_ms=5), Record(offset=1, timestamp_ms=9)], magic=1)
    assert [record.timestamp_ms for record in read(wrapper(inner, 1, append_time_ms=70))] == [70, 70]


@pytest.mark.parametrize("rest", [b"", bytes(11), struct.pack(">qi", 1, 14), struct.pack(">qi", 1, 14) + bytes(13)])
def test_an_incomplete_last_message_of_a_wrapper_is_dropped(rest: bytes) -> None:
    inner = build_messages([Record(value=b"v")], magic=0)
    assert [record.value for record in read(wrapper(inner + rest, 0, magic=0))] == [b"v"]


@pytest.mark.parametrize("length", [-1, 0, 13])
def test_a_message_within_a_wrapper_has_at_least_14_bytes(length: int) -> None:
    inner = build_messages([Record(value=b"v")], magic=0) + struct.pack(">qi", 1, length)
    with pytest.raises(CorruptBatchError, match="14 is the minimum"):
        read(wrapper(inner, 0, magic=0))


@pytest.mark.parametrize("inner", [b"", bytes(11)])
def test_a_wrapper_holds_a_message(inner: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="holds no message"):
        read(wrapper(inner, 0))


@pytest.mark.parametrize("magic", [0, 1])
def test_records_that_the_format_cannot_hold_are_refused(magic: int) -> None:
    with pytest.raises(UnsupportedForFormatError, match="has headers"):
        build_messages([Record(headers=(("h", b"v"),))], magic=magic)
    with pytest.raises(UnsupportedCompressionError, match="zstd"):
        build_messages([Record()], magic=magic, compression=Compression.ZSTD)
    with pytest.raises(InvalidTimestampError):
        build_messages([Record(timestamp_ms=-2)], magic=magic)
    with pytest.raises(InvalidRecordError, match="must ascend"):
        build_messages([Record(offset=4), Record(offset=4)], magic=magic)
    with pytest.raises(InvalidRecordError, match="at least one"):
        build_messages([], magic=magic)
