from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    SchemaError,
    SchemaMismatchError,
    UnsupportedCompressionError,
)
from millrace.records import (
    ColumnFlags,
    Compression,
    TimestampType,
    build_columnar_batch,
    checksum,
    decode_batch,
    headers_array,
    read_columns_header,
    read_header,
    seal,
    verify_crc,
)
from millrace.records.columnar import typed_body_schema, write_columns_header
from millrace.records.decoding import DecodedBatch
from millrace.records.ipc_message import inspect_message
from millrace.records.statistics import seal_columnar

COLUMNAR = [Compression.NONE, Compression.LZ4, Compression.ZSTD]
VALUES = pa.array([b"a", None, b"", b"dddd"], pa.binary())
KEYS = pa.array([None, b"k", b"", b"k"], pa.binary())
DICTIONARY = pa.dictionary(pa.int8(), pa.string())
TYPED = pa.record_batch(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "name": pa.array(["é", None, "", "x" * 50]),
        "flag": pa.array([True, False, None, True]),
        "tags": pa.array([["a"], [], None, ["b", "c"]], pa.list_(pa.string())),
        "when": pa.array([0, 1, None, -1], pa.timestamp("us", "UTC")),
        "point": pa.array([{"x": 1.0, "y": None}, None, {"x": None, "y": 2.0}, {"x": 0.0, "y": 0.0}]),
    }
)


def schemas(_: int) -> pa.Schema:
    return TYPED.schema


def decode(batch: bytes, columns: list[str] | None = None) -> DecodedBatch:
    buffer = pa.py_buffer(batch)
    header = read_header(buffer)
    verify_crc(buffer, 0, header)
    return decode_batch(buffer, 0, header, schemas, columns)


def flags_of(batch: bytes) -> int:
    return int(read_columns_header(batch, 0, read_header(batch)).flags)


@pytest.mark.parametrize("compression", COLUMNAR)
def test_an_opaque_batch_reads_back(compression: Compression) -> None:
    batch = build_columnar_batch(
        pa.record_batch({"key": KEYS, "value": VALUES}), timestamps_ms=7, compression=compression, base_offset=50
    )
    decoded = decode(batch)
    assert decoded.columns.to_pydict() == {"key": KEYS.to_pylist(), "value": VALUES.to_pylist()}
    assert decoded.offsets().to_pylist() == [50, 51, 52, 53]
    assert decoded.timestamps_ms().to_pylist() == [7] * 4
    assert decoded.headers is None
    assert decoded.tombstones is None
    assert (decoded.schema_id, decoded.num_rows) == (0, 4)


@pytest.mark.parametrize("compression", COLUMNAR)
def test_a_typed_batch_reads_back_with_all_that_records_have_beside_their_columns(compression: Compression) -> None:
    headers = headers_array([[("h", b"1"), ("h", None)], [], [("é", b"")], []])
    timestamps = pa.array([9, 5, -1, 7])
    tombstones = pa.array([False, True, False, False])
    batch = build_columnar_batch(
        TYPED,
        schema_id=12,
        timestamps_ms=timestamps,
        headers=headers,
        tombstones=tombstones,
        compression=compression,
        producer_id=4,
        producer_epoch=1,
        base_sequence=8,
        is_transactional=True,
        leader_epoch=3,
    )
    decoded = decode(batch)
    assert decoded.columns.equals(TYPED)
    assert decoded.schema_id == 12
    assert decoded.timestamps_ms().equals(timestamps)
    assert decoded.headers is not None
    assert decoded.headers.equals(headers)
    assert decoded.tombstones is not None
    assert decoded.tombstones.equals(tombstones)
    header = decoded.header
    assert (header.base_timestamp, header.max_timestamp) == (9, 9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 8)
    assert (header.is_transactional, header.partition_leader_epoch, header.compression) == (True, 3, compression)
    assert (header.count, header.last_offset_delta) == (4, 3)


@pytest.mark.parametrize("compression", COLUMNAR)
@pytest.mark.parametrize("names", [["name"], ["point", "id"], ["id", "not there"], []])
def test_a_projection_reads_only_what_is_asked_for(compression: Compression, names: list[str]) -> None:
    batch = build_columnar_batch(TYPED, schema_id=1, timestamps_ms=pa.array([1, 2, 3, 4]), compression=compression)
    decoded = decode(batch, names)
    there = [name for name in TYPED.schema.names if name in names]
    assert decoded.columns.schema.names == there
    assert decoded.columns.to_pydict() == TYPED.select(there).to_pydict()
    assert decoded.num_rows == 4
    assert decoded.timestamps_ms().to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize("compression", COLUMNAR)
