from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records import (
    ControlType,
    EndTransactionMarker,
    Record,
    build_end_marker_batch,
    read_control_type,
    read_end_marker,
    read_header,
    read_rows,
    verify_crc,
)


@given(st.sampled_from([ControlType.ABORT, ControlType.COMMIT]), st.integers(0, 2**31 - 1))
def test_an_end_marker_reads_back(type_: ControlType, epoch: int) -> None:
    marker = EndTransactionMarker(type=type_, coordinator_epoch=epoch)
    batch = build_end_marker_batch(marker, base_offset=9, timestamp_ms=5, producer_id=3, producer_epoch=1)
    header = read_header(batch)
    verify_crc(batch, 0, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 1, -1)
    (record,) = read_rows(batch, 0, header)
    assert read_end_marker(record) == marker


def test_types_that_are_not_known_are_unknown() -> None:
    assert read_control_type(struct.pack(">hh", 0, 99)) is ControlType.UNKNOWN
    assert read_control_type(struct.pack(">hhq", 1, 2, 0)) is ControlType.LEADER_CHANGE


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", struct.pack(">hh", -1, 0)])
def test_damaged_keys_are_refused(key: bytes | None) -> None:
    with pytest.raises(CorruptBatchError, match="control record key"):
        read_control_type(key)


@pytest.mark.parametrize(("type_", "value"), [(2, bytes(6)), (1, None), (1, bytes(5)), (0, struct.pack(">hi", -1, 0))])
def test_damaged_end_markers_are_refused(type_: int, value: bytes | None) -> None:
    with pytest.raises(CorruptBatchError):
        read_end_marker(Record(key=struct.pack(">hh", 0, type_), value=value))
