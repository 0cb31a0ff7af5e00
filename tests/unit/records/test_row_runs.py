"""Tests of several batches of few rows that are decoded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError, MillraceError
from millrace.records import (
    Compression,
    DecodedBatch,
    Record,
    TimestampType,
    assign_offsets,
    build_columnar_batch,
    build_rows_batch,
    decode_batch,
    decode_range,
    read_header,
    scan_headers,
)

BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.builds(
                Record,
                key=st.none() | st.binary(max_size=4),
                value=st.none() | st.binary(max_size=9),
                headers=st.sampled_from([(), (), (("h", b"x"),)]),
                timestamp_ms=st.integers(0, 2**63 - 1),
                offset=st.integers(0, 30),
            ),
            min_size=1,
            max_size=30,
            unique_by=lambda record: record.offset,
        ).map(lambda records: sorted(records, key=lambda record: record.offset)),
        st.sampled_from(Compression),
        st.sampled_from(TimestampType),
    ),
    min_size=2,
    max_size=6,
)


def no_schema(schema_id: int) -> pa.Schema:
    raise AssertionError(schema_id)


def seen(batch: DecodedBatch) -> list[tuple[Any, ...]]:
    """Return each record, with the fields that readers take from its batch's header."""
    batch.columns.validate(full=True)
    rows = batch.columns.to_pylist() or [{}] * batch.num_rows
    headers = [None] * batch.num_rows if batch.headers is None else batch.headers.to_pylist()
    times = batch.timestamps_ms().to_pylist()
    of_batch = (batch.header.partition_leader_epoch, batch.header.timestamp_type)
    return [
        (offset, time, *row.values(), header or None, *of_batch)
        for offset, time, row, header in zip(batch.offsets().to_pylist(), times, rows, headers, strict=True)
    ]


def outcome(log: bytes, columns: Sequence[str] | None) -> tuple[list[tuple[Any, ...]], str | None]:
    found: list[tuple[Any, ...]] = []
    try:
        for batch in decode_range(pa.py_buffer(log), 0, 2**62, no_schema, columns, verify=False):
            found += seen(batch)
    except MillraceError as error:
        return found, str(error)
    return found, None


def outcome_one_by_one(log: bytes, columns: Sequence[str] | None) -> tuple[list[tuple[Any, ...]], str | None]:
    found: list[tuple[Any, ...]] = []
    try:
        for position, header in scan_headers(log):
            found += seen(decode_batch(pa.py_buffer(log), position, header, no_schema, columns))
    except MillraceError as error:
        return found, str(error)
    return found, None


