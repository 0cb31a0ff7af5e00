"""The quick walk over batches of rows never contradicts the slower one."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records import (
    Record,
    build_columnar_batch,
    build_rows_batch,
    compiled,
    end_of_batches,
    end_of_rows,
    scan_headers,
)
from millrace.records.message_set import build_entries


def rows(base_offset: int, count: int = 2, **arguments: int) -> bytes:
    records = [Record(value=b"v", timestamp_ms=5, offset=base_offset + number) for number in range(count)]
    return bytes(build_rows_batch(records, base_offset=base_offset, **arguments))


def columnar(base_offset: int) -> bytes:
    columns = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
    return bytes(build_columnar_batch(columns, base_offset=base_offset, timestamps_ms=5))


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    compiled.load_loops()


def test_batches_of_producers_are_walked() -> None:
    data = rows(0) + rows(2, 3) + rows(10)
    assert end_of_rows(data) == 12
    assert end_of_rows(memoryview(data)) == 12
    assert end_of_rows(bytearray(data)) == 12
    assert end_of_rows(b"", 7) == 7


def test_offsets_must_ascend_from_the_least_one_on() -> None:
    data = rows(5) + rows(7)
    assert end_of_rows(data, 5) == 9
    assert end_of_rows(data, 6) is None
    assert end_of_rows(rows(5) + rows(6)) is None
    assert end_of_rows(rows(5) + rows(5)) is None


@pytest.mark.parametrize("lost_bytes", [1, 30, 61, 62])
def test_an_incomplete_batch_is_left_to_others(lost_bytes: int) -> None:
    assert end_of_rows((rows(0) + rows(2))[:-lost_bytes]) is None


@pytest.mark.parametrize("position", range(3))
def test_batches_of_columns_are_left_to_others(position: int) -> None:
    batches = [rows(0), rows(2), rows(4)]
    batches[position] = columnar(2 * position)
    assert end_of_rows(b"".join(batches)) is None


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_left_to_others(magic: int) -> None:
    messages = build_entries([Record(value=b"v" * 60, timestamp_ms=5, offset=0)], magic=magic)
    assert end_of_rows(messages) is None


def test_offsets_that_overflow_are_left_to_others() -> None:
    data = bytearray(rows(0) + rows(2))
    struct.pack_into(">q", data, 0, 2**63 - 1)
    assert end_of_rows(data) is None


@pytest.mark.parametrize("size_bytes", [0, 12, 60])
def test_sizes_below_the_header_are_left_to_others(size_bytes: int) -> None:
    data = bytearray(rows(0))
    struct.pack_into(">i", data, 8, size_bytes - 12)
    assert end_of_rows(data) is None
    assert end_of_rows(data[:61]) is None


def test_a_last_offset_before_the_first_one_is_left_to_others() -> None:
    data = bytearray(rows(3))
    struct.pack_into(">i", data, 23, -1)
    assert end_of_rows(data) is None


def test_without_the_loop_the_slower_walk_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_loaded", [])
    assert end_of_rows(rows(0)) is None
    assert end_of_batches(rows(0) + rows(2), 9) == 4


def test_the_end_of_batches_of_all_kinds() -> None:
    assert end_of_batches(rows(0) + columnar(2) + rows(3), 9) == 5
    assert end_of_batches(rows(0) + rows(2), 9) == 4
    assert end_of_batches(rows(0) + rows(2)[:-1], 9) == 2
    assert end_of_batches(b"", 9) == 9
    assert end_of_batches(rows(0)[:20], 9) == 9


@given(
    gaps=st.lists(st.integers(0, 3), max_size=6),
    least_offset=st.integers(-1, 3),
    damages=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=2),
)
def test_the_walk_agrees_with_the_slower_one(
    gaps: list[int], least_offset: int, damages: list[tuple[int, int]]
) -> None:
    data, offset = bytearray(), 0
    for gap in gaps:
        data += rows(offset + gap)
        offset += gap + 2
    for position, mask in damages:
        if position < len(data):
            data[position] ^= mask
    found = end_of_rows(data, least_offset)
    try:
        headers = list(scan_headers(data))
    except CorruptBatchError:
        assert found is None
        return
    position, next_offset, is_usual = 0, least_offset, True
    for position, header in headers:
        is_usual &= next_offset <= header.base_offset < 2**62 and header.last_offset_delta >= 0
        is_usual &= not header.is_columnar
        next_offset, position = header.next_offset, position + header.size_bytes
    # An attribute that Kafka does not use may be set together with that of columns: such batches are left to others.
    if is_usual and position == len(data) and not any(header.attributes & 0x4000 for _, header in headers):
        assert found == next_offset
    else:
        assert found is None
