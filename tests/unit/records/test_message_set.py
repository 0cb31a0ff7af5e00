from __future__ import annotations

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, MillraceError, UnsupportedForFormatError
from millrace.records import (
    Compression,
    Record,
    build_columnar_batch,
    build_entries,
    read_entries,
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


@given(st.binary(max_size=200))
def test_any_bytes_are_walked_to_an_end(data: bytes) -> None:
    with contextlib.suppress(MillraceError):
        for entry in read_entries(data):
            list(entry.records(max_bytes=10_000))


def test_columnar_batches_are_listed_but_not_read_as_rows() -> None:
    (entry,) = read_entries(build_columnar_batch(pa.record_batch({"value": pa.array([b"v"])})))
    entry.check()
    assert entry.last_offset == 0
    with pytest.raises(UnsupportedForFormatError, match="columnar"):
        list(entry.records())