@given(data=st.data())
def test_slices_are_written_as_their_rows_only(compression: Compression, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | st.binary(max_size=9), min_size=1, max_size=40))
    flags = data.draw(st.lists(st.none() | st.booleans(), min_size=len(values), max_size=len(values)))
    table = pa.record_batch({"id": pa.array(values, pa.binary()), "flag": pa.array(flags, pa.bool_())})
    start = data.draw(st.integers(0, len(values)))
    piece = table.slice(start, data.draw(st.integers(0, len(values) - start)))
    batch = build_columnar_batch(piece, schema_id=1, compression=compression)
    decoded = decode_batch(pa.py_buffer(batch), 0, read_header(batch), lambda _: table.schema)
    assert decoded.columns.equals(piece)


def test_a_slice_of_a_large_table_is_small() -> None:
    table = pa.record_batch({"value": pa.array([b"x" * 100] * 10_000)})
    assert len(build_columnar_batch(table.slice(5_000, 10))) < 2_000


def test_batches_are_padded_to_64_bytes_and_the_message_begins_at_128() -> None:
    for count in range(1, 30):
        batch = build_columnar_batch(pa.record_batch({"value": pa.array([b"v"] * count)}))
        header = read_header(batch)
        layout = read_columns_header(batch, 0, header)
        assert len(batch) % 64 == 0
        assert layout.message_position == 128
        assert layout.message_position + layout.message_length <= len(batch) == header.size_bytes
        assert batch[128:132] == b"\xff\xff\xff\xff"
        assert not any(batch[layout.message_position + layout.message_length :])


def test_plain_columns_point_into_the_buffer() -> None:
    buffer = pa.py_buffer(build_columnar_batch(pa.record_batch({"value": pa.array([b"abc", b"de"])})))
    column = decode_batch(buffer, 0, read_header(buffer), schemas).columns.column("value")
    for part in column.buffers()[1:]:
        assert buffer.address <= part.address < buffer.address + buffer.size


def test_a_batch_at_an_odd_position_is_copied_to_an_aligned_one() -> None:
    batch = build_columnar_batch(TYPED, schema_id=1)
    for position in (1, 61, 64):
        buffer = pa.py_buffer(bytes(position) + batch)
        decoded = decode_batch(buffer, position, read_header(buffer, position), schemas)
        assert decoded.columns.equals(TYPED)
        assert decoded.columns.column("id").buffers()[1].address % 8 == 0


def test_columns_are_left_out_when_the_header_says_as_much() -> None:
    value = {"value": pa.array([b"v"] * 3)}
    assert flags_of(build_columnar_batch(pa.record_batch(value), timestamps_ms=pa.array([4, 4, 4]))) == 0
    assert flags_of(build_columnar_batch(pa.record_batch(value), offsets=pa.array([0, 1, 2]))) == 0
    nothing = pa.nulls(3, pa.binary())
    assert flags_of(build_columnar_batch(pa.record_batch(value | {"key": nothing}))) == 0
    keyed = build_columnar_batch(pa.record_batch(value | {"key": pa.array([b"k", None, None])}))
    assert flags_of(keyed) == ColumnFlags.KEY
    assert decode(build_columnar_batch(pa.record_batch(value))).columns.column("key").null_count == 3


def test_text_and_timestamps_are_taken_for_what_they_are() -> None:
    when = pa.array([1_500, 2_500], pa.timestamp("us"))
    batch = build_columnar_batch(pa.record_batch({"value": pa.array(["é", None])}), timestamps_ms=when)
    decoded = decode(batch)
    assert decoded.columns.column("value").to_pylist() == ["é".encode(), None]
    assert decoded.timestamps_ms().to_pylist() == [1, 2]


def test_offsets_may_lie_up_to_the_largest_32_bit_integer_after_the_base_offset() -> None:
    offsets = pa.array([7, 8, 9, 7 + 2**31 - 1])
    batch = build_columnar_batch(pa.record_batch({"value": VALUES}), base_offset=7, offsets=offsets)
    assert decode(batch).offsets().equals(offsets)


def test_compaction_leaves_offsets_with_gaps_and_a_delete_horizon() -> None:
    batch = build_columnar_batch(
        pa.record_batch({"value": VALUES}),
        timestamps_ms=pa.array([3, 3, 3, 3]),
        base_offset=100,
        offsets=pa.array([101, 105, 106, 120]),
        last_offset_delta=31,
        delete_horizon_ms=77,
    )
    decoded = decode(batch)
    assert decoded.offsets().to_pylist() == [101, 105, 106, 120]
    assert decoded.timestamps_ms().to_pylist() == [3] * 4
    assert (decoded.header.base_timestamp, decoded.header.last_offset, decoded.header.count) == (77, 131, 4)
    assert decoded.slice(105, 120).offsets().to_pylist() == [105, 106]
    assert decoded.slice(102, 103).num_rows == 0
    assert decoded.slice(105, 120).columns.column("value").to_pylist() == [None, b""]


