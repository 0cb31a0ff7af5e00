"""Tests of the batches that the log cleaner reads and rewrites."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace.errors import CorruptBatchError
from millrace.records import (
    HEADER_BYTES,
    Compression,
    Record,
    TimestampType,
    build_columnar_batch,
    build_entries,
    build_rows_batch,
    checksum,
    decode_range,
    read_header,
    read_rows,
    stamp_append_time,
)
from millrace_broker.log.cleaning.batches import CleanableBatch, read_chunks
from millrace_broker.log.cleaning.chunks import Chunk
from millrace_broker.log.cleaning.row_runs import Rewriting

from .conftest import NOW_MS, OPAQUE_KEYS, Pair, clean, columnar, contents, open_partition, rows

PAIRS: list[Pair] = [(b"a", b"1"), (None, b"2"), (b"c", None), (b"d", b"4")]


@dataclass
class Stored:
    """A segment in memory."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, position: int, size_bytes: int) -> bytes:
        return self.data[position : position + size_bytes]


def chunks_of(data: bytes, chunk_bytes: int = 10_000) -> list[list[CleanableBatch]]:
    return list(read_chunks(Stored(data), 0, chunk_bytes, OPAQUE_KEYS))


def batch_of(data: bytes) -> CleanableBatch:
    [[batch]] = chunks_of(data)
    return batch


