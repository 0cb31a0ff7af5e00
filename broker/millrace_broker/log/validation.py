"""The checks of a producer's batches that need no state (Kafka's ``LogValidator``).

Only headers and checksums are checked here. ``millrace.records.validate_batch`` checks bodies against the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millrace.config.topic import MessageTimestampType, TopicConfig
from millrace.errors import (
    InvalidRecordError,
    InvalidRequestError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordListTooLargeError,
    UnsupportedCompressionError,
)
from millrace.records import (
    NO_PRODUCER_ID,
    BatchHeader,
    Compression,
    TimestampType,
    scan_headers,
    verify_crc,
)
from millrace_broker.log.record_timestamps import record_times

_KNOWN_ATTRIBUTES: Final = 0x003F
_UNLIMITED_MS: Final = 2**63 - 1
_COMPRESSIONS: Final = frozenset(Compression)
_COLUMNAR_COMPRESSIONS: Final = (Compression.NONE, Compression.LZ4, Compression.ZSTD)


def check_produced(
    records: bytes | bytearray, config: TopicConfig, *, allows_transactions: bool = False
) -> list[tuple[int, BatchHeader]]:
    """Check the batches of a producer and return the position and header of each.

    Bytes after the last complete batch are refused, while Kafka ignores them. Several batches may come at once here,
    and one acknowledgement covers all of them.

    Raises ``InvalidRequestError``, ``CorruptBatchError``, ``MessageTooLargeError``, ``RecordListTooLargeError``,
    ``InvalidRecordError``, ``UnsupportedCompressionError`` or ``InvalidTimestampError``.
    """
    if not records:
        raise InvalidRecordError("nothing to append: send at least one record batch")
    if len(records) > config.segment_bytes:
        raise RecordListTooLargeError(
            f"{len(records)} bytes of batches do not fit into a segment of {config.segment_bytes} bytes "
            "(segment.bytes): send fewer at once"
        )
    batches = list(scan_headers(records))
    for position, header in batches:
        check_size(position, header, config)
        verify_crc(records, position, header)  # first the CRC, because damage must not look like misuse
        _check_header(position, header, config)
        if header.is_transactional and not allows_transactions:
            raise InvalidRequestError(
                f"batch at position {position} is transactional, and its request names no transactional id"
            )
    end = batches[-1][0] + batches[-1][1].size_bytes if batches else 0
    if end != len(records):
        raise InvalidRecordError(f"{len(records) - end} bytes at position {end} are no complete record batch")
    if len(batches) > 1 and any(header.producer_id != NO_PRODUCER_ID for _, header in batches):
        raise InvalidRecordError(f"{len(batches)} batches at once: a batch of an idempotent producer comes alone")
    return batches


def check_size(position: int, header: BatchHeader, config: TopicConfig) -> None:
    """Refuse a batch that exceeds the topic's maximum size. Raises ``MessageTooLargeError``."""
    if header.size_bytes > config.max_message_bytes:
        raise MessageTooLargeError(
            f"batch at position {position} has {header.size_bytes} bytes, the topic takes {config.max_message_bytes} "
            "(max.message.bytes): send smaller batches or raise the limit"
        )


def _check_header(position: int, header: BatchHeader, config: TopicConfig) -> None:
    batch = f"batch at position {position}"
    if header.base_offset != 0:
        raise InvalidRecordError(f"{batch} has base offset {header.base_offset}: the log assigns it, producers send 0")
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise InvalidRecordError(
            f"{batch} counts {header.count} records and offsets 0..{header.last_offset_delta}: "
            "there must be one offset for each record, and at least one"
        )
    if header.is_control:
        raise InvalidRecordError(f"{batch} is a control batch: clients may not write those")
    if header.has_delete_horizon or (header.attributes & ~_KNOWN_ATTRIBUTES and not header.is_columnar):
        raise InvalidRecordError(f"{batch} has attributes {header.attributes:#06x}, which producers do not set")
    if header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0:
        raise InvalidRecordError(f"{batch} of producer {header.producer_id} has no sequence number")
    _check_compression(batch, header)
    if (
        header.timestamp_type is TimestampType.LOG_APPEND_TIME
        and config.message_timestamp_type is MessageTimestampType.CREATE_TIME
    ):
        raise InvalidTimestampError(f"{batch} claims the log's append time: producers send the time of creation")


def _check_compression(batch: str, header: BatchHeader) -> None:
    known = header.compression in _COMPRESSIONS
    if not known or (header.is_columnar and header.compression not in _COLUMNAR_COMPRESSIONS):
        name = Compression(header.compression).name.lower() if known else str(header.compression)
        accepted = ", ".join(c.name.lower() for c in (_COLUMNAR_COMPRESSIONS if header.is_columnar else Compression))
        kind = "columnar" if header.is_columnar else "rows"
        raise UnsupportedCompressionError(f"{batch} ({kind}) has compression {name}: use one of {accepted}")


def check_times(
    records: bytes | bytearray, batches: Sequence[tuple[int, BatchHeader]], now_ms: int, config: TopicConfig
) -> None:
    """Check how far each record's time is from the broker's; decodes the batch only if the topic limits that.

    Raises ``InvalidTimestampError``.
    """
    before_ms, after_ms = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    is_unlimited = before_ms == after_ms == _UNLIMITED_MS
    if is_unlimited or config.message_timestamp_type is MessageTimestampType.LOG_APPEND_TIME:
        return
    for position, header in batches:
        batch = bytes(records[position : position + header.size_bytes])
        times_ms = [time_ms for _, time_ms in record_times(batch, header)]
        smallest_ms, largest_ms = min(times_ms), max(times_ms)
        if smallest_ms >= 0 and now_ms - smallest_ms > before_ms:
            raise InvalidTimestampError(
                f"batch at position {position} has a record of {smallest_ms}, more than "
                f"message.timestamp.before.max.ms={before_ms} before the broker's time, {now_ms}"
            )
        if largest_ms - now_ms > after_ms:
            raise InvalidTimestampError(
                f"batch at position {position} has a record of {largest_ms}, more than "
                f"message.timestamp.after.max.ms={after_ms} after the broker's time, {now_ms}"
            )
