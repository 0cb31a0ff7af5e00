from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records import (
    BatchHeader,
    BatchStatistics,
    Compression,
    ControlType,
    DecodedBatch,
    EndTransactionMarker,
    Record,
    build_columnar_batch,
    build_end_marker_batch,
    build_rows_batch,
    decode_range,
    read_header,
)


def no_schema(schema_id: int) -> pa.Schema:
    raise AssertionError(f"an opaque batch has no schema, but schema {schema_id} was requested")


def columnar(base: int, count: int, compression: Compression) -> bytes:
    values = pa.array([str(offset).encode() for offset in range(base, base + count)])
    return build_columnar_batch(
        pa.record_batch({"value": values}),
        timestamps_ms=pa.array(range(base, base + count)),
        base_offset=base,
        compression=compression,
    )


def rows(base: int, count: int, compression: Compression) -> bytes:
    records = [Record(value=str(offset).encode(), timestamp_ms=offset) for offset in range(base, base + count)]
    return build_rows_batch(records, base_offset=base, compression=compression)


def marker(base: int) -> bytes:
    commit = EndTransactionMarker(type=ControlType.COMMIT, coordinator_epoch=0)
    return build_end_marker_batch(commit, base_offset=base, timestamp_ms=0, producer_id=1, producer_epoch=0)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """Draw a run of batches of every kind, and the offsets of their records."""
    log, offsets, base = b"", [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 6))):
        kind, count = draw(st.sampled_from("crm")), draw(st.integers(1, 5))
        if kind == "m":
            log, base = log + marker(base), base + 1
            continue
        build = columnar if kind == "c" else rows
        choices = [Compression.NONE, Compression.LZ4, Compression.ZSTD]
        log += build(base, count, draw(st.sampled_from(choices)))
        offsets += range(base, base + count)
        base += count + draw(st.integers(0, 2))
    return log, offsets


def collect(batches: Any) -> tuple[list[int], list[bytes], list[int]]:
    offsets: list[int] = []
    values: list[bytes] = []
    timestamps: list[int] = []
    for batch in batches:
        assert isinstance(batch, DecodedBatch)
        assert batch.num_rows > 0
        offsets += batch.offsets().to_pylist()
        values += batch.columns.column("value").to_pylist()
        timestamps += batch.timestamps_ms().to_pylist()
    return offsets, values, timestamps


@given(logs(), st.data())
def test_a_range_gives_exactly_its_records(log: tuple[bytes, list[int]], data: st.DataObject) -> None:
    buffer, offsets = pa.py_buffer(log[0]), log[1]
    low, high = (offsets[0] - 2, offsets[-1] + 3) if offsets else (0, 9)
    start, end = data.draw(st.integers(low, high)), data.draw(st.integers(low, high))
    expected = [offset for offset in offsets if start <= offset < end]
    found = collect(decode_range(buffer, start, end, no_schema))
    assert found == (expected, [str(offset).encode() for offset in expected], expected)


def test_a_projection_applies_to_both_encodings() -> None:
    log = columnar(0, 2, Compression.LZ4) + rows(2, 2, Compression.NONE)
    for columns in (["value"], ["key"], [], ["value", "not there"]):
        found = list(decode_range(pa.py_buffer(log), 0, 4, no_schema, columns))
        assert [batch.columns.schema.names for batch in found] == [[c for c in columns if c != "not there"]] * 2
        assert [batch.num_rows for batch in found] == [2, 2]


def test_a_damaged_batch_is_noticed_only_within_the_range() -> None:
    log = bytearray(columnar(0, 3, Compression.NONE) + columnar(3, 3, Compression.NONE))
    log[-70] ^= 1
    buffer = pa.py_buffer(bytes(log))
    assert collect(decode_range(buffer, 0, 3, no_schema))[0] == [0, 1, 2]
    batches = decode_range(buffer, 0, 4, no_schema)
    assert next(batches).num_rows == 3
    with pytest.raises(CorruptBatchError, match=r"base offset 3 .* fails its checksum"):
        next(batches)


