"""What a producer's batches must be for their topic; and bringing them to the topic's compression.

The log checks headers, checksums and sequence numbers; this looks into the bodies, which takes the topic's schema.
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
"""Checking a row takes as long as checking and appending so many bytes; columns are checked as a whole."""


def work_bytes_of(topic: TopicInfo, data: bytes) -> int:
    """How much ``prepare_records`` has to look at: the size of the data, more for each row, and where it is compressed.

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
    """Check every batch in ``data`` against its topic; returns what to append: ``data``, or it compressed anew.

    Raises ``MessageTooLargeError``, ``CorruptBatchError``, ``InvalidRecordError`` (also for a body that its checksum
    covers and that cannot be read), ``SchemaMismatchError`` (naming row and column), ``InvalidTimestampError``,
    ``UnsupportedCompressionError``. In a compacted topic every record must have a key. What
    is left of an incomplete batch at the end is kept, for the log to refuse.
    """
    target = _TARGET.get(topic.config.compression_type)
    parts: list[bytes] = []
    kept = 0

    def schema_of(schema_id: int) -> pa.Schema:
        return _schema(topic, schema_id)

    for position, header in codec.scan_headers(data):
        check_size(position, header, topic.config)  # first, as in Kafka: a size that no retry mends
        codec.verify_crc(data, position, header)
        _check_kind(topic, data, position, header)
        try:
            batch = codec.validate_batch(data, position, header, schema_of)
        except CorruptBatchError as error:
            # The checksum is right: the producer built it so, and would send the same again.
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
    """Raise ``InvalidRecordError`` for a record without a key: in a compacted topic nothing could ever replace it."""
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
        raise UnknownSchemaError(f"schema {schema_id} is none of topic {topic.name}'s ({ids}): fetch the metadata anew")
    return schema
