from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, InvalidRecordError, MillraceError, UnsupportedForFormatError
from millrace.records import (
    Compression,
    Record,
    build_columnar_batch,
    build_entries,
    read_entries,
    read_file_entries,
    sound_prefix_bytes,
)

RECORDS = [Record(key=b"k", value=bytes([index]) * index, timestamp_ms=index, offset=index) for index in range(6)]
MIXED = (
    build_entries(RECORDS[:2], magic=0)
    + build_entries(RECORDS[2:4], magic=1, compression=Compression.LZ4)
    + build_entries(RECORDS[4:], magic=2, compression=Compression.ZSTD)
)


def test_formats_may_follow_one_another_in_a_log() -> None:
    entries = list(read_entries(MIXED))
    assert [entry.magic for entry in entries] == [0, 0, 1, 2]
    assert [entry.position + entry.size_bytes for entry in entries][-1] == len(MIXED)
    assert [record.value for entry in entries for record in entry.records()] == [record.value for record in RECORDS]
    assert [(entry.base_offset, entry.last_offset) for entry in entries] == [(0, 0), (1, 1), (2, 3), (4, 5)]


@given(st.integers(0, 2), st.integers(0, 2), st.sampled_from([Compression.NONE, Compression.GZIP, Compression.LZ4]))
def test_records_convert_between_all_formats(source: int, target: int, compression: Compression) -> None:
    (first,) = read_entries(build_entries(RECORDS[3:4], magic=source))
    converted = build_entries(list(first.records()), magic=target, compression=compression)
    (record,) = (record for entry in read_entries(converted) for record in entry.records())
    assert (record.key, record.value, record.offset) == (b"k", b"\3\3\3", 3)
    assert record.timestamp_ms == (3 if source and target else -1)


@pytest.mark.parametrize("magic", [-1, 3])
def test_unknown_formats_are_neither_written_nor_read(magic: int) -> None:
    with pytest.raises(UnsupportedForFormatError):
        build_entries(RECORDS, magic=magic)
    data = bytearray(build_entries(RECORDS, magic=2))
    data[16] = magic % 256
    with pytest.raises(CorruptBatchError, match=f"magic {magic}"):
        list(read_entries(data))


@pytest.mark.parametrize(("length", "size"), [(14, 12), (14, 16), (100, 17)])
def test_an_incomplete_last_entry_is_dropped(length: int, size: int) -> None:
    rest = (struct.pack(">qiI", 6, length, 0) + b"\x01" + bytes(9))[:size]
    assert len(list(read_entries(MIXED + rest))) == 4


@pytest.mark.parametrize(
    ("rest", "says"),
    [(struct.pack(">qi", 6, 13), "length of 13"), (struct.pack(">qiIb", 6, 14, 0, 3), "magic 3"),
     (struct.pack(">qiIb", 6, 14, 0, -1), "magic -1"), (struct.pack(">qiIb", 6, 2**31 - 12, 0, 2), "invalid length")],
)  # fmt: skip
def test_an_impossible_entry_is_corrupt_even_if_it_is_incomplete(rest: bytes, says: str) -> None:
    with pytest.raises(CorruptBatchError, match=says):
        list(read_entries(MIXED + rest))


@given(st.integers(0, len(MIXED)))
def test_recovery_keeps_the_whole_entries(end: int) -> None:
    ends = [0, *(entry.position + entry.size_bytes for entry in read_entries(MIXED))]
    assert sound_prefix_bytes(MIXED[:end]) == max(whole for whole in ends if whole <= end)


@given(st.data())
def test_recovery_cuts_at_the_first_damaged_entry(data: st.DataObject) -> None:
    entries = list(read_entries(MIXED))
    hit = data.draw(st.sampled_from(entries))
    checked_from = 21 if hit.magic == 2 else 17
    position = data.draw(st.integers(hit.position + checked_from, hit.position + hit.size_bytes - 1))
    damaged = bytearray(MIXED)
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    assert sound_prefix_bytes(damaged) == hit.position


def test_recovery_does_not_truncate_what_belongs_to_another_segment() -> None:
    with pytest.raises(InvalidRecordError, match="offset 0 does not belong to segment 3"):
        sound_prefix_bytes(MIXED, base_offset=3)


@pytest.mark.parametrize("base_offset", [0, 100])
def test_a_segment_holds_offsets_of_at_most_32_bits_beyond_its_base_offset(base_offset: int) -> None:
    last, beyond = (build_entries([Record(offset=base_offset + 2**31 + more)], magic=2) for more in (-1, 0))
    assert sound_prefix_bytes(last, base_offset) == len(last)
    with pytest.raises(InvalidRecordError, match=f"does not belong to segment {base_offset}"):
        sound_prefix_bytes(beyond, base_offset)


@given(st.binary(max_size=200))
def test_any_bytes_are_walked_to_an_end(data: bytes) -> None:
    for read in (read_entries, read_file_entries):
        try:
            for entry in read(data):
                list(entry.records(max_bytes=10_000))
        except MillraceError:
            continue


def test_columnar_batches_are_listed_but_not_read_as_rows() -> None:
    (entry,) = read_entries(build_columnar_batch(pa.record_batch({"value": pa.array([b"v"])})))
    entry.check()
    assert entry.last_offset == 0
    with pytest.raises(UnsupportedForFormatError, match="columnar"):
        list(entry.records())