@pytest.mark.parametrize("timestamps", [3, pa.array([3, 3, 3, 3])], ids=["one", "equal"])
def test_a_delete_horizon_leaves_the_records_their_own_time(timestamps: int | pa.Int64Array) -> None:
    batch = build_columnar_batch(pa.record_batch({"value": VALUES}), timestamps_ms=timestamps, delete_horizon_ms=77)
    assert flags_of(batch) == ColumnFlags.TIMESTAMPS
    assert (read_header(batch).base_timestamp, read_header(batch).max_timestamp) == (77, 3)
    assert decode(batch).timestamps_ms().to_pylist() == [3] * 4


def test_a_stamped_batch_has_one_time_for_all() -> None:
    batch = build_columnar_batch(
        pa.record_batch({"value": VALUES}),
        timestamps_ms=pa.array([4, 9, 1, 2]),
        timestamp_type=TimestampType.LOG_APPEND_TIME,
    )
    assert decode(batch).timestamps_ms().to_pylist() == [9] * 4
    assert decode(batch).constant_timestamp_ms == 9
    assert decode(build_columnar_batch(pa.record_batch({"value": VALUES}), timestamps_ms=7)).constant_timestamp_ms == 7
    own = build_columnar_batch(pa.record_batch({"value": VALUES}), timestamps_ms=pa.array([4, 9, 1, 2]))
    assert decode(own).constant_timestamp_ms is None


def test_no_rows_need_no_timestamps() -> None:
    batch = build_columnar_batch(pa.record_batch({"value": VALUES}).slice(4), timestamps_ms=pa.array([], pa.int64()))
    assert (read_header(batch).base_timestamp, read_header(batch).max_timestamp) == (-1, -1)
    assert decode(batch).num_rows == 0


