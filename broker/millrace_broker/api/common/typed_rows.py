"""Conversion between rows of Kafka clients and columns of typed topics.

A converted batch carries the header fields of the original: offsets, times, and the producer's id, epoch and sequence.
Both directions take long, and run in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millrace import records as codec
from millrace.errors import InvalidRecordError, SchemaError, UnsupportedForFormatError
from millrace.records import Compression, DecodedBatch, SchemaOf
from millrace_broker.metadata import TopicInfo

if TYPE_CHECKING:
    from millrace.payloads import DecodedRecords, RecordCodec

_SHOWN_MAX: Final = 3
_SAMPLE_ROWS: Final = 64

_STORED: Final = {
    Compression.NONE: Compression.NONE,
    Compression.GZIP: Compression.ZSTD,
    Compression.SNAPPY: Compression.LZ4,
    Compression.LZ4: Compression.LZ4,
    Compression.ZSTD: Compression.ZSTD,
}
"""Compression of columnar batches, which have neither gzip nor snappy."""


def columns_of_rows(
    record_codec: RecordCodec,
    topic: TopicInfo,
    rows: codec.DecodedBatch,
    compression: Compression | None,
    *,
    faults_max: int | None = None,
) -> tuple[pa.RecordBatch, bytes]:
    """Convert a checked batch of rows to columns of the topic's newest schema. Return them, and the columnar batch.

    ``compression`` is that of the result; None keeps the producer's, or takes the nearest that columnar batches have.

    Raises ``InvalidRecordError`` with the faults of the records that do not fit. After ``faults_max`` or some more of
    them, the others are not looked for.
    """
    header = rows.header
    decoded = record_codec.decode(rows.columns.column("key"), rows.columns.column("value"), faults_max=faults_max)
    if decoded.faults:
        raise _refusal(topic.name, rows.num_rows, decoded)
    constant_ms = rows.constant_timestamp_ms
    batch = codec.build_columnar_batch(
        decoded.columns,
        schema_id=topic.schema_id,
        timestamps_ms=rows.timestamps_ms() if constant_ms is None else constant_ms,
        headers=rows.headers,
        tombstones=decoded.tombstones,
        last_offset_delta=header.last_offset_delta,
        compression=_STORED[Compression.of(header.compression)] if compression is None else compression,
        **codec.carried_over(header),
    )
    return decoded.columns, batch


def rows_of_columns(
    record_codec: RecordCodec, schema_of: SchemaOf, batch: memoryview, first_offset: int = 0
) -> Iterator[bytes]:
    """Convert a columnar batch of a typed topic to batches of rows, as ``split_rows`` does.

    The rows have the columns in which all rows of the topic are read. Raises ``UnsupportedForFormatError`` for values
    that the payload schema of the topic cannot hold.
    """
    header = codec.read_header(batch)
    decoded = codec.decode_batch(pa.py_buffer(batch), 0, header, schema_of)

    def encoded(columns: pa.RecordBatch, tombstones: pa.BooleanArray | None) -> pa.RecordBatch:
        try:
            keys, values = record_codec.encode(columns, tombstones)
        except SchemaError as error:
            raise UnsupportedForFormatError(
                f"the batch with base offset {header.base_offset} cannot be written for Kafka clients: {error.message}"
            ) from error
        return pa.RecordBatch.from_arrays([keys, values], schema=codec.OPAQUE_SCHEMA)

    def columns_of(part: DecodedBatch) -> pa.RecordBatch:
        return encoded(part.read_as(record_codec.read_schema), part.tombstones)

    size_bytes = decoded.columns.nbytes
    if decoded.num_rows > _SAMPLE_ROWS:
        size_bytes = max(size_bytes, _encoded_bytes(decoded, record_codec.read_schema, encoded))
    size_bytes += decoded.headers.nbytes if decoded.headers is not None else 0
    yield from codec.split_rows(decoded, columns_of, size_bytes=size_bytes, first_offset=first_offset)


def _encoded_bytes(
    batch: DecodedBatch,
    schema: pa.Schema,
    encoded: Callable[[pa.RecordBatch, pa.BooleanArray | None], pa.RecordBatch],
) -> int:
    """Return about how many bytes the keys and values of a batch have, from a sample of records all over it.

    The sample tells how much larger they are than the columns. The number of bytes in a record would be a worse guess,
    because a few large records can have most of a batch's bytes.
    """
    rows = pa.array([row * batch.num_rows // _SAMPLE_ROWS for row in range(_SAMPLE_ROWS)], pa.int64())
    tombstones = batch.tombstones
    sample = encoded(batch.read_as(schema).take(rows), None if tombstones is None else tombstones.take(rows))
    size_bytes: int = batch.columns.nbytes * sample.nbytes // max(batch.columns.take(rows).nbytes, 1)
    return size_bytes


def _refusal(topic_name: str, count: int, decoded: DecodedRecords) -> InvalidRecordError:
    faults = decoded.faults
    shown = "; ".join(f"record {row}: {text}" for row, text in islice(faults.items(), _SHOWN_MAX))
    more = "" if len(faults) <= _SHOWN_MAX else "; ..."
    bad = f"{len(faults)}" if decoded.is_complete else f"at least {len(faults)}"
    return InvalidRecordError(
        f"{bad} of the {count} records of a batch do not fit topic {topic_name}, and nothing of the batch was appended "
        f"({shown}{more})",
        record_errors=faults,
    )
