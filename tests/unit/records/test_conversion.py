from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import (
    CorruptBatchError,
    InvalidRecordError,
    UnknownSchemaError,
    UnsupportedCompressionError,
    UnsupportedForFormatError,
)
from millrace.records import (
    BatchEntry,
    Compression,
    ControlType,
    EndTransactionMarker,
    MessageEntry,
    Record,
    RecordFormat,
    TimestampType,
    build_columnar_batch,
    build_end_marker_batch,
    build_entries,
    build_rows_batch,
    convert,
    decode_batch,
    read_entries,
    read_header,
    read_rows,
    seal,
)

MESSAGES = [RecordFormat.MAGIC_0, RecordFormat.MAGIC_1]
BATCHES = [RecordFormat.ROWS, RecordFormat.COLUMNAR]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
HEADERS = st.just(()) | st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=5)), max_size=2).map(tuple)


def records(headers: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Record]]:
    return st.lists(
        st.builds(
            Record,
            key=st.none() | st.binary(max_size=8),
            value=st.none() | st.binary(max_size=40),
            headers=headers,
            timestamp_ms=st.integers(-1, 2**62),
            offset=st.integers(0, 2**31 - 1),
        ),
        min_size=1,
        max_size=40,
        unique_by=lambda record: record.offset,
    ).map(lambda found: sorted(found, key=lambda record: record.offset))


def converted(data: bytes, target: RecordFormat, **options: Any) -> bytes:
    return b"".join(convert(data, target, **options))


def contents(data: bytes) -> list[Record]:
    """Return the records of a log, of any formats."""
    found: list[Record] = []
    for entry in read_entries(data):
        entry.check()
        if isinstance(entry, BatchEntry) and entry.header.is_columnar:
            found += columnar_contents(data, entry)
        else:
            found += entry.records()
    return found


def columnar_contents(data: bytes, entry: BatchEntry) -> Iterable[Record]:
    batch = decode_batch(pa.py_buffer(data), entry.position, entry.header, lambda _: pa.schema([]))
    headers = batch.headers.to_pylist() if batch.headers is not None else [[]] * batch.num_rows
    for row, key, value, timestamp, offset in zip(
        headers,
        batch.columns["key"].to_pylist(),
        batch.columns["value"].to_pylist(),
        batch.timestamps_ms().to_pylist(),
        batch.offsets().to_pylist(),
        strict=True,
    ):
        pairs = tuple((header["key"], header["value"]) for header in row)
        yield Record(key=key, value=value, headers=pairs, timestamp_ms=timestamp, offset=offset)


def formats_of(data: bytes) -> set[RecordFormat]:
    return {
        RecordFormat.COLUMNAR
        if isinstance(entry, BatchEntry) and entry.header.is_columnar
        else RecordFormat(entry.magic)
        for entry in read_entries(data)
    }


@given(
    records(st.just(())),
    st.lists(st.sampled_from(RecordFormat), min_size=1, max_size=4),
    st.sampled_from([Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4]),
    st.sampled_from(TimestampType),
)
def test_records_go_through_any_formats_unchanged(
    original: list[Record], way: list[RecordFormat], compression: Compression, type_: TimestampType
) -> None:
    data = build_entries(original, magic=1, compression=compression, timestamp_type=type_)
    expected = contents(data)
    for target in way:
        is_arrow = target is RecordFormat.COLUMNAR
        data = converted(data, target, compression=Compression.LZ4 if is_arrow else compression)
        assert formats_of(data) == {target}
        if target is RecordFormat.MAGIC_0:
            expected = [Record(key=each.key, value=each.value, offset=each.offset) for each in expected]
        assert contents(data) == expected


@given(
    records(HEADERS),
    st.sampled_from([Compression.NONE, Compression.LZ4, Compression.ZSTD]),
    st.sampled_from(TimestampType),
    st.none() | st.integers(0, 2**62),
    st.booleans(),
)
def test_rows_become_columnar_and_rows_again_with_all_that_their_header_says(
    original: list[Record], compression: Compression, type_: TimestampType, horizon: int | None, is_transactional: bool
) -> None:
    rows = build_rows_batch(
        original,
        base_offset=None,
        last_offset=2**31 - 1,
        compression=compression,
        timestamp_type=type_,
        delete_horizon_ms=horizon,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        is_transactional=is_transactional,
        leader_epoch=9,
    )
    columnar = converted(rows, RecordFormat.COLUMNAR)
    assert formats_of(columnar) == {RecordFormat.COLUMNAR}
    assert contents(columnar) == contents(rows)
    again = converted(columnar, RecordFormat.ROWS)
    assert contents(again) == contents(rows)
    if type_ is TimestampType.CREATE_TIME:
        assert again == rows  # append time replaced these timestamps
    else:
        assert read_header(again).max_timestamp == read_header(rows).max_timestamp