@pytest.mark.parametrize("verify", [True, False])
def test_a_buffer_that_ends_within_the_range_is_not_taken_for_all_of_it(verify: bool) -> None:
    log = columnar(0, 3, Compression.NONE) + columnar(3, 3, Compression.NONE)
    for missing in (1, 300):
        batches = decode_range(pa.py_buffer(log[:-missing]), 0, 6, no_schema, verify=verify)
        assert next(batches).num_rows == 3
        with pytest.raises(CorruptBatchError):
            next(batches)


def test_without_verifying_the_checksum_is_not_looked_at() -> None:
    log = bytearray(columnar(0, 3, Compression.NONE))
    log[17] ^= 1
    assert collect(decode_range(pa.py_buffer(bytes(log)), 0, 3, no_schema, verify=False))[0] == [0, 1, 2]


@pytest.mark.parametrize(("place", "base_offset"), [(0, -1), (0, -(2**63)), (1, 2), (1, -1)])
def test_a_base_offset_that_is_negative_or_does_not_ascend_is_corrupt(place: int, base_offset: int) -> None:
    batches = [rows(0, 3, Compression.NONE), rows(3, 3, Compression.NONE)]
    batches[place] = base_offset.to_bytes(8, "big", signed=True) + batches[place][8:]  # no checksum covers it
    with pytest.raises(CorruptBatchError, match=f"offset {base_offset} does not follow {3 * place - 1}"):
        list(decode_range(pa.py_buffer(b"".join(batches)), 0, 6, no_schema))


def test_columns_outlive_the_name_of_the_mapping(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(columnar(0, 3, Compression.NONE))
    with pa.memory_map(str(path)) as file:
        (batch,) = decode_range(file.read_buffer(), 0, 3, no_schema)
    path.unlink()
    assert batch.columns.column("value").to_pylist() == [b"0", b"1", b"2"]


@given(st.integers(-3, 12), st.integers(-3, 12), st.integers(-3, 12), st.integers(-3, 12))
def test_a_slice_of_a_slice_is_where_both_meet(a: int, b: int, c: int, d: int) -> None:
    (batch,) = decode_range(pa.py_buffer(columnar(0, 10, Compression.LZ4)), 0, 10, no_schema)
    sliced = batch.slice(a, b).slice(c, d)
    expected = [offset for offset in range(10) if a <= offset < b and c <= offset < d]
    assert sliced.offsets().to_pylist() == expected
    assert sliced.timestamps_ms().to_pylist() == expected
    assert sliced.columns.column("value").to_pylist() == [str(offset).encode() for offset in expected]


def test_an_empty_batch_that_compaction_left_gives_nothing() -> None:
    empty = build_rows_batch([], base_offset=0, last_offset=4)
    thinned = build_columnar_batch(
        pa.record_batch({"value": pa.array([], pa.binary())}), base_offset=5, last_offset_delta=4
    )
    log = pa.py_buffer(empty + thinned + rows(10, 1, Compression.NONE))
    assert read_header(log, len(empty)).last_offset == 9
    assert collect(decode_range(log, 0, 99, no_schema))[0] == [10]


def test_batches_that_are_not_wanted_are_passed_over_unread_where_statistics_say_so() -> None:
    batches = []
    for first in (0, 300, 600):
        columns = pa.record_batch({"value": pa.array([b"v"] * 300)})
        batches.append(bytearray(build_columnar_batch(columns, timestamps_ms=first, base_offset=first)))
    rows = bytearray(build_rows_batch([Record(value=b"r", timestamp_ms=7)], base_offset=900))
    seen = []

    def wanted(header: BatchHeader, statistics: BatchStatistics | None) -> bool:
        seen.append((header.base_offset, statistics and statistics.timestamps_ms))
        return header.base_offset == 300

    batches[0][-1] ^= 1  # in the body, which this check does not read
    log = pa.py_buffer(b"".join([*batches, rows]))
    found = list(decode_range(log, 0, 2_000, no_schema, wanted=wanted))
    assert [batch.header.base_offset for batch in found] == [300]
    assert seen == [(0, (0, 0)), (300, (300, 300)), (600, (600, 600)), (900, None)]
    rows[-1] ^= 1
    damaged = pa.py_buffer(b"".join([*batches, rows]))
    with pytest.raises(CorruptBatchError, match="base offset 900"):
        list(decode_range(damaged, 0, 2_000, no_schema, wanted=wanted))