def with_checksum(data: bytearray) -> bytes:
    data[17:21] = checksum(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def at_offset(data: bytes, base_offset: int) -> bytes:
    return base_offset.to_bytes(8, "big") + data[8:]


# --- chunks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [rows, columnar])
def test_chunks_hold_whole_batches_within_the_limit_or_one(build: Callable[..., bytes]) -> None:
    one = build(PAIRS)
    data = one * 7
    for chunk_bytes in (1, len(one) - 1, len(one), len(one) + 1, 3 * len(one), 7 * len(one), 10_000):
        chunks = chunks_of(data, chunk_bytes)
        at_once = max(1, chunk_bytes // len(one))
        assert [len(chunk) for chunk in chunks[:-1]] == [at_once] * (len(chunks) - 1)
        assert b"".join(batch.original() for chunk in chunks for batch in chunk) == data
    [first] = chunks_of(data[: len(one)], 17)
    assert [batch.size_bytes for batch in first] == [len(one)]


def test_chunks_begin_at_a_position() -> None:
    data = rows(PAIRS) + columnar(PAIRS) + rows(PAIRS[:1])
    found = read_chunks(Stored(data), len(rows(PAIRS)), 10_000, OPAQUE_KEYS)
    assert [batch.count for chunk in found for batch in chunk] == [4, 1]


def test_a_chunk_has_a_limited_number_of_records() -> None:
    many = rows([(b"k", b"v")] * 20_000, compression=Compression.ZSTD)
    assert [[batch.count for batch in chunk] for chunk in chunks_of(many * 3, 10**6)] == [[20_000] * 2, [20_000]]


def message_wrapper(pairs: Sequence[Pair], compression: Compression) -> bytes:
    records = [Record(key=key, value=value, timestamp_ms=NOW_MS, offset=n) for n, (key, value) in enumerate(pairs)]
    return build_entries(records, magic=1, compression=compression, timestamp_type=TimestampType.CREATE_TIME)


@pytest.mark.parametrize(
    ("build", "compression"),
    [(rows, Compression.ZSTD), (columnar, Compression.ZSTD), (message_wrapper, Compression.GZIP)],
)
def test_a_chunk_has_a_limited_decompressed_size(build: Callable[..., bytes], compression: Compression) -> None:
    zeros = build([(b"k", bytes(100_000))], compression=compression)
    assert len(zeros) < 1000
    assert [len(chunk) for chunk in chunks_of(zeros * 9, 75_000)] == [3, 3, 3]


@pytest.mark.parametrize("left", [1, 16, 17, 60, 61, -1])
@pytest.mark.parametrize("chunk_bytes", [1, 50, 10_000])
def test_an_incomplete_batch_is_damage(left: int, chunk_bytes: int) -> None:
    one = rows(PAIRS)
    with pytest.raises(CorruptBatchError, match=f"the batch at position {len(one)} is not complete"):
        chunks_of(one + one[:left], chunk_bytes)


@pytest.mark.parametrize("length", [-1, 0, 13])
def test_an_impossible_length_is_damage(length: int) -> None:
    data = bytearray(rows(PAIRS))
    data[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatchError, match=f"a batch has the invalid length {length}"):
        chunks_of(bytes(data))


def test_a_batch_may_be_larger_than_eight_megabytes() -> None:
    data = bytearray(rows(PAIRS))
    data[8:12] = (2**23).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match="the batch at position 0 is not complete"):
        chunks_of(bytes(data))


# --- rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_batch_alone_has_the_records_that_it_has_in_a_run(compression: Compression) -> None:
    data = at_offset(rows(PAIRS, compression=compression), 40)
    batch = batch_of(data)
    alone, run = batch.keys(), Chunk([batch], OPAQUE_KEYS)
    assert alone.offsets.tolist() == run.offsets.tolist() == [40, 41, 42, 43]
    assert alone.keys[0].to_pylist() == run.keys.to_pylist() == [b"a", None, b"c", b"d"]
    assert alone.has_value.tolist() == run.has_value.tolist() == [True, True, False, True]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("horizon_ms", [None, NOW_MS + 5000])
@pytest.mark.parametrize("kept", [[True] * 4, [False, True, False, True], [False, False, True, False]])
def test_a_batch_is_rewritten_alone_as_in_a_run(
    compression: Compression, horizon_ms: int | None, kept: list[bool]
) -> None:
    producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 5}
    batch = batch_of(at_offset(rows(PAIRS, compression=compression, **producer), 40))
    mask = np.array(kept)
    alone = batch.thinned(mask, horizon_ms)
    in_run = Chunk([batch], OPAQUE_KEYS).rewrite([Rewriting(0, mask, horizon_ms)])[0]
    for data in (alone, in_run):
        header = read_header(data)
        assert (header.base_offset, header.last_offset, header.count) == (40, 43, sum(kept))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
        assert batch_of(data).delete_horizon_ms == horizon_ms
        left = [number for number, stays in enumerate(kept) if stays]
        assert [(record.key, record.value, record.timestamp_ms) for record in read_rows(data, 0, header)] == [
            (*PAIRS[number], NOW_MS + number) for number in left
        ]
        assert header.max_timestamp == NOW_MS + left[-1]
        again = batch_of(data)
        assert again.keys().offsets.tolist() == [40 + number for number in left]


@pytest.mark.parametrize("damaged", ["length of the record", "length of the value"])
def test_rows_with_damage_behind_a_right_checksum_are_named(damaged: str) -> None:
    record = Record(key=b"key", value=b"value", timestamp_ms=NOW_MS)
    data = bytearray(build_rows_batch([record]))
    size_at = HEADER_BYTES if damaged == "length of the record" else data.index(b"value") - 1
    data[size_at] = 2 * 50  # more bytes than follow
    batch = batch_of(with_checksum(data))
    with pytest.raises(CorruptBatchError):
        Chunk([batch], OPAQUE_KEYS)


def test_an_emptied_batch_keeps_its_producer_and_its_offsets() -> None:
    producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 5}
    for build in (rows, columnar):
        before = batch_of(at_offset(build(PAIRS, **producer), 40)).thinned(None, NOW_MS + 5000)
        assert read_header(before).has_delete_horizon
        header = read_header(batch_of(before).emptied())
        assert (header.base_offset, header.last_offset, header.count) == (40, 43, 0)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
        assert header.is_columnar is (build is columnar)
        assert not header.has_delete_horizon


