"""Checks of produced batches against their topic, and recompression.

``ProducedBatches`` checks headers and checksums, once. This module checks the bodies, which needs the topic's schema.
The log checks sequence numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow.compute as pc

from millrace import records as codec
from millrace.config.topic import CompressionType, MessageTimestampType, TopicConfig
from millrace.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    SchemaMismatchError,
    UnknownSchemaError,
)
from millrace.records import BatchHeader, Compression
from millrace_broker.log import ProducedBatches
from millrace_broker.metadata import RecordCodecs, TopicInfo
from millrace_broker.runtime import Executors
from millrace_broker.runtime.small_work import SMALL_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

_logger: Final = logging.getLogger(__name__)

_TARGET: Final = {
    CompressionType.UNCOMPRESSED: Compression.NONE,
    CompressionType.GZIP: Compression.GZIP,
    CompressionType.SNAPPY: Compression.SNAPPY,
    CompressionType.LZ4: Compression.LZ4,
    CompressionType.ZSTD: Compression.ZSTD,
}

Times: TypeAlias = tuple[int, int]
"""The smallest and the largest timestamp of a batch, in ms."""

_TIME_MAX_MS: Final = 2**63 - 1
_ROW_WORK_BYTES: Final = 1024
"""Cost of checking one row, as the number of bytes whose append takes as long. Columns are checked as a whole."""
_USUAL_ROW_WORK_BYTES: Final = 64
"""The same for a row of a usual batch."""

_FAST_COMPRESSIONS: Final = frozenset({Compression.NONE, Compression.LZ4, Compression.SNAPPY, Compression.ZSTD})
"""Compressions whose small bodies are decompressed in the event loop."""

_DECOMPRESSED_BYTES_MAX: Final = 256 * 2**20
"""Largest size to which a batch of rows may be decompressed. Kafka has no such limit."""
_LARGE_BYTES: Final = 16 * 2**20
"""Decompressed size above which a batch of rows is checked in a thread for decoding.

There are few such threads. So the memory for large batches is bounded, and reads do not wait for them.
"""

RECORD_ERRORS_MAX: Final = 10_000
"""Largest number of bad records that the response to a producer names."""


class _LargeBodyError(Exception):
    """A batch of rows has more than ``_LARGE_BYTES`` decompressed."""


async def check_records(
    executors: Executors,
    codecs: RecordCodecs,
    topic: TopicInfo,
    data: bytes | memoryview,
    now_ms: int,
    *,
    in_transaction: bool,
) -> ProducedBatches:
    """Check every batch in ``data`` against its topic. Return the batches to append, recompressed if necessary.

    Small work runs in the event loop, other work in an I/O thread. Rows of Kafka clients for a typed topic become
    columns, always in a thread for decoding. Batches that are large after decompression are checked in such a thread.

    Raises the errors of ``ProducedBatches``, ``UnknownSchemaError``, ``InvalidTimestampError`` and
    ``UnsupportedForFormatError``. ``SchemaMismatchError`` names row and column. ``InvalidRecordError`` is also raised
    for an unreadable body with a correct checksum. For rows that do not fit a typed topic, that error names each. In a
    compacted topic every record must have a key.
    """
    check = partial(ProducedBatches, data, topic.config, in_transaction=in_transaction)
    try:
        return await _checked_in_a_fitting_thread(executors, codecs, topic, data, now_ms, check)
    except _LargeBodyError:
        _logger.info(
            "a batch of %d bytes for %s has more than %d bytes decompressed: it waits for a thread for decoding",
            len(data),
            topic.name,
            _LARGE_BYTES,
        )
        return await executors.run_decoding(lambda: check_bodies(codecs, topic, check(), now_ms, may_be_large=True))


async def _checked_in_a_fitting_thread(
    executors: Executors,
    codecs: RecordCodecs,
    topic: TopicInfo,
    data: bytes | memoryview,
    now_ms: int,
    check: Callable[[], ProducedBatches],
) -> ProducedBatches:
    """Check every batch as ``check_records`` does, in a fitting thread. Raises ``_LargeBodyError`` too."""
    small_work = executors.small_work
    if small_work.includes(len(data)):
        batches = small_work.do(check)
    elif topic.is_typed:
        batches = await executors.run_io(check)
    else:
        return await executors.run_io(lambda: check_bodies(codecs, topic, check(), now_ms))
    if topic.is_typed and not all(header.is_columnar for _, header in batches.headers):
        return await executors.run_decoding(check_bodies, codecs, topic, batches, now_ms, may_be_large=True)
    are_rows = not any(header.is_columnar for _, header in batches.headers)
    if (
        are_rows
        and small_work.includes(_usual_work_bytes(batches))
        and small_work.do(_are_small_and_usual, topic, batches, now_ms)
    ):
        return batches
    return await executors.run_sized(_work_bytes(topic, batches), check_bodies, codecs, topic, batches, now_ms)


def _usual_work_bytes(produced: ProducedBatches) -> int:
    """Return the work of ``_are_small_and_usual`` in bytes, with a cost for each row."""
    return len(produced.data) + _USUAL_ROW_WORK_BYTES * sum(header.count for _, header in produced.headers)


def _are_small_and_usual(topic: TopicInfo, produced: ProducedBatches, now_ms: int) -> bool:
    """Tell whether the batches are usual ones of a Kafka producer, and small after decompression too."""
    return all(
        header.compression in _FAST_COMPRESSIONS
        and _is_usual(topic, produced.data, position, header, now_ms, SMALL_BYTES)
        for position, header in produced.headers
    )


def _is_usual(
    topic: TopicInfo, data: bytes | memoryview, position: int, header: BatchHeader, now_ms: int, max_bytes: int
) -> bool:
    """Tell whether a batch is stored as it is, by the cheaper check. If not, the complete check decides."""
    target, is_compacted = _TARGET.get(topic.config.compression_type, header.compression), topic.config.is_compacted
    if topic.is_typed or target != header.compression or (header.is_columnar and is_compacted):
        return False
    if header.is_columnar:
        times_ms = codec.usual_column_times(data, position, header)
    else:
        times_ms = codec.usual_times(data, position, header, max_bytes=max_bytes, need_keys=is_compacted)
    return times_ms is not None and _are_near(times_ms, now_ms, topic.config)


def _work_bytes(topic: TopicInfo, produced: ProducedBatches) -> int:
    """Return the work of ``check_bodies`` in bytes: the data's size, plus a cost for each row and compressed batch."""
    target = _TARGET.get(topic.config.compression_type, Compression.NONE)
    work_bytes = len(produced.data)
    for _, header in produced.headers:
        is_plain = header.compression == target == Compression.NONE
        if not is_plain:
            work_bytes += SMALL_BYTES
        elif not header.is_columnar:
            work_bytes += header.count * _ROW_WORK_BYTES
    return work_bytes


