"""Checks of produced batches against their topic, and recompression.

The log checks headers, checksums and sequence numbers. This module also checks the bodies, which needs the topic's
schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace import records as codec
from millrace.config.topic import CompressionType
from millrace.errors import CorruptBatchError, InvalidRecordError, SchemaMismatchError, UnknownSchemaError
from millrace.records import BatchHeader, Compression
from millrace_broker.log.validation import check_size
from millrace_broker.metadata import TopicInfo
from millrace_broker.runtime.small_work import SMALL_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

_TARGET: Final = {
    CompressionType.UNCOMPRESSED: Compression.NONE,
    CompressionType.GZIP: Compression.GZIP,
    CompressionType.SNAPPY: Compression.SNAPPY,
    CompressionType.LZ4: Compression.LZ4,
    CompressionType.ZSTD: Compression.ZSTD,
}

_ROW_WORK_BYTES: Final = 1024
"""Cost of checking one row, as the number of bytes whose append takes as long. Columns are checked as a whole."""


def work_bytes_of(topic: TopicInfo, data: bytes) -> int:
    """Return the work of ``prepare_records`` in bytes: the data's size, plus a cost for each row and compressed batch.

    Raises ``CorruptBatchError``.
    """
    if len(data) > SMALL_BYTES:
        return len(data)
    target = _TARGET.get(topic.config.compression_type, Compression.NONE)
    work_bytes = len(data)
    for _, header in codec.scan_headers(data):
        is_plain = header.compression == target == Compression.NONE
        if not is_plain:
            work_bytes += SMALL_BYTES
        elif not header.is_columnar:
            work_bytes += header.count * _ROW_WORK_BYTES
    return work_bytes


def prepare_records(topic: TopicInfo, data: bytes) -> bytes:
    """Check every batch in ``data`` against its topic. Return the bytes to append: ``data``, recompressed if necessary.

    Raises ``MessageTooLargeError``, ``CorruptBatchError``, ``InvalidRecordError`` (also for an unreadable body with a
    correct checksum), ``SchemaMismatchError`` (naming row and column), ``InvalidTimestampError``,
    ``UnsupportedCompressionError``. In a compacted topic every record must have a key. An incomplete batch at the end
    is kept, because the log refuses it.
    """
    target = _TARGET.get(topic.config.compression_type)
    parts: list[bytes] = []
    kept = 0

    def schema_of(schema_id: int) -> pa.Schema:
        return _schema(topic, schema_id)

    for position, header in codec.scan_headers(data):
        check_size(position, header, topic.config)  # check first, as in Kafka: no retry can fix the size
        codec.verify_crc(data, position, header)
        _check_kind(topic, data, position, header)
        try:
            batch = codec.validate_batch(data, position, header, schema_of)
        except CorruptBatchError as error:
            # The checksum is correct, so the producer built the batch this way. A retry would send the same bytes.
            raise InvalidRecordError(error.message) from error
        if topic.config.is_compacted:
            _check_keys(topic, batch)
        if target is not None and header.compression != target:
            parts += [data[kept:position], codec.recompress_batch(data, position, header, schema_of, target)]
            kept = position + header.size_bytes
    return b"".join([*parts, data[kept:]]) if parts else data


def _check_kind(topic: TopicInfo, data: bytes, position: int, header: BatchHeader) -> None:
    if header.is_columnar:
        schema_id = codec.read_columns_header(data, position, header).schema_id
        if topic.is_typed and schema_id == codec.OPAQUE_SCHEMA_ID:
            raise SchemaMismatchError(f"topic {topic.name} is typed: its batches hold its columns, not key and value")
        if not topic.is_typed and schema_id != codec.OPAQUE_SCHEMA_ID:
            raise SchemaMismatchError(f"topic {topic.name} is opaque: it takes no batch of schema {schema_id}")
    elif topic.is_typed:
        raise SchemaMismatchError(f"topic {topic.name} is typed: it takes columnar batches, not rows")


def _check_keys(topic: TopicInfo, batch: codec.DecodedBatch) -> None:
    """Raise ``InvalidRecordError`` for a record without a key, because compaction could never replace it."""
    names = topic.key_columns if topic.is_typed else ("key",)
    columns = [batch.columns.column(name) for name in names]
    if any(not column.null_count for column in columns):
        return
    for row in range(batch.num_rows):
        if not any(column[row].is_valid for column in columns):
            raise InvalidRecordError(
                f"row {row} of a batch for {topic.name} has no key ({', '.join(names)} is null), and the topic is "
                "compacted (cleanup.policy): give every record a key"
            )


def _schema(topic: TopicInfo, schema_id: int) -> pa.Schema:
    schema = topic.schema_of(schema_id)
    if schema is None:
        ids = ", ".join(str(version.id) for version in topic.schemas)
        raise UnknownSchemaError(f"topic {topic.name} has schemas {ids}, not schema {schema_id}: refresh the metadata")
    return schema