# --- columns --------------------------------------------------------------------------------------------------


def test_records_without_keys_and_values_are_told_from_the_others() -> None:
    found = batch_of(columnar(PAIRS)).keys()
    assert found.keys[0].to_pylist() == [b"a", None, b"c", b"d"]
    assert found.has_value.tolist() == [True, True, False, True]
    keyless = batch_of(columnar([(None, b"1"), (None, b"2")])).keys()
    assert keyless.keys[0].to_pylist() == [None, None]
    assert keyless.has_value.tolist() == [True, True]


def decoded(data: bytes) -> list[tuple[int, bytes | None, bytes | None, int]]:
    [batch] = decode_range(pa.py_buffer(data), 0, 10**6, OPAQUE_KEYS.schema_of)
    columns = [batch.columns.column(name).to_pylist() for name in ("key", "value")]
    return list(zip(batch.offsets().to_pylist(), *columns, batch.timestamps_ms().to_pylist(), strict=True))


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("has_times", [True, False])
@pytest.mark.parametrize("horizon_ms", [None, NOW_MS + 5000])
@pytest.mark.parametrize(
    "rounds", [[[0, 1, 2, 3]], [[0, 1]], [[0]], [[3]], [[1, 3], [3]], [[0, 1, 3], [0, 1]], [[0, 2, 3], [0, 2], [2]]]
)
def test_a_columnar_batch_is_thinned_round_after_round(
    compression: Compression, has_times: bool, horizon_ms: int | None, rounds: list[list[int]]
) -> None:
    times = {} if has_times else {"timestamps_ms": NOW_MS}
    producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 5}
    before = list(range(4))
    data = at_offset(columnar(PAIRS, compression=compression, **times, **producer), 40)
    for left in rounds:
        data = batch_of(data).thinned(np.array([number in left for number in before]), horizon_ms)
        header = read_header(data)
        assert (header.base_offset, header.last_offset, header.count) == (40, 43, len(left))
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 5)
        assert header.is_columnar
        assert batch_of(data).delete_horizon_ms == horizon_ms
        expected = [(40 + number, *PAIRS[number], NOW_MS + number * has_times) for number in left]
        assert decoded(data) == expected
        assert header.max_timestamp == expected[-1][3]
        if horizon_ms is None:
            assert header.base_timestamp == expected[0][3]
        found = batch_of(data).keys()
        assert found.offsets.tolist() == [offset for offset, *_ in expected]
        assert found.keys[0].to_pylist() == [key for _, key, *_ in expected]
        assert found.has_value.tolist() == [value is not None for _, _, value, _ in expected]
        before = left


@pytest.mark.parametrize("build", [rows, columnar])
def test_the_append_time_of_a_batch_is_kept(build: Callable[..., bytes]) -> None:
    data = bytearray(build(PAIRS))
    stamp_append_time(data, 0, NOW_MS + 777)
    for horizon_ms in (None, NOW_MS + 5000):
        thinned = Chunk([batch_of(bytes(data))], OPAQUE_KEYS).rewrite(
            [Rewriting(0, np.array([False, True, True, False]), horizon_ms)]
        )[0]
        assert [time_ms for *_, time_ms in decoded(thinned)] == [NOW_MS + 777] * 2
        header = read_header(thinned)
        assert header.max_timestamp == NOW_MS + 777
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        again = Chunk([batch_of(thinned)], OPAQUE_KEYS).rewrite([Rewriting(0, np.array([True, False]), None)])[0]
        assert batch_of(again).delete_horizon_ms == horizon_ms, "a horizon that is set stays"
        assert [time_ms for *_, time_ms in decoded(again)] == [NOW_MS + 777]