def check_bodies(
    codecs: RecordCodecs, topic: TopicInfo, produced: ProducedBatches, now_ms: int, *, may_be_large: bool = False
) -> ProducedBatches:
    """Check the bodies of batches, as ``check_records`` does. A recompressed or converted batch is checked again.

    Raises ``_LargeBodyError`` for compressed rows above ``_LARGE_BYTES``, unless ``may_be_large``.

    As in Kafka, a batch of rows gets its records' largest timestamp, whatever its header says. librdkafka writes
    another one for records without a time.
    """
    data, target = produced.data, _TARGET.get(topic.config.compression_type)
    parts: list[bytes | memoryview] = []
    kept = 0

    def schema_of(schema_id: int) -> pa.Schema:
        return schema_of_topic(topic, schema_id)

    for position, header in produced.headers:
        is_limited = not may_be_large and bool(header.compression) and not header.is_columnar
        if _is_usual(topic, data, position, header, now_ms, _LARGE_BYTES if is_limited else _DECOMPRESSED_BYTES_MAX):
            continue
        if is_limited and codec.is_larger(data, position, header, _LARGE_BYTES):
            raise _LargeBodyError
        is_converted = topic.is_typed and not header.is_columnar
        max_bytes = codec.DECOMPRESSED_BYTES_MAX if header.is_columnar else _DECOMPRESSED_BYTES_MAX
        try:
            _check_kind(topic, data, position, header)
            batch = codec.validate_batch(
                data, position, header, schema_of, max_bytes=max_bytes, with_any_max_timestamp=not header.is_columnar
            )
        except CorruptBatchError as error:
            # The checksum is correct, so the producer built the batch this way. A retry would send the same bytes.
            raise InvalidRecordError(error.message) from error
        times_ms = batch.time_range_ms()
        if not _are_near(times_ms, now_ms, topic.config):
            _check_times(topic, batch.timestamps_ms(), now_ms)
        if times_ms[1] != header.max_timestamp:
            data = _with_max_timestamp(data, position, times_ms[1])
            header = codec.read_header(data, position)
        if is_converted:
            parts += [data[kept:position], _converted(codecs, topic, batch, target)]
            kept = position + header.size_bytes
            continue
        if topic.config.is_compacted:
            _check_keys(topic, batch.columns)
        if target is not None and header.compression != target:
            level = topic.config.compression_level
            recompressed = codec.recompress_batch(data, position, header, schema_of, target, level=level)
            parts += [data[kept:position], recompressed]
            kept = position + header.size_bytes
    if data is produced.data and not parts:
        return produced
    is_transactional = produced.headers[0][1].is_transactional
    return ProducedBatches(b"".join([*parts, data[kept:]]), topic.config, in_transaction=is_transactional)


