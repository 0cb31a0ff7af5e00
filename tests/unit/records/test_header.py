from __future__ import annotations

import struct

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, MessageTooLargeError
from millrace.records import BatchHeader, TimestampType, attributes_of, checksum, read_header, seal
from millrace.records.header import read_header_fields

I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)

HEADERS = st.builds(
    BatchHeader,
    base_offset=I64,
    batch_length=st.integers(49, 2**31 - 1),
    partition_leader_epoch=I32,
    magic=st.just(2),
    crc=st.integers(0, 2**32 - 1),
    attributes=I16,
    last_offset_delta=I32,
    base_timestamp=I64,
    max_timestamp=I64,
    producer_id=I64,
    producer_epoch=I16,
    base_sequence=I32,
    count=I32,
)
EMPTY = BatchHeader(
    base_offset=40,
    batch_length=0,
    partition_leader_epoch=-1,
    magic=2,
    crc=0,
    attributes=0,
    last_offset_delta=2,
    base_timestamp=-1,
    max_timestamp=-1,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    count=0,
)


def _written(header: BatchHeader) -> bytes:
    return struct.pack(">qiibIhiqqqhii", *header)


@given(HEADERS, st.binary(max_size=9))
def test_headers_are_read_as_they_were_written(header: BatchHeader, before: bytes) -> None:
    written = _written(header)
    assert len(written) == 61
    for buffer in (before + written, bytearray(before + written), pa.py_buffer(before + written)):
        assert read_header(buffer, len(before)) == header


def test_a_header_that_is_cut_off_is_corrupt() -> None:
    with pytest.raises(CorruptBatchError, match="60 bytes left, but a header has 61"):
        read_header(_written(EMPTY)[:60])
    with pytest.raises(CorruptBatchError, match="60 bytes left"):
        read_header(b"before" + _written(EMPTY)[:60], 6)


def test_magic_is_judged_before_length() -> None:
    written = bytearray(_written(EMPTY))
    written[16] = 1
    with pytest.raises(CorruptBatchError, match="magic 1"):
        read_header(written)


def test_a_length_below_the_headers_own_is_corrupt() -> None:
    with pytest.raises(CorruptBatchError, match="below the header's 49"):
        read_header(_written(EMPTY))


@pytest.mark.parametrize(
    ("attributes", "columnar"),
    [(0x4000, True), (0x4035, True), (0, False), (-(2**15) + 0x4000, False), (0x4080, False)],
)
def test_a_body_is_columnar_only_if_no_other_unused_bit_is_set(attributes: int, columnar: bool) -> None:
    header = read_header(seal(EMPTY))
    assert not header.is_columnar
    assert header._replace(attributes=attributes).is_columnar is columnar


def test_attributes_are_composed_as_kafka_numbers_them() -> None:
    assert attributes_of(compression=4, is_transactional=True) == 0x14
    assert attributes_of(timestamp_type=TimestampType.LOG_APPEND_TIME, is_control=True) == 0x28
    assert attributes_of(has_delete_horizon=True, is_columnar=True) == 0x4040


@given(st.lists(st.binary(max_size=50), max_size=4))
def test_checksums_of_parts_are_those_of_the_whole(parts: list[bytes]) -> None:
    whole = google_crc32c.value(b"".join(parts))
    assert checksum(*parts) == whole
    assert checksum(*map(bytearray, parts)) == whole
    assert checksum(*map(memoryview, parts)) == whole
    assert checksum(*map(pa.py_buffer, parts)) == whole


def test_sealing_fills_in_length_and_checksum() -> None:
    batch = seal(EMPTY, b"abc", pa.py_buffer(b"de"))
    header = read_header(batch)
    assert header.size_bytes == len(batch) == 66
    assert header.crc == google_crc32c.value(batch[21:])
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)


def test_a_batch_may_be_sealed_without_a_checksum() -> None:
    batch = seal(EMPTY, b"abc", with_checksum=False)
    assert read_header(batch).crc == 0
    assert batch[:17] + batch[21:] == seal(EMPTY, b"abc")[:17] + seal(EMPTY, b"abc")[21:]


def test_a_batch_of_more_than_2_gib_is_not_sealed() -> None:
    mib = bytes(2**20)
    with pytest.raises(MessageTooLargeError, match="send fewer records"):
        seal(EMPTY, *[mib] * 2048)


def test_the_fields_that_a_cut_header_still_has_can_be_read() -> None:
    fields = read_header_fields(_written(EMPTY)[:43])
    assert fields["base_offset"] == 40
    assert list(fields)[-1] == "max_timestamp"