@pytest.mark.parametrize("target", BATCHES)
def test_batches_that_compaction_emptied_stay(target: RecordFormat) -> None:
    empty = build_rows_batch(
        [], base_offset=12, last_offset=19, producer_id=7, producer_epoch=1, base_sequence=5, leader_epoch=2
    )
    columnar = converted(empty, RecordFormat.COLUMNAR)
    header = read_header(converted(columnar, target))
    assert (header.base_offset, header.last_offset, header.count) == (12, 19, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 5)
    assert converted(columnar, RecordFormat.ROWS) == empty


def test_a_batch_of_the_wanted_format_is_not_rewritten() -> None:
    original = [Record(value=b"v" * 9, offset=offset) for offset in range(3)]
    data = b"".join(build_entries(original, magic=magic, compression=Compression.GZIP) for magic in (0, 1, 2))
    assert next(iter(convert(data, RecordFormat.MAGIC_0))) == build_entries(
        original, magic=0, compression=Compression.GZIP
    )
    for target in (*MESSAGES, RecordFormat.ROWS):
        entry = build_entries(original, magic=target, compression=Compression.GZIP)
        assert converted(entry, target) == converted(entry, target, compression=Compression.GZIP) == entry
        plain = converted(entry, target, compression=Compression.NONE)
        assert plain == build_entries(original, magic=target)


def test_single_messages_are_put_together_up_to_a_size() -> None:
    original = [Record(value=bytes(100), offset=offset, timestamp_ms=offset) for offset in range(50)]
    data = build_entries(original, magic=1)
    whole = list(convert(data, RecordFormat.ROWS))
    assert [read_header(batch).count for batch in whole] == [50]
    parts = list(convert(data, RecordFormat.ROWS, group_bytes_max=1_400))
    assert [read_header(batch).count for batch in parts] == [10] * 5
    assert contents(b"".join(parts)) == original
    wrappers = list(convert(data, RecordFormat.MAGIC_0, compression=Compression.SNAPPY, group_bytes_max=1_400))
    assert [len(list(read_entries(wrapper))) for wrapper in wrappers] == [1] * 5


def test_messages_are_not_put_together_when_a_batch_could_not_hold_both() -> None:
    stamped = {"magic": 1, "timestamp_type": TimestampType.LOG_APPEND_TIME}
    data = b"".join(
        (
            build_entries([Record(offset=0, timestamp_ms=5), Record(offset=1, timestamp_ms=5)], **stamped),  # type: ignore[arg-type]
            build_entries([Record(offset=2, timestamp_ms=6)], **stamped),  # type: ignore[arg-type]
            build_entries([Record(offset=3, timestamp_ms=6)], magic=1),
            build_entries([Record(offset=2**31 + 3, timestamp_ms=6)], magic=1),
            build_entries([Record(offset=2**31 + 4)], magic=0),
            build_entries([Record(offset=2**31 + 5)], magic=1, compression=Compression.GZIP),
        )
    )
    batches = list(convert(data, RecordFormat.ROWS))
    assert [read_header(batch).count for batch in batches] == [2, 1, 1, 1, 1, 1]
    assert contents(b"".join(batches)) == contents(data)


@pytest.mark.parametrize("target", [RecordFormat.MAGIC_1, RecordFormat.ROWS, RecordFormat.COLUMNAR])
def test_a_wrapper_is_split_where_its_offsets_span_more_than_a_batch(target: RecordFormat) -> None:
    offsets = [5, 6, 2**31 + 4, 2**31 + 5, 2**31 + 6, 2**32 + 4, 2**32 + 5]
    wrapper = build_entries([Record(offset=each) for each in offsets], magic=1, compression=Compression.GZIP)
    (whole,) = convert(build_entries([Record(offset=each) for each in offsets[:3]], magic=1), RecordFormat.ROWS)
    assert read_header(whole).count == 3
    options = {} if target is not RecordFormat.COLUMNAR else {"compression": Compression.NONE}
    parts = list(convert(wrapper, target, **options))
    assert [[each.offset for each in contents(part)] for part in parts] == [offsets[:3], offsets[3:6], offsets[6:]]


@pytest.mark.parametrize(("last", "is_kept"), [(2**31 + 4, True), (2**31 + 5, False)])
def test_a_wrapper_of_the_wanted_format_is_kept_if_a_segment_can_hold_its_offsets(last: int, is_kept: bool) -> None:
    records = [Record(offset=5), Record(offset=last)]
    wrapper = build_entries(records, magic=1, compression=Compression.GZIP)
    parts = list(convert(wrapper, RecordFormat.MAGIC_1))
    assert (parts == [wrapper]) is is_kept
    assert contents(b"".join(parts)) == records