def test_an_older_version_is_read_with_nulls_for_newer_columns() -> None:
    newer = TYPED.schema.append(pa.field("added", pa.int32()))
    read = decode(build_columnar_batch(TYPED, schema_id=1), ["id", "added"]).read_as(
        pa.schema([newer.field("added"), newer.field("id")])
    )
    assert read.to_pydict() == {"added": [None] * 4, "id": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("columns", "options", "error", "problem"),
    [
        ({"value": VALUES}, {"compression": Compression.GZIP}, UnsupportedCompressionError, "choose none, lz4 or zstd"),
        ({"payload": VALUES}, {}, SchemaMismatchError, "key and value, not payload"),
        ({"value": pa.array([1])}, {}, SchemaMismatchError, "column value .* is binary, not int64"),
        ({"__x": VALUES}, {"schema_id": 1}, SchemaMismatchError, "__x: names that begin with __ are reserved"),
        ({"value": VALUES}, {"timestamps_ms": -2}, InvalidTimestampError, "timestamp -2"),
        ({"value": VALUES}, {"timestamps_ms": pa.array([1, -2, 3, 4])}, InvalidTimestampError, "timestamp -2"),
        ({"value": VALUES}, {"timestamps_ms": pa.array([1, 2])}, InvalidRecordError, "2 timestamps for 4 rows"),
        ({"value": VALUES}, {"timestamps_ms": pa.array([1, 2, None, 4])}, InvalidRecordError, "nulls among"),
        ({"value": VALUES}, {"timestamps_ms": pa.nulls(4, pa.int64())}, InvalidRecordError, "null"),
        ({"value": VALUES}, {"tombstones": pa.array([True])}, InvalidRecordError, "1 tombstones for 4 rows"),
        ({"value": VALUES}, {"offsets": pa.array([0, 2, 2, 3])}, InvalidRecordError, "do not ascend"),
        ({"value": VALUES}, {"offsets": pa.array([0, 1, 2, 2**31])}, InvalidRecordError, "do not ascend"),
        ({"value": VALUES}, {"offsets": pa.array([0, 1, 2, 9]), "base_offset": 5}, InvalidRecordError, "ascend from 5"),
        ({"c": pa.array(["a"]).dictionary_encode()}, {"schema_id": 1}, SchemaError, "cast it to its value type"),
        (
            {"c": pa.array([{"x": 1, "y": "a"}], pa.struct([("x", pa.int8()), ("y", DICTIONARY)]))},
            {"schema_id": 1},
            SchemaError,
            "column c: .* cannot be stored",
        ),
    ],
)
def test_an_invalid_batch_is_not_built(
    columns: dict[str, pa.Array], options: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        build_columnar_batch(pa.record_batch(columns), **options)


@pytest.mark.parametrize(
    ("position", "value", "problem"),
    [
        (61, b"\x02", "body version 2"),
        (62, b"\x20", "unknown column flags"),
        (62, b"\x10", "the key flag is for opaque batches"),
        (63, b"\x01", "unknown column flags"),
        (64, b"\xff\xff\xff\xff", "schema id -1"),
        (68, b"\x00\x00\x00\x40", "message of"),
        (68, b"\x00\x00\x00\x81", "not multiples of 64"),
        (68, b"\x7f\xff\xff\xc0", "message of"),
        (72, b"\x7f\xff\xff\xff", "message of 2147483647 bytes"),
        (72, b"\xff\xff\xff\xff", "message of -1 bytes"),
        (76, b"\x00\x00\x00\x10", "statistics"),
        (57, b"\x00\x00\x00\x05", "the header counts 5"),
        (57, b"\xff\xff\xff\xff", "the header counts -1"),
        (21, b"\x40\x03", "compression is NONE, but the header says 3"),
        (128, b"\x00\x00\x00\x00", "prefix"),
        (132, b"\x7f\xff\xff\xff", "prefix"),
    ],
)
def test_a_wrong_layout_is_corrupt_and_says_where(position: int, value: bytes, problem: str) -> None:
    damaged = bytearray(build_columnar_batch(TYPED, schema_id=1))
    damaged[position : position + len(value)] = value
    with pytest.raises(CorruptBatchError, match=problem):
        decode_batch(pa.py_buffer(bytes(damaged)), 0, read_header(damaged), schemas)


def test_statistics_are_passed_over() -> None:
    batch = bytearray(build_columnar_batch(TYPED, schema_id=1))
    batch[8:12] = (len(batch) + 64 - 12).to_bytes(4, "big")
    batch[76:84] = len(batch).to_bytes(4, "big") + (64).to_bytes(4, "big")
    batch += bytes(64)
    batch[17:21] = checksum(batch[21:]).to_bytes(4, "big")
    assert decode(bytes(batch)).columns.equals(TYPED)


@pytest.mark.parametrize("compression", [Compression.LZ4, Compression.ZSTD])
def test_a_compressed_buffer_may_not_grow_beyond_the_limit(compression: Compression) -> None:
    batch = build_columnar_batch(pa.record_batch({"value": pa.array([bytes(1_000_000)])}), compression=compression)
    with pytest.raises(CorruptBatchError, match="bytes decompressed, but 1000 are allowed"):
        decode_batch(pa.py_buffer(batch), 0, read_header(batch), schemas, max_bytes=1_000)


@pytest.mark.parametrize("compression", COLUMNAR)
def test_a_batch_may_grow_to_just_the_limit(compression: Compression) -> None:
    batch = build_columnar_batch(pa.record_batch({"value": pa.array([bytes(1_000)] * 9)}), compression=compression)
    layout = read_columns_header(batch, 0, read_header(batch))
    message = pa.py_buffer(batch[layout.message_position :][: layout.message_length])
    limit = inspect_message(message).decompressed_bytes
    assert decode_batch(pa.py_buffer(batch), 0, read_header(batch), schemas, max_bytes=limit).num_rows == 9
    with pytest.raises(CorruptBatchError, match="are allowed"):
        decode_batch(pa.py_buffer(batch), 0, read_header(batch), schemas, max_bytes=limit - 1)


def test_a_columns_header_needs_128_bytes_of_the_batch() -> None:
    header = read_header(build_columnar_batch(TYPED, schema_id=1))
    batch = seal(header, write_columns_header(0, 1, 0))
    assert len(batch) == 128
    assert read_columns_header(batch, 0, read_header(batch)).message_length == 0
    with pytest.raises(CorruptBatchError, match="at least 128"):
        read_columns_header(batch, 0, read_header(batch)._replace(batch_length=127 - 12))


def test_reserved_columns_have_no_nulls() -> None:
    good = read_header(build_columnar_batch(TYPED, schema_id=1, timestamps_ms=pa.array([1, 2, 3, 4])))
    schema = typed_body_schema(TYPED.schema, ColumnFlags.TIMESTAMPS)
    columns = pa.RecordBatch.from_arrays([pa.array([1, None, 3, 4]), *TYPED.columns], schema=schema)
    batch = seal_columnar(good, ColumnFlags.TIMESTAMPS, 1, [columns.serialize()])
    with pytest.raises(CorruptBatchError, match="nulls in __timestamp"):
        decode(batch).timestamps_ms()