def _with_max_timestamp(data: bytes | memoryview, position: int, timestamp_ms: int) -> bytes:
    corrected = bytearray(data)
    codec.set_max_timestamp(corrected, position, timestamp_ms)
    return bytes(corrected)


def _times_accepted(now_ms: int, config: TopicConfig) -> Times:
    """Return the smallest and the largest time that the topic accepts."""
    if config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME:
        return 0, _TIME_MAX_MS
    before_ms, after_ms = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    return max(now_ms - before_ms, 0), min(now_ms + after_ms, _TIME_MAX_MS)


def _are_near(times_ms: Times, now_ms: int, config: TopicConfig) -> bool:
    """Tell whether a batch has times that its topic accepts, from the smallest and the largest one.

    Returns False for a batch with a record that has no time, if the topic has a limit on the past. Each record of such
    a batch has to be checked.
    """
    first_ms, last_ms = _times_accepted(now_ms, config)
    return (times_ms[0] >= first_ms or first_ms == 0) and times_ms[1] <= last_ms


def _check_times(topic: TopicInfo, times_ms: pa.Array, now_ms: int) -> None:
    """Raise ``InvalidTimestampError`` if a record's time is too far from the broker's; it names each such record."""
    first_ms, last_ms = _times_accepted(now_ms, topic.config)
    is_old = pc.and_(pc.less(times_ms, first_ms), pc.greater_equal(times_ms, 0))
    far = pc.indices_nonzero(pc.or_(is_old, pc.greater(times_ms, last_ms))).to_pylist()
    if far:
        before_ms, after_ms = topic.config.message_timestamp_before_max_ms, topic.config.message_timestamp_after_max_ms
        raise InvalidTimestampError(
            f"row {far[0]} of a batch for {topic.name} has the time {times_ms[far[0]]}, and the broker's time is "
            f"{now_ms}: send records of at most message.timestamp.before.max.ms={before_ms} before it and "
            f"message.timestamp.after.max.ms={after_ms} after it",
            record_errors=dict.fromkeys(far, f"the topic takes records with times from {first_ms} to {last_ms}"),
        )


def _check_kind(topic: TopicInfo, data: bytes | memoryview, position: int, header: BatchHeader) -> None:
    """Check that columns for a typed topic have a schema. ``schema_of_topic`` checks those for other topics."""
    if not (topic.is_typed and header.is_columnar):
        return
    if codec.read_columns_header(data, position, header).schema_id == codec.OPAQUE_SCHEMA_ID:
        raise SchemaMismatchError(f"topic {topic.name} is typed: its batches hold its columns, not key and value")


def _converted(codecs: RecordCodecs, topic: TopicInfo, rows: codec.DecodedBatch, target: Compression | None) -> bytes:
    """Return rows of a Kafka client as a columnar batch with the topic's newest schema."""
    from millrace_broker.api.common.typed_rows import columns_of_rows

    columns, converted = columns_of_rows(codecs.of(topic), topic, rows, target, faults_max=RECORD_ERRORS_MAX)
    if topic.config.is_compacted:
        _check_keys(topic, columns)
    return converted


def _check_keys(topic: TopicInfo, batch: pa.RecordBatch) -> None:
    """Raise ``InvalidRecordError`` for a record without a key, because compaction could never replace it."""
    names = topic.key_columns if topic.is_typed else ("key",)
    columns = [batch.column(name) for name in names]
    if any(not column.null_count for column in columns):
        return
    without = [row for row in range(batch.num_rows) if not any(column[row].is_valid for column in columns)]
    if without:
        raise InvalidRecordError(
            f"row {without[0]} of a batch for {topic.name} has no key ({', '.join(names)} is null), and the topic is "
            "compacted (cleanup.policy): give every record a key",
            record_errors=dict.fromkeys(without, "the record has no key, and the topic is compacted"),
        )


def schema_of_topic(topic: TopicInfo, schema_id: int) -> pa.Schema:
    """Return a version of the topic's schema. Raises ``UnknownSchemaError``, ``SchemaMismatchError``."""
    if not topic.is_typed:
        raise SchemaMismatchError(f"topic {topic.name} is opaque: it takes no batch of schema {schema_id}")
    schema = topic.schema_of(schema_id)
    if schema is None:
        ids = ", ".join(str(version.id) for version in topic.schemas)
        raise UnknownSchemaError(f"topic {topic.name} has schemas {ids}, not schema {schema_id}: refresh the metadata")
    return schema
