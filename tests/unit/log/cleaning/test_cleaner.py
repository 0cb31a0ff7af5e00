"""Tests of the cleaning of a partition against a model.

Batches have either body. Other files may lie beside the segments.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from millrace.errors import CorruptBatchError
from millrace.records import (
    Compression,
    ControlType,
    EndTransactionMarker,
    build_columnar_batch,
    decode_range,
    read_header,
    read_statistics,
    scan_headers,
    validate_batch,
)
from millrace.schemas import encode_keys
from millrace_broker.log import OsFiles
from millrace_broker.log.cleaning.batches import TopicKeys
from millrace_broker.log.cleaning.partition_view import PartitionView

from .conftest import BUILDERS, NOW_MS, Pair, clean, contents, open_partition, rows, survivors

Build = Callable[..., bytes]

key = st.integers(0, 12).map(lambda n: b"k%d" % n)
value = st.one_of(st.none(), st.binary(max_size=60))
batches_ = st.lists(
    st.tuples(st.sampled_from(sorted(BUILDERS)), st.lists(st.tuples(key, value), min_size=1, max_size=30)),
    min_size=1,
    max_size=25,
)


@hypothesis_settings(max_examples=60)
@given(batches_, st.integers(300, 3000), st.integers(3, 40), st.integers(200, 5000))
def test_cleaning_keeps_the_last_of_each_key(
    batches: list[tuple[str, list[Pair]]], segment_bytes: int, slots: int, chunk_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        log = open_partition(Path(name), options={"segment.bytes": max(segment_bytes, 3000), "index.interval.bytes": 0})
        pairs: list[Pair] = []
        for kind, part in batches:
            log.append(BUILDERS[kind](part))
            pairs += part
            if len(pairs) % 3 == 0:
                log.roll()
        checkpoint, bound = 0, log.segments[-1].base_offset
        rounds = 0
        while checkpoint < bound:  # a full map needs several rounds
            done = clean(log, checkpoint=checkpoint, slots=slots, chunk_bytes=chunk_bytes)
            assert done is not None
            assert checkpoint < done.end_offset <= bound
            checkpoint, rounds = done.end_offset, rounds + 1
        expected = survivors(pairs, bound)
        assert contents(log) == expected
        assert list(contents(log)) == sorted(expected), "the order is kept"
        assert log.log_end_offset == len(pairs)
        before = {path.name: path.read_bytes() for path in Path(name).glob("*.log")}
        clean(log, checkpoint=0, slots=5000)
        assert contents(log) == expected, "cleaning again changes nothing"
        if len(log.segments) == len(before):
            assert {path.name: path.read_bytes() for path in Path(name).glob("*.log")} == before
        log.close()
        again = open_partition(Path(name), was_clean=True)
        assert contents(again) == expected
        again.release()
        recovered = open_partition(Path(name))
        assert contents(recovered) == expected
        assert recovered.log_end_offset == len(pairs)


def test_batches_that_lose_nothing_stay_byte_for_byte(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    log.append(build([(b"a", b"1"), (b"b", b"1")]))
    log.append(build([(b"c", b"1"), (b"d", b"1")]))
    log.append(build([(b"a", b"2"), (b"e", b"1")]))
    log.roll()
    before = log.read(0, 10_000)
    clean(log)
    after = log.read(0, 10_000)
    old, new = ({h.base_offset: _raw(data, at, h) for at, h in scan_headers(data)} for data in (before, after))
    assert old[2] == new[2]
    assert old[4] == new[4]
    assert old[0] != new[0]
    assert contents(log) == {1: (b"b", b"1"), 2: (b"c", b"1"), 3: (b"d", b"1"), 4: (b"a", b"2"), 5: (b"e", b"1")}


def _raw(data: bytes, position: int, header: object) -> bytes:
    return data[position : position + read_header(data, position).size_bytes]


def test_a_thinned_batch_keeps_its_place_and_its_producer(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    log.append(build([(b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"a", b"2")]))
    producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 5}
    log.append(build([(b"a", b"3"), (b"b", b"2"), (b"d", b"1"), (b"a", b"4")], **producer))
    log.append(build([(b"d", b"2"), (b"a", b"5")]))
    log.roll()
    clean(log)
    headers = [header for _, header in scan_headers(log.read(0, 10_000))]
    assert [(h.base_offset, h.last_offset, h.count) for h in headers] == [(0, 3, 1), (4, 7, 1), (8, 9, 2)]
    kept = headers[1]
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence) == (9, 2, 5)
    assert kept.last_offset_delta == 3
    assert list(contents(log)) == [2, 5, 8, 9]


def test_the_last_batch_of_a_producer_stays_even_empty(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    log.append(build([(b"a", b"1"), (b"b", b"1")], producer_id=9, producer_epoch=2, base_sequence=0))
    log.append(build([(b"a", b"2"), (b"b", b"2")]))
    log.roll()
    clean(log)
    headers = [header for _, header in scan_headers(log.read(0, 10_000))]
    assert [(h.base_offset, h.last_offset, h.count) for h in headers] == [(0, 1, 0), (2, 3, 2)]
    assert (headers[0].producer_id, headers[0].base_sequence) == (9, 0)
    clean(log)
    assert len(list(scan_headers(log.read(0, 10_000)))) == 2
    log.release()
    again = open_partition(tmp_path)
    result = again.append(build([(b"a", b"1"), (b"b", b"1")], producer_id=9, producer_epoch=2, base_sequence=0))
    assert (result.is_duplicate, result.base_offset) == (True, 0)
    assert again.append(build([(b"x", b"1")], producer_id=9, producer_epoch=2, base_sequence=2)).base_offset == 4


def test_the_marker_that_raised_a_producers_epoch_stays_even_empty(tmp_path: Path) -> None:
    marker = EndTransactionMarker(type=ControlType.COMMIT, coordinator_epoch=0)
    log = open_partition(tmp_path, options={"delete.retention.ms": 1000})
    for producer_id in (8, 9):
        producer = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        log.append(rows([(b"a", b"%d" % producer_id)], is_transactional=True, **producer), in_transaction=True)
        log.append_end_marker_unsynced(producer_id, producer_id - 8, marker, is_epoch_raised=producer_id == 9)
    log.append(rows([(b"a", b"last")]))
    log.roll()
    for now_ms in (NOW_MS, NOW_MS, NOW_MS + 1000):  # the data goes, then the markers wait for their horizon
        clean(log, now_ms=now_ms)
    headers = [header for _, header in scan_headers(log.read(0, 10_000))]
    # Of producer 8 the last data stays without its record, and so does its marker. Of producer 9 the marker stays
    # without its record, because its epoch has no data.
    assert [(h.base_offset, h.count, h.producer_id, h.producer_epoch) for h in headers] == [
        (0, 0, 8, 0),
        (1, 1, 8, 0),
        (3, 0, 9, 1),
        (4, 1, -1, -1),
    ]
    log.release()
    assert contents(open_partition(tmp_path)) == {4: (b"a", b"last")}


def test_an_aborted_record_does_not_replace_the_committed_one_of_its_key(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    log.append(build([(b"a", b"committed")]))
    producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    log.append(build([(b"a", b"aborted")], is_transactional=True, **producer), in_transaction=True)
    log.append_end_marker_unsynced(9, 0, EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=0))
    log.append(build([(b"b", b"last")]))
    log.roll()
    clean(log)
    assert contents(log) == {0: (b"a", b"committed"), 3: (b"b", b"last")}


def test_a_segment_with_deleted_records_of_an_aborted_transaction_is_cleaned(tmp_path: Path) -> None:
    log = open_partition(tmp_path, options={"cleanup.policy": "compact,delete", "retention.ms": -1})
    producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0}
    log.append(rows([(b"a", b"aborted")], is_transactional=True, **producer), in_transaction=True)
    log.append_end_marker_unsynced(9, 0, EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=0))
    log.append(rows([(b"a", b"last")]))
    log.delete_records(2)
    log.roll()
    assert clean(log) is not None
    assert contents(log) == {2: (b"a", b"last")}


def test_reads_and_extents_within_a_gap_have_no_records(tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    log.append(rows([(b"kept", b"1")]))
    for _ in range(4):
        log.append(rows([(b"a", b"1")]))
    log.append(rows([(b"last", b"1")]))
    log.append(rows([(b"end", b"1")]))
    log.roll()
    clean(log)
    assert list(contents(log)) == [0, 4, 5, 6]
    for start, end in ((1, 2), (1, 4), (3, 4)):
        assert log.read(start, 10_000, end_offset=end) == b""
        assert log.locate(start, end) == []
    assert list(contents(log, 1)) == [4, 5, 6]
    [extent] = log.locate(1, 5)
    assert (extent.start_offset, extent.end_offset) == (1, 5)
    data = extent.path.read_bytes()[extent.start_position : extent.end_position]
    assert [header.base_offset for _, header in scan_headers(data)] == [4]


def test_a_log_without_remaining_records_is_read_to_its_end(tmp_path: Path) -> None:
    log = open_partition(tmp_path, options={"delete.retention.ms": 0})
    log.append(rows([(b"a", b"1")]))
    log.append(rows([(b"a", None)]))
    log.roll()
    for _ in range(2):
        clean(log)
    assert (log.size_bytes, log.log_start_offset, log.log_end_offset) == (0, 0, 2)
    assert [log.read(offset, 100) for offset in range(3)] == [b""] * 3
    assert log.locate(0, 2) == []
    assert log.offset_for_time(0) is None


def test_the_first_time_of_a_segment_is_that_of_its_first_batch(tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    [segment] = PartitionView(log, OsFiles()).segments
    assert segment.first_time_ms() == -1
    log.append(rows([(b"a", b"1"), (b"b", b"1")]))
    log.append(rows([(b"c", b"1")] * 5))
    assert segment.first_time_ms() == NOW_MS + 1


def test_snapshots_of_replaced_segments_go_with_them(tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    for number in range(4):
        log.append(rows([(b"a", b"%d" % number)]))
        log.roll()
    assert sorted(path.name for path in tmp_path.glob("*.snapshot")) == [f"{n:020d}.snapshot" for n in (1, 2, 3, 4)]
    clean(log, checkpoint=0)
    assert [segment.base_offset for segment in log.segments] == [0, 4]
    assert [path.name for path in tmp_path.glob("*.snapshot")] == [f"{4:020d}.snapshot"]


def test_records_without_a_key_go_and_are_counted(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    log.append(build([(None, b"1"), (b"a", b"1"), (None, b"2")]))
    log.append(build([(None, b"3")]))
    log.roll()
    log.append(build([(None, b"4")]))
    done = clean(log)
    assert done is not None
    assert (done.records_without_key, done.keys) == (3, 1)
    assert contents(log) == {1: (b"a", b"1"), 4: (None, b"4")}


def test_all_bytes_that_are_read_and_written_count_for_the_limit(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    for number in range(20):
        log.append(build([(b"a", b"%d" % number), (b"b%d" % number, b"1")]))
    log.roll()
    used: list[int] = []
    done = clean(log, use_io=used.append)
    assert done is not None
    assert sum(used) == done.bytes_mapped + done.bytes_read + done.bytes_written
    assert max(used) <= 1000 + len(build([(b"a", b"19"), (b"b19", b"1")]))
    assert clean(log, checkpoint=log.log_end_offset) is None


def test_statistics_count_what_was_read_and_written(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path, options={"segment.bytes": 100_000})
    for number in range(6):
        log.append(build([(b"a", b"%d" % number), (b"b%d" % number, b"1")]))
        if number % 2:
            log.roll()
    before = sum(segment.size_bytes for segment in log.segments)
    done = clean(log)
    assert done is not None
    assert (done.partition, done.start_offset, done.end_offset, done.keys) == ("orders-3", 0, 12, 7)
    assert (done.records_mapped, done.records_read, done.records_written, done.records_without_key) == (12, 12, 7, 0)
    assert (done.bytes_mapped, done.bytes_read) == (before, before)
    assert done.bytes_written == sum(segment.size_bytes for segment in log.segments)
    assert (done.segments_read, done.segments_written) == (3, 1)
    assert done.map_utilization == 7 / 4500


def test_tombstones_go_after_their_time(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path, options={"delete.retention.ms": 1000})
    log.append(build([(b"a", b"1"), (b"b", b"1"), (b"c", None)]))
    log.append(build([(b"a", None), (b"d", b"1")]))
    log.roll()
    times = decoded_times(log.read(0, 10_000))
    clean(log, now_ms=NOW_MS)
    assert contents(log) == {1: (b"b", b"1"), 2: (b"c", None), 3: (b"a", None), 4: (b"d", b"1")}
    headers = [header for _, header in scan_headers(log.read(0, 10_000))]
    assert [h.has_delete_horizon for h in headers] == [True, True]
    assert [h.base_timestamp for h in headers] == [NOW_MS + 1000] * 2
    assert decoded_times(log.read(0, 10_000)) == times[1:], "the records keep their timestamps"
    clean(log, now_ms=NOW_MS + 999)
    assert len(contents(log)) == 4
    clean(log, now_ms=NOW_MS + 1000)
    assert contents(log) == {1: (b"b", b"1"), 4: (b"d", b"1")}


def decoded_times(data: bytes) -> list[int]:
    batches = decode_range(pa.py_buffer(data), 0, 1000, lambda _: pa.schema([]))
    return [time_ms for batch in batches for time_ms in batch.timestamps_ms().to_pylist()]


def test_nothing_is_cleaned_that_is_damaged(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path)
    size_bytes = len(build([(b"a", b"1"), (b"b", b"1")]))
    for _ in range(3):
        log.append(build([(b"a", b"1"), (b"b", b"1")]))
    log.roll()
    path = tmp_path / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[2 * size_bytes - 1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptBatchError):
        clean(log)
    assert path.read_bytes() == damaged
    assert [each.name for each in tmp_path.glob("*.cleaned")] == []


SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("region", pa.string()), pa.field("amount", pa.int32())])


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("key_columns", [("id",), ("region", "id")])
def test_typed_topics_are_compacted_by_their_key_columns(
    tmp_path: Path, compression: Compression, key_columns: tuple[str, ...]
) -> None:
    log = open_partition(tmp_path, options={"delete.retention.ms": 0})

    def append(rows: list[tuple[int, str, int]], deleted: list[bool] | None = None) -> None:
        columns = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(SCHEMA)]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        tombstones = None if deleted is None else pa.array(deleted)
        log.append(
            build_columnar_batch(
                batch, schema_id=4, timestamps_ms=NOW_MS, tombstones=tombstones, compression=compression
            )
        )

    append([(1, "north", 10), (2, "north", 20), (1, "south", 30)])
    append([(1, "north", 11), (3, "south", 40)])
    append([(3, "south", 0)], [True])
    log.roll()
    keys = TopicKeys(schema_of=lambda _: SCHEMA, key_columns=key_columns, encode=encode_keys)
    clean(log, keys=keys)
    clean(log, keys=keys)
    data = pa.py_buffer(log.read(0, 10_000))
    batches = list(decode_range(data, 0, 6, lambda _: SCHEMA))
    rows = [tuple(row.values()) for batch in batches for row in batch.columns.to_pylist()]
    offsets = [offset for batch in batches for offset in batch.offsets().to_pylist()]
    if key_columns == ("id",):
        assert rows == [(2, "north", 20), (1, "north", 11)]
        assert offsets == [1, 3]
    else:
        assert rows == [(2, "north", 20), (1, "south", 30), (1, "north", 11)]
        assert offsets == [1, 2, 3]


def test_lookups_agree_with_a_cleaned_log(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path, options={"index.interval.bytes": 0})
    for n in range(60):
        log.append(build([(b"k%d" % (n % 7), b"v" * 30), (b"k%d" % (n % 11), b"w%d" % n)]))
    log.roll()
    clean(log)
    left = contents(log)
    for offset in range(log.log_end_offset):
        at_or_after = [each for each in left if each >= offset]
        assert list(contents(log, offset)) == at_or_after
        extents = log.locate(offset, log.log_end_offset, 500)
        assert extents[0].start_offset == offset
        assert all(a.end_offset == b.start_offset for a, b in pairwise(extents))
    found = log.offset_for_time(NOW_MS)
    assert found is not None
    assert found[0] == min(left)


def test_a_cleaned_segment_has_its_indexes(build: Build, tmp_path: Path) -> None:
    log = open_partition(tmp_path, options={"index.interval.bytes": 0})
    for n in range(20):
        log.append(build([(b"k%d" % (n % 7), b"v" * 30), (b"k%d" % (n % 11), b"w%d" % n)]))
    log.roll()
    clean(log)
    view = PartitionView(log, OsFiles()).segments[0]
    paths = view.segment.offset_index_path, view.segment.time_index_path
    written = [path.read_bytes() for path in paths]
    assert view.index_bytes() == tuple(map(len, written))
    view.segment.rebuild_indexes("to compare")
    assert [path.read_bytes() for path in paths] == written


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_thinned_batch_has_statistics_that_hold(compression: Compression, tmp_path: Path) -> None:
    def batch(first: int, count: int) -> bytes:
        columns = {
            "key": pa.array([b"k%04d" % number for number in range(first, first + count)]),
            "value": pa.array([b"v" if number % 7 else None for number in range(count)]),
        }
        times = pa.array([NOW_MS + number for number in range(count)])
        return build_columnar_batch(pa.record_batch(columns), timestamps_ms=times, compression=compression)

    log = open_partition(tmp_path, options={"segment.bytes": 100_000})
    log.append(batch(0, 800))
    log.append(batch(0, 400))
    log.roll()
    clean(log)
    data = log.read(0, 1_000_000)
    (at, header), _ = scan_headers(data)
    assert header.count == 400
    found = read_statistics(data, at, header)
    assert found is not None
    # Of all records that were there, or of the remaining ones: both are right.
    low, high = found.columns[0].bounds or (None, None)
    assert low in (b"k0000", b"k0400")
    assert high == b"k0799"
    validate_batch(data, at, header, no_schemas)


def no_schemas(schema_id: int) -> pa.Schema:
    raise AssertionError(schema_id)
