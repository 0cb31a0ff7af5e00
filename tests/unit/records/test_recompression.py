from __future__ import annotations

import pyarrow as pa
import pytest

from millrace.errors import CorruptBatchError, UnsupportedCompressionError
from millrace.records import (
    Compression,
    Record,
    build_columnar_batch,
    build_rows_batch,
    decode_batch,
    headers_array,
    read_header,
    read_rows,
    recompress_batch,
    seal,
    verify_crc,
)

TYPED = pa.record_batch({"id": pa.array([1, 2, 3]), "name": pa.array(["x", None, "y"])})
COLUMNAR = [Compression.NONE, Compression.LZ4, Compression.ZSTD]


def schemas(_: int) -> pa.Schema:
    return TYPED.schema


@pytest.mark.parametrize("before", list(Compression))
@pytest.mark.parametrize("after", list(Compression))
def test_rows_keep_everything_but_their_compression(before: Compression, after: Compression) -> None:
    records = [Record(key=b"k", value=b"v" * 99, timestamp_ms=row, headers=(("h", b"x"),)) for row in range(9)]
    batch = build_rows_batch(
        records, compression=before, base_offset=7, producer_id=1, producer_epoch=2, base_sequence=3, leader_epoch=4
    )
    header = read_header(batch)
    again = recompress_batch(batch, 0, header, schemas, after)
    changed = read_header(again)
    verify_crc(again, 0, changed)
    assert changed.compression == after
    assert list(read_rows(again, 0, changed)) == list(read_rows(batch, 0, header))
    assert recompress_batch(again, 0, changed, schemas, before) == batch


@pytest.mark.parametrize(
    ("compression", "low", "high"),
    [(Compression.GZIP, 1, 9), (Compression.LZ4, None, 12), (Compression.ZSTD, -500, 22)],
)
def test_a_higher_level_makes_smaller_rows(compression: Compression, low: int | None, high: int) -> None:
    words = [b"%d of %d" % (row * row % 977, row % 31) for row in range(3000)]
    batch = build_rows_batch([Record(key=None, value=word, timestamp_ms=1) for word in words])
    header = read_header(batch)
    fast, small = (recompress_batch(batch, 0, header, schemas, compression, level=level) for level in (low, high))
    assert len(small) < len(fast)
    assert list(read_rows(small, 0, read_header(small))) == list(read_rows(batch, 0, header))


@pytest.mark.parametrize("before", COLUMNAR)
@pytest.mark.parametrize("after", COLUMNAR)
def test_columns_keep_everything_but_their_compression(before: Compression, after: Compression) -> None:
    batch = build_columnar_batch(
        TYPED,
        schema_id=5,
        timestamps_ms=pa.array([1, 2, 3]),
        headers=headers_array([[("h", b"x")], [], []]),
        tombstones=pa.array([False, True, False]),
        offsets=pa.array([7, 9, 10]),
        base_offset=7,
        last_offset_delta=8,
        delete_horizon_ms=55,
        compression=before,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        is_transactional=True,
    )
    again = recompress_batch(batch, 0, read_header(batch), schemas, after)
    assert read_header(again).compression == after
    assert recompress_batch(again, 0, read_header(again), schemas, before) == batch
    decoded = decode_batch(pa.py_buffer(again), 0, read_header(again), schemas)
    assert decoded.columns.equals(TYPED)
    assert decoded.offsets().to_pylist() == [7, 9, 10]


@pytest.mark.parametrize("after", [Compression.GZIP, Compression.SNAPPY])
def test_columns_cannot_have_the_codecs_of_rows(after: Compression) -> None:
    batch = build_columnar_batch(TYPED, schema_id=5)
    with pytest.raises(UnsupportedCompressionError, match="choose none, lz4 or zstd"):
        recompress_batch(batch, 0, read_header(batch), schemas, after)


@pytest.mark.parametrize("before", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_records_without_a_body_are_corrupt(before: Compression) -> None:
    batch = seal(read_header(build_rows_batch([Record()], compression=before)))
    with pytest.raises(CorruptBatchError):
        recompress_batch(batch, 0, read_header(batch), schemas, Compression.NONE)


def test_an_empty_batch_stays_one() -> None:
    batch = build_rows_batch([], base_offset=3, last_offset=8)
    again = recompress_batch(batch, 0, read_header(batch), schemas, Compression.ZSTD)
    assert len(again) == len(batch)
    assert list(read_rows(again, 0, read_header(again))) == []