@given(BATCHES, st.sampled_from([31, 2**30, 2**33]), st.sampled_from([None, ["key"], ["value"], []]), st.data())
def test_a_run_of_batches_gives_what_each_gives(
    batches: list[tuple[list[Record], Compression, TimestampType]],
    distance: int,
    columns: list[str] | None,
    data: st.DataObject,
) -> None:
    parts = []
    for number, (records, codec, type_) in enumerate(batches):
        later = [replace(record, offset=record.offset + distance * number) for record in records]
        part = bytearray(build_rows_batch(later, base_offset=None, compression=codec, timestamp_type=type_))
        assign_offsets(part, 0, base_offset=read_header(part).base_offset, leader_epoch=data.draw(st.integers(0, 1)))
        parts.append(part)
    if data.draw(st.booleans()):
        hit = data.draw(st.sampled_from(parts))
        hit[data.draw(st.integers(61, len(hit) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    log = b"".join(parts)
    assert outcome(log, columns) == outcome_one_by_one(log, columns)


def test_small_batches_are_given_together_with_a_header_for_all() -> None:
    sizes = [5, 30, 1]
    log, parts = b"", []
    for number, size in enumerate(sizes):
        base = 10 * number if number else 3
        records = [Record(value=b"v", timestamp_ms=100 - number)] * size
        parts.append(build_rows_batch(records, base_offset=base + (40 if number == 2 else 0)))
        log += parts[-1]
    (batch,) = decode_range(pa.py_buffer(log), 0, 99, no_schema)
    assert batch.batch_count == 3
    assert batch.offsets().to_pylist() == [*range(3, 8), *range(10, 40), 60]
    assert batch.has_gaps
    header = batch.header
    assert (header.base_offset, header.next_offset, header.count) == (3, 61, 36)
    assert (header.size_bytes, header.max_timestamp) == (len(log), 100)
    (part,) = decode_range(pa.py_buffer(log), 7, 11, no_schema)
    assert part.offsets().to_pylist() == [7, 10]


def test_batches_that_follow_each_other_without_a_gap_have_none_together() -> None:
    log = b"".join(build_rows_batch([Record(value=b"v")] * 30, base_offset=base) for base in range(5, 95, 30))
    (batch,) = decode_range(pa.py_buffer(log), 0, 99, no_schema)
    assert batch.offset_range() == range(5, 95)


@pytest.mark.parametrize("per_batch", [1, 7, 100, 3_000])
def test_runs_end_before_what_is_not_like_them(per_batch: int) -> None:
    log = b""
    for base in range(0, 40 * per_batch, per_batch):
        if base % (11 * per_batch):
            log += build_rows_batch([Record(value=b"v")] * per_batch, base_offset=base)
        else:
            log += build_columnar_batch(pa.record_batch({"value": pa.array([b"v"] * per_batch)}), base_offset=base)
    buffer = pa.py_buffer(log)
    start, end = per_batch + per_batch // 2, 38 * per_batch - per_batch // 2
    offsets = [
        offset for batch in decode_range(buffer, start, end, no_schema) for offset in batch.offsets().to_pylist()
    ]
    assert offsets == list(range(start, end))


def test_batches_before_a_wrong_checksum_are_read() -> None:
    parts = [bytearray(build_rows_batch([Record(value=b"v")] * 5, base_offset=base)) for base in range(0, 50, 5)]
    parts[6][-1] ^= 1
    found = decode_range(pa.py_buffer(b"".join(parts)), 0, 50, no_schema)
    assert next(found).offset_range() == range(30)
    with pytest.raises(MillraceError, match=r"base offset 30 at position .* fails its checksum"):
        next(found)


@pytest.mark.parametrize(("at", "value"), [(26, 1), (23, 0x80), (22, 0x20)])
def test_a_batch_is_verified_before_it_is_passed_over(at: int, value: int) -> None:
    # The changed header bits say that the batch ends before the range, or holds no records.
    first, second = (build_rows_batch([Record(value=b"v")] * 10, base_offset=base) for base in (0, 10))
    log = bytearray(first + second)
    log[at] = value
    with pytest.raises(CorruptBatchError, match="checksum"):
        list(decode_range(pa.py_buffer(bytes(log)), 5, 20, no_schema))


@pytest.mark.parametrize(("last", "batches"), [(384, [9]), (385, [8, 1])])
def test_a_run_has_at_most_16384_records(last: int, batches: list[int]) -> None:
    parts = [build_rows_batch([Record()] * 2_000, base_offset=base) for base in range(0, 16_000, 2_000)]
    log = b"".join([*parts, build_rows_batch([Record()] * last, base_offset=16_000)])
    found = list(decode_range(pa.py_buffer(log), 0, 2**40, no_schema))
    assert [batch.batch_count for batch in found] == batches
    assert sum(batch.num_rows for batch in found) == 16_000 + last


@pytest.mark.parametrize(("more", "batches"), [(0, [4]), (1, [3, 1])])
def test_a_run_has_at_most_4_mib(more: int, batches: list[int]) -> None:
    empty = len(build_rows_batch([Record(value=bytes(2**19))])) - 2**19
    parts = [
        build_rows_batch([Record(value=bytes(2**20 - empty + (more if base == 3 else 0)))], base_offset=base)
        for base in range(4)
    ]
    found = list(decode_range(pa.py_buffer(b"".join(parts)), 0, 2**40, no_schema))
    assert [batch.batch_count for batch in found] == batches


@pytest.mark.parametrize(("count", "batches"), [(2_000, [2]), (2_001, [1, 1])])
def test_a_large_batch_is_decoded_alone(count: int, batches: list[int]) -> None:
    log = build_rows_batch([Record()] * count) + build_rows_batch([Record()], base_offset=count)
    assert [batch.batch_count for batch in decode_range(pa.py_buffer(log), 0, 2**40, no_schema)] == batches


@pytest.mark.parametrize("last", [9, 10])
def test_offsets_ascend_behind_the_range_too(last: int) -> None:
    log = b"".join(build_rows_batch([Record()] * 5, base_offset=base) for base in (0, 5, last))
    found = decode_range(pa.py_buffer(log), 0, 5, no_schema)
    assert next(found).offset_range() == range(5)
    if last == 10:
        assert list(found) == []
        return
    with pytest.raises(CorruptBatchError, match="offset 9 does not follow 9"):
        next(found)


def test_batches_before_one_that_does_not_follow_are_read() -> None:
    log = b"".join(build_rows_batch([Record()] * 5, base_offset=base) for base in (0, 5, 9))
    found = decode_range(pa.py_buffer(log), 0, 99, no_schema)
    assert next(found).offset_range() == range(10)
    with pytest.raises(CorruptBatchError, match="offset 9 does not follow 9"):
        next(found)
