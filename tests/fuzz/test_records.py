"""Fuzz tests of the decoders of records, batches and messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from millrace.errors import MillraceError, UnknownSchemaError
from millrace.protocol import millrace_pb2 as pb
from millrace.protocol.produce_request import read_produce_request
from millrace.records import (
    ColumnFlags,
    Compression,
    ControlType,
    EndTransactionMarker,
    Record,
    RecordFormat,
    build_columnar_batch,
    build_end_marker_batch,
    build_entries,
    build_rows_batch,
    compress,
    convert,
    decode_range,
    decompress,
    headers_array,
    read_columns_header,
    read_control_type,
    read_end_marker,
    read_entries,
    read_header,
    read_rows,
    recompress_batch,
    scan_headers,
    seal,
    usual_column_times,
    validate_batch,
)
from millrace.records.ipc_message import inspect_message
from millrace.records.row_columns import RowColumns, read_one_by_one, rows_to_columns
from millrace.records.rows import body_of

from .mutation import BYTES_MAX, Decoder, decoder_name, fuzz, mutated

# --- the seeds of the cases -----------------------------------------------------------------------------------

SMALL = [
    Record(key=b"k", value=b"v" * 70, timestamp_ms=5, offset=3),
    Record(headers=(("h", b"x"), ("é", None)), timestamp_ms=-1, offset=9),
]
MANY = [
    Record(key=None if row % 3 else b"key", value=bytes(row), headers=(("h", b""),) * (row % 4), timestamp_ms=row * row)
    for row in range(70)
]
TYPED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.struct([pa.field("x", pa.float64()), pa.field("y", pa.bool_())])),
    ]
)
TABLE = pa.record_batch(
    [
        pa.array(range(20)),
        pa.array([None if row % 5 == 0 else "n" * row for row in range(20)]),
        pa.array([["t"] * (row % 3) for row in range(20)]),
        pa.array([{"x": row / 2, "y": row % 2 == 0} for row in range(20)], TYPED.field("at").type),
    ],
    schema=TYPED,
)
OPAQUE = pa.record_batch({"key": pa.array([b"a", None, b"c"]), "value": pa.array([b"1" * 30, b"", None])})
MARKER = EndTransactionMarker(type=ControlType.COMMIT, coordinator_epoch=3)
ROWS = [build_rows_batch(each, compression=codec) for each in (SMALL, MANY) for codec in Compression]
CONTROL = [build_end_marker_batch(MARKER, base_offset=0, timestamp_ms=1, producer_id=1, producer_epoch=0)]
COLUMNAR = [
    batch
    for codec in (Compression.NONE, Compression.LZ4, Compression.ZSTD)
    for batch in (
        build_columnar_batch(TABLE, schema_id=1, compression=codec, timestamps_ms=pa.array(range(20))),
        build_columnar_batch(TABLE, schema_id=1, compression=codec, tombstones=pa.array([False] * 20)),
        build_columnar_batch(
            OPAQUE,
            compression=codec,
            offsets=pa.array([2, 5, 9]),
            headers=headers_array([(), (("h", b"x"),), (("i", None), ("i", b""))]),
        ),
    )
]
LEGACY = [
    build_entries([replace(record, headers=()) for record in SMALL], magic=magic, compression=codec)
    for magic in (0, 1)
    for codec in (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
]
LOGS = [*ROWS, *CONTROL, *COLUMNAR, *LEGACY, LEGACY[1] + ROWS[0] + COLUMNAR[0], COLUMNAR[0] + ROWS[3] + COLUMNAR[4]]
STREAMS = [compress(bytes(range(256)) * 40, codec) for codec in Compression] * 2
MESSAGES = [batch[128:] for batch in COLUMNAR]
PLAIN = [
    build_columnar_batch(columns, timestamps_ms=5)
    for columns in (
        pa.record_batch({"value": pa.array([b"v" * 9])}),
        pa.record_batch({"key": pa.array([b"a", b"", b"c"]), "value": pa.array([b"1" * 30, b"", b"2"])}),
    )
]
PRODUCE = [
    pb.ProduceRequest(
        acks=-1,
        topics=[
            pb.ProduceRequest.TopicData(
                name=name, partitions=[pb.ProduceRequest.PartitionData(partition=3, records=bytes(20_000))]
            )
            for name in names
        ],
    ).SerializeToString()
    for names in (["t"], ["t", "another"])
]


def schema_of(schema_id: int) -> pa.Schema:
    if schema_id != 1:
        raise UnknownSchemaError(f"schema id {schema_id}")
    return TYPED


def resealed(data: bytearray) -> bytes | None:
    """Make one complete batch with valid length and checksum of the bytes, so that its body is read."""
    if len(data) < 61:
        return None
    data[16] = 2
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    return seal(read_header(data), bytes(data[61:]))


# --- the decoders -------------------------------------------------------------------------------------------


def decode_headers(random: Random) -> None:
    for position, header in scan_headers(mutated(random, LOGS)):
        assert position + header.size_bytes > position


def decode_rows(random: Random) -> None:
    """Check that the fast and the slow reader agree on every batch."""
    if (batch := resealed(mutated(random, ROWS))) is None:
        return
    header = read_header(batch)
    body, damage = body_of(batch, 0, header, BYTES_MAX)
    expected = outcome(lambda: read_one_by_one(body, damage, header, ("key", "value")))
    found = outcome(lambda: rows_to_columns(batch, 0, header, max_bytes=BYTES_MAX))
    if isinstance(expected, MillraceError):
        assert repr(found) == repr(expected)
        raise expected
    assert found == expected
    assert len(list(read_rows(batch, 0, header, max_bytes=BYTES_MAX))) == header.count


def outcome(read: Callable[[], RowColumns]) -> RowColumns | MillraceError:
    try:
        return read()
    except MillraceError as error:
        return error


def decode_columnar(random: Random) -> None:
    """Check that every value of a validated batch can be read."""
    if (batch := resealed(mutated(random, COLUMNAR))) is None:
        return
    header = read_header(batch)
    decoded = validate_batch(batch, 0, header, schema_of, max_bytes=BYTES_MAX)
    assert decoded.num_rows == header.count
    if header.is_columnar and read_columns_header(batch, 0, header).flags & ColumnFlags.HEADERS:
        assert decoded.headers is not None
    decoded.columns.to_pylist()
    recompress_batch(batch, 0, header, schema_of, Compression.ZSTD, max_bytes=BYTES_MAX)


def decode_usual_columns(random: Random) -> None:
    """Check that the complete check accepts what the quick one accepts."""
    if (batch := resealed(mutated(random, PLAIN))) is None:
        return
    header = read_header(batch)
    times_ms = usual_column_times(batch, 0, header)
    try:
        decoded = validate_batch(batch, 0, header, schema_of, max_bytes=BYTES_MAX)
    except MillraceError:
        assert times_ms is None
        raise
    assert times_ms is None or decoded.time_range_ms() == times_ms


def decode_produce_requests(random: Random) -> None:
    read_produce_request(memoryview(mutated(random, PRODUCE)))


def decode_some_columns(random: Random) -> None:
    """Read some columns of unvalidated batches without their values."""
    if (batch := resealed(mutated(random, COLUMNAR + ROWS))) is None:
        return
    for decoded in decode_range(pa.py_buffer(batch), 0, 2**63, schema_of, ["name", "key"], max_bytes=BYTES_MAX):
        decoded.offsets()
        decoded.timestamps_ms()


def decode_entries(random: Random) -> None:
    data = bytes(mutated(random, LOGS))
    for entry in read_entries(data):
        assert isinstance(entry.crc_is_valid, bool)
        list(entry.records(max_bytes=BYTES_MAX))


def decode_messages(random: Random) -> None:
    """Read legacy messages, whose checksum their readers do not verify."""
    for entry in read_entries(bytes(mutated(random, LEGACY))):
        list(entry.records(max_bytes=BYTES_MAX))


def decode_streams(random: Random) -> None:
    data = bytes(mutated(random, STREAMS))
    codec, magic = random.choice(list(Compression)), random.choice([0, 2])
    assert len(decompress(data, codec, max_bytes=BYTES_MAX, magic=magic)) <= BYTES_MAX


def decode_message_metadata(random: Random) -> None:
    summary = inspect_message(pa.py_buffer(bytes(mutated(random, MESSAGES))))
    assert summary.decompressed_bytes >= 0


def decode_control(random: Random) -> None:
    data = bytes(mutated(random, [b"\0\0\0\1", b"\0\0\0\0\0\3"]))
    read_control_type(data)
    read_end_marker(Record(key=b"\0\0\0\1", value=data))


def decode_to_convert(random: Random) -> None:
    data = mutated(random, LOGS)
    log = resealed(data) if random.random() < 0.7 else bytes(data)
    target = random.choice(list(RecordFormat))
    options = {"compression": random.choice([None, Compression.LZ4]), "allow_loss": random.random() < 0.5}
    for piece in convert(log or b"", target, schema_of=schema_of, max_bytes=BYTES_MAX, **options):  # type: ignore[arg-type]
        for entry in read_entries(piece):
            entry.check()


DECODERS: list[Decoder] = [
    decode_headers,
    decode_rows,
    decode_columnar,
    decode_usual_columns,
    decode_produce_requests,
    decode_some_columns,
    decode_entries,
    decode_messages,
    decode_streams,
    decode_message_metadata,
    decode_control,
    decode_to_convert,
]


@pytest.mark.parametrize("decode", DECODERS, ids=decoder_name)
def test_any_bytes_give_an_answer_or_an_error_of_ours(decode: Decoder) -> None:
    fuzz(decode)