def test_a_typed_topic_without_key_columns_cannot_be_compacted() -> None:
    schema = pa.schema([pa.field("id", pa.int64())])
    data = build_columnar_batch(pa.record_batch([[1, 2]], schema=schema), schema_id=4, timestamps_ms=NOW_MS)
    keys = replace(OPAQUE_KEYS, schema_of=lambda schema_id: schema)
    [[batch]] = read_chunks(Stored(data), 0, 10_000, keys)
    with pytest.raises(CorruptBatchError, match="without key columns cannot be compacted"):
        batch.keys()


def test_columns_with_damage_behind_a_right_checksum_are_named() -> None:
    sound = at_offset(columnar(PAIRS), 40)
    counted = bytearray(sound)
    counted[57:61] = (5).to_bytes(4, "big")
    counted[23:27] = (4).to_bytes(4, "big")
    with pytest.raises(CorruptBatchError, match="offset 40 has 4 rows, but its header counts 5"):
        batch_of(with_checksum(counted)).keys()
    garbled = bytearray(sound)
    garbled[-len(sound) // 2 :] = b"\xff" * (len(sound) // 2)
    with pytest.raises(CorruptBatchError):
        batch_of(with_checksum(garbled)).keys()


# --- messages of magic 0 and 1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_messages_have_keys_and_lose_records_but_are_never_empty(magic: int, compression: Compression) -> None:
    records = [
        Record(key=key, value=value, timestamp_ms=NOW_MS + n, offset=40 + n) for n, (key, value) in enumerate(PAIRS)
    ]
    batches = [
        batch
        for chunk in chunks_of(build_entries(records, magic=magic, compression=compression), 10_000)
        for batch in chunk
    ]
    assert len(batches) == (4 if compression is Compression.NONE else 1)
    assert sum(batch.count for batch in batches) == 4
    assert [offset for batch in batches for offset in batch.keys().offsets.tolist()] == [40, 41, 42, 43]
    assert [key for batch in batches for key in batch.keys().keys[0].to_pylist()] == [b"a", None, b"c", b"d"]
    assert [each for batch in batches for each in batch.keys().has_value.tolist()] == [True, True, False, True]
    last = batches[-1]
    assert last.last_offset == 43
    assert last.max_timestamp == (NOW_MS + 3 if magic else -1)
    kept = np.array([False] * (last.count - 1) + [True])
    [[thinned]] = chunks_of(last.thinned(kept, None))
    assert (thinned.magic, thinned.count, thinned.last_offset) == (magic, 1, 43)
    assert thinned.keys().keys[0].to_pylist() == [b"d"]
    with pytest.raises(CorruptBatchError, match=f"offset 43 has magic {magic}, whose batches cannot be empty"):
        last.emptied()


@pytest.mark.parametrize(
    ("checkpoint", "age_ms", "is_kept"), [(4, 999, True), (4, 1000, False), (4, 1001, False), (None, 10**6, True)]
)
@pytest.mark.parametrize("magic", [0, 1])
def test_tombstones_of_messages_go_with_the_age_of_their_segment(
    tmp_path: Path, magic: int, checkpoint: int | None, age_ms: int, is_kept: bool
) -> None:
    # These formats have no delete horizon. The newest clean segment tells when the others were clean at the latest.
    for base in (0, 2, 4):
        pairs: list[Pair] = [(b"gone%d" % base, None), (b"here%d" % base, b"1")]
        records = [
            Record(key=key, value=value, timestamp_ms=NOW_MS, offset=base + n) for n, (key, value) in enumerate(pairs)
        ]
        (tmp_path / f"{base:020d}.log").write_bytes(build_entries(records, magic=magic))
    log = open_partition(tmp_path, options={"delete.retention.ms": 1000})
    log.roll()
    for segment, time_ms in zip(log.segments, (NOW_MS - age_ms, NOW_MS, NOW_MS), strict=False):
        os.utime(segment.path, ns=(time_ms * 10**6,) * 2)
    clean(log, checkpoint=checkpoint)
    assert list(contents(log)) == ([0] if is_kept else []) + [1, 2, 3, 4, 5]