def test_old_formats_refuse_headers_and_producers_unless_loss_is_allowed() -> None:
    with_headers = build_rows_batch([Record(value=b"a"), Record(value=b"b", headers=(("h", b"x"),))], base_offset=5)
    of_producer = build_rows_batch([Record()], producer_id=1, producer_epoch=0, base_sequence=0, base_offset=7)
    marker = build_end_marker_batch(
        EndTransactionMarker(type=ControlType.COMMIT, coordinator_epoch=0),
        base_offset=8,
        timestamp_ms=0,
        producer_id=1,
        producer_epoch=0,
    )
    for target in MESSAGES:
        with pytest.raises(UnsupportedForFormatError, match="headers of the record at offset 6"):
            converted(with_headers, target)
        with pytest.raises(UnsupportedForFormatError, match="idempotent producer with base offset 7"):
            converted(of_producer, target)
        with pytest.raises(UnsupportedForFormatError, match="a control batch with base offset 8"):
            converted(marker, target)
        lossy = converted(with_headers + of_producer + marker, target, allow_loss=True)
        assert formats_of(lossy) == {target}
        assert [(record.offset, record.value) for record in contents(lossy)] == [(5, b"a"), (6, b"b"), (7, None)]


def test_control_batches_stay_rows_among_columnar_ones() -> None:
    marker = build_end_marker_batch(
        EndTransactionMarker(type=ControlType.ABORT, coordinator_epoch=4),
        base_offset=1,
        timestamp_ms=0,
        producer_id=1,
        producer_epoch=0,
    )
    data = converted(build_rows_batch([Record()]) + marker, RecordFormat.COLUMNAR, compression=Compression.ZSTD)
    first, second = read_entries(data)
    assert isinstance(first, BatchEntry)
    assert first.header.is_columnar
    assert data[second.position :] == marker


def test_typed_batches_stay_columnar() -> None:
    columns = pa.record_batch({"amount": pa.array([1, 2, 3])})
    typed = build_columnar_batch(columns, schema_id=4, base_offset=9)
    for target in (*MESSAGES, RecordFormat.ROWS):
        with pytest.raises(UnsupportedForFormatError, match="columns of schema 4"):
            converted(typed, target, allow_loss=True)
    assert converted(typed, RecordFormat.COLUMNAR) == typed
    with pytest.raises(UnknownSchemaError, match="pass schema_of"):
        converted(typed, RecordFormat.COLUMNAR, compression=Compression.LZ4)
    packed = converted(typed, RecordFormat.COLUMNAR, compression=Compression.LZ4, schema_of=lambda _: columns.schema)
    assert decode_batch(pa.py_buffer(packed), 0, read_header(packed), lambda _: columns.schema).columns == columns


def test_columns_are_checked_before_they_are_compressed_again() -> None:
    columns = pa.record_batch({"word": pa.array(["é"])})
    batch = build_columnar_batch(columns, schema_id=4)
    damaged = seal(read_header(batch), batch[61:].replace("é".encode(), b"\xff\xff"))
    with pytest.raises(CorruptBatchError, match="base offset 0"):
        converted(damaged, RecordFormat.COLUMNAR, compression=Compression.LZ4, schema_of=lambda _: columns.schema)


def test_a_compression_that_the_format_lacks_is_refused() -> None:
    for compression, target in (
        (Compression.GZIP, RecordFormat.COLUMNAR),
        (Compression.SNAPPY, RecordFormat.COLUMNAR),
        (Compression.ZSTD, RecordFormat.MAGIC_0),
        (Compression.ZSTD, RecordFormat.MAGIC_1),
    ):
        data = build_rows_batch([Record(value=b"v")], compression=compression)
        with pytest.raises(UnsupportedCompressionError, match="choose"):
            converted(data, target)
        assert contents(converted(data, target, compression=Compression.LZ4))


@pytest.mark.parametrize("target", RecordFormat)
def test_damage_is_not_converted(target: RecordFormat) -> None:
    for magic in range(3):
        data = bytearray(build_entries([Record(value=b"value")], magic=magic))
        data[-2] ^= 1
        with pytest.raises(CorruptBatchError, match="fails its checksum"):
            converted(bytes(data), target)


def test_damage_within_a_wrapper_is_not_converted() -> None:
    inner = bytearray(build_entries([Record(value=b"value")], magic=1))
    inner[-1] ^= 1
    value = zlib.compress(bytes(inner), wbits=31)
    content = struct.pack(">bbqii", 1, Compression.GZIP, 0, -1, len(value)) + value
    wrapper = struct.pack(">qiI", 0, 4 + len(content), zlib.crc32(content)) + content
    (entry,) = read_entries(wrapper)
    assert isinstance(entry, MessageEntry)
    assert list(entry.records())  # readers do not check this field
    with pytest.raises(CorruptBatchError, match="within a wrapper"):
        converted(wrapper, RecordFormat.ROWS)


def test_offsets_that_do_not_ascend_are_not_written() -> None:
    data = build_entries([Record(offset=4)], magic=1) + build_entries([Record(offset=4)], magic=1)
    with pytest.raises(InvalidRecordError, match="must ascend"):
        converted(data, RecordFormat.ROWS)


def test_an_incomplete_last_entry_is_left_out() -> None:
    data = build_entries([Record(offset=4, value=b"v")], magic=0)
    batch = converted(data + data[:-1], RecordFormat.ROWS)
    assert [record.offset for record in read_rows(batch, 0, read_header(batch))] == [4]
