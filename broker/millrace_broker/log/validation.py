"""Verified batches, the only ones that a log appends (Kafka's ``LogValidator``).

Invariant: An object of ``ProducedBatches`` or ``ReplicatedBatches`` has the bytes that its checks read.

Headers and checksums are checked here. ``millrace.records.validate_batch`` checks bodies against the schema.
"""

from __future__ import annotations

from typing import Final

from millrace.config.topic import MessageTimestampType, TopicConfig
from millrace.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTimestampError,
    MessageTooLargeError,
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
from millrace.records.header import ReadableBuffer, as_arrow_buffer

_KNOWN_ATTRIBUTES: Final = 0x003F
_COMPRESSIONS: Final = frozenset(Compression)
_COLUMNAR_COMPRESSIONS: Final = (Compression.NONE, Compression.LZ4, Compression.ZSTD)


class ProducedBatches:
    """A producer's batches that passed the checks of this module.

    The constructor makes the checks, also of the checksums, and the log takes no other type. A batch is therefore
    verified once, however many threads and modules it passes through. ``headers`` has the position and the header of
    each batch in ``data``.
    """

    __slots__ = ("data", "headers")

    def __init__(self, data: bytes | memoryview, config: TopicConfig, *, in_transaction: bool = False) -> None:
        """Check the batches of one append. ``in_transaction`` means that the request names their transaction.

        Bytes after the last complete batch are refused, while Kafka ignores them. Several batches may come at once
        here, and one acknowledgement covers all of them.

        Raises ``InvalidRequestError``, ``CorruptBatchError``, ``MessageTooLargeError``, ``InvalidRecordError``,
        ``UnsupportedCompressionError`` or ``InvalidTimestampError``.
        """
        if not data:
            raise InvalidRecordError("nothing to append: send at least one record batch")
        batches = tuple(scan_headers(data))
        for position, header in batches:
            _check_size(position, header, config)  # check first, as in Kafka: no retry can fix the size
            verify_crc(data, position, header)  # before the other fields, because damage must not look like misuse
            _check_header(position, header, config)
            if header.is_transactional and not in_transaction:
                raise InvalidRequestError(
                    f"batch at position {position} is transactional, and its request names no transactional id"
                )
        end = batches[-1][0] + batches[-1][1].size_bytes if batches else 0
        if end != len(data):
            raise InvalidRecordError(f"{len(data) - end} bytes at position {end} are no complete record batch")
        if len(batches) > 1 and any(header.producer_id != NO_PRODUCER_ID for _, header in batches):
            raise InvalidRecordError(f"{len(batches)} batches at once: a batch of an idempotent producer comes alone")
        self.data: Final = data
        self.headers: Final = batches


class ReplicatedBatches:
    """A leader's whole batches with right checksums and ascending offsets. The constructor makes the checks."""

    __slots__ = ("data", "headers")

    def __init__(self, data: ReadableBuffer) -> None:
        """Check the records of a fetch response. Raises ``CorruptBatchError``."""
        whole = as_arrow_buffer(data)
        batches = tuple(scan_headers(memoryview(whole)))
        end = batches[-1][0] + batches[-1][1].size_bytes if batches else 0
        if end != len(whole):
            raise CorruptBatchError(
                f"the leader's answer has {len(whole) - end} bytes at position {end} that are not a complete batch"
            )
        least_offset = 0
        for position, header in batches:
            verify_crc(whole, position, header)
            if header.base_offset < least_offset or header.last_offset_delta < 0:
                raise CorruptBatchError(
                    f"the leader's batch at offset {header.base_offset} does not follow offset {least_offset - 1}"
                )
            least_offset = header.next_offset
        self.data: Final = memoryview(whole)
        self.headers: Final = batches


def _check_size(position: int, header: BatchHeader, config: TopicConfig) -> None:
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
