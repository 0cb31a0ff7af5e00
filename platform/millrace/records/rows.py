"""Kafka's v2 records (KIP-98), read and written one by one.

A record has these fields in order::

    length varint
    attributes i8 (unused)
    timestamp delta varlong
    offset delta varint
    key length varint (negative: null), key
    value length varint (negative: null), value
    header count varint
    of each header: key length varint, key (UTF-8), value length varint (negative: null), value

In a compressed batch all records together are one stream.

The reader detects the same errors as Kafka's reader: a record that does not fill its length, and fewer or more
records than the count. Offsets within a batch need not ascend. A record's attributes are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from millrace.errors import CorruptBatchError, InvalidRecordError, InvalidTimestampError
from millrace.records.compression import (
    DECOMPRESSED_BYTES_MAX,
    BodyTooLargeError,
    Compression,
    compress,
    decompressed_chunks,
)
from millrace.records.header import (
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    ReadableBuffer,
    TimestampType,
    attributes_of,
    seal,
)
from millrace.records.varint import read_varint, varint_size, write_varint

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_INT_MAX: Final = 2**31 - 1
_LONG_SPAN: Final = 2**64
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record.

    ``size_bytes`` is its size within its batch before compression, or -1 if the record was not read from a batch.
    """

    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = NO_TIMESTAMP
    offset: int = 0
    size_bytes: int = field(default=-1, compare=False)


# --- writing -------------------------------------------------------------------------------------------------


def build_rows_batch(
    records: Sequence[Record],
    *,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    base_offset: int | None = 0,
    last_offset: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    delete_horizon_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    leader_epoch: int = -1,
) -> bytes:
    """Build a whole batch of v2 records.

    The records are numbered from ``base_offset`` in their order. With ``None`` they keep their own offsets, which
    must ascend. ``last_offset`` is for a batch whose last records were removed by compaction. With
    ``TimestampType.LOG_APPEND_TIME`` the largest timestamp applies to all records. ``delete_horizon_ms`` is the time
    from which compaction may drop the batch's tombstones. A ``last_offset`` without records gives an empty batch;
    compaction keeps such a batch to preserve a producer's last sequence.

    Raises ``InvalidRecordError`` for offsets that do not ascend, a producer id without sequence or epoch, or no
    records. Raises ``InvalidTimestampError`` for a timestamp below -1. Also raises ``UnsupportedCompressionError`` and
    ``MessageTooLargeError``.
    """
    if not records and last_offset is None:
        raise InvalidRecordError("a batch needs at least one record")
    first_offset = base_offset if base_offset is not None else records[0].offset if records else 0
    offsets = [record.offset for record in records]
    if base_offset is not None:
        offsets = list(range(base_offset, base_offset + len(records)))
    last = offsets[-1] if last_offset is None else last_offset
    _check_offsets(offsets, first_offset, last)
    timestamps = [record.timestamp_ms for record in records] or [NO_TIMESTAMP]
    base_timestamp = timestamps[0] if delete_horizon_ms is None else delete_horizon_ms
    header = rows_header(
        compression=compression,
        first_offset=first_offset,
        last_offset=last,
        count=len(records),
        timestamp_range=(min(timestamps), max(timestamps)),
        base_timestamp=base_timestamp,
        has_delete_horizon=delete_horizon_ms is not None,
        timestamp_type=timestamp_type,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=is_transactional,
        is_control=is_control,
        leader_epoch=leader_epoch,
    )
    if not records:
        return seal(header)
    parts: list[bytes] = []
    for record, offset in zip(records, offsets, strict=True):
        _append_record(parts, record, offset - first_offset, wrapped(record.timestamp_ms - base_timestamp))
    return seal(header, compress(b"".join(parts), compression, level=level))


def rows_header(
    *,
    compression: Compression,
    first_offset: int,
    last_offset: int,
    count: int,
    timestamp_range: tuple[int, int],
    base_timestamp: int,
    has_delete_horizon: bool,
    timestamp_type: TimestampType,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool,
    is_control: bool,
    leader_epoch: int,
) -> BatchHeader:
    """Compose the header of a rows batch without length and checksum, and check that its fields agree.

    Raises ``InvalidRecordError`` and ``InvalidTimestampError``.
    """
    _check_producer(producer_id, producer_epoch, base_sequence, is_transactional, is_control)
    oldest, newest = timestamp_range
    if oldest < NO_TIMESTAMP:
        raise InvalidTimestampError(f"timestamp {oldest}: timestamps are milliseconds from 0, or -1 for none")
    return BatchHeader(
        base_offset=first_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes_of(
            compression=compression,
            timestamp_type=timestamp_type,
            is_transactional=is_transactional,
            is_control=is_control,
            has_delete_horizon=has_delete_horizon,
        ),
        last_offset_delta=last_offset - first_offset,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=count,
    )


def _check_producer(
    producer_id: int, producer_epoch: int, base_sequence: int, is_transactional: bool, is_control: bool
) -> None:
    if is_transactional and producer_id == NO_PRODUCER_ID:
        raise InvalidRecordError("a transactional batch needs a producer id")
    if producer_id == NO_PRODUCER_ID:
        return
    if producer_epoch == NO_PRODUCER_EPOCH:
        raise InvalidRecordError(f"producer id {producer_id} without an epoch")
    if base_sequence < 0 and not is_control:
        raise InvalidRecordError(f"producer id {producer_id} with sequence {base_sequence}")


def _check_offsets(offsets: list[int], first: int, last: int) -> None:
    for before, after in pairwise(offsets):
        if after <= before:
            raise InvalidRecordError(f"offset {after} follows offset {before}: offsets must ascend")
    if (offsets and (offsets[0] < first or offsets[-1] > last)) or not 0 <= last - first <= _INT_MAX:
        raise InvalidRecordError(f"offsets {offsets[:1]}..{offsets[-1:]} do not fit a batch of {first}..{last}")


def _append_record(parts: list[bytes], record: Record, offset_delta: int, timestamp_delta: int) -> None:
    body = [b"\x00", write_varint(timestamp_delta), write_varint(offset_delta)]
    for value in (record.key, record.value):
        body += (b"\x01",) if value is None else (write_varint(len(value)), value)
    body.append(write_varint(len(record.headers)))
    for key, header_value in record.headers:
        encoded = key.encode()
        body += (write_varint(len(encoded)), encoded)
        body += (b"\x01",) if header_value is None else (write_varint(len(header_value)), header_value)
    parts.append(write_varint(sum(map(len, body))))
    parts += body


# --- reading -------------------------------------------------------------------------------------------------


def read_rows(
    buffer: ReadableBuffer, position: int, header: BatchHeader, *, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """Read the records of the rows batch at ``position``, one by one.

    Raises ``CorruptBatchError`` at the first invalid record, after the valid records before it. Errors are a record
    that does not fill its length, too few records, and a stream that cannot be decompressed or grows beyond
    ``max_bytes``. Surplus records are detected at the last record, which is then not returned (Kafka's
    ``DefaultRecordBatch``). Raises ``UnsupportedCompressionError`` for compression numbers 5 to 7.
    """
    stamped = append_time(header)
    for raw in read_raw(*body_of(buffer, position, header, max_bytes), header):
        timestamp = wrapped(header.base_timestamp + raw.timestamp_delta) if stamped is None else stamped
        yield Record(
            key=raw.key,
            value=raw.value,
            headers=decoded_headers(raw.headers),
            timestamp_ms=timestamp,
            offset=wrapped(header.base_offset + raw.offset_delta),
            size_bytes=raw.size_bytes,
        )


def sequence_of(header: BatchHeader, record: Record) -> int:
    """Return the idempotent producer's sequence number of a record, or -1 without one; it wraps at 2^31."""
    return sequence_at(header, record.offset)


def sequence_at(header: BatchHeader, offset: int) -> int:
    """Return the sequence number of the record at an offset of a batch, or -1 without one."""
    return _sequence(header.base_sequence, offset - header.base_offset)


def last_sequence_of(header: BatchHeader) -> int:
    """Return the sequence number of the last record that the batch held when it was appended, -1 without one."""
    return _sequence(header.base_sequence, header.last_offset_delta)


def _sequence(base: int, delta: int) -> int:
    if base < 0:
        return NO_SEQUENCE
    return base + delta if base + delta <= _INT_MAX else base + delta - _INT_MAX - 1


def decoded_headers(headers: Sequence[tuple[bytes, bytes | None]]) -> Headers:
    """Decode the keys of a record's headers; invalid UTF-8 is replaced, as Java does."""
    return tuple((key.decode("utf-8", "replace"), value) for key, value in headers)


def append_time(header: BatchHeader) -> int | None:
    """Return the timestamp that applies to all records of the batch if the broker set it, else None."""
    return header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None


def wrapped(value: int) -> int:
    """Wrap a sum that overflows 64 bits, as in Kafka."""
    return value if -_LONG_MAX <= value <= _LONG_MAX else (value + 2**63) % _LONG_SPAN - 2**63


class RawRecord(NamedTuple):
    """Record as stored in a batch.

    Header keys are not decoded. Offset and timestamp are relative to the batch's.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    timestamp_delta: int
    offset_delta: int
    size_bytes: int


def read_raw(body: bytes, damage: CorruptBatchError | None, header: BatchHeader) -> Iterator[RawRecord]:
    """Read the stored records from the result of ``body_of``; raises ``CorruptBatchError``."""
    if header.count < 0:
        raise CorruptBatchError(f"rows batch with base offset {header.base_offset}: count {header.count}")
    at = 0
    for index in range(header.count):
        try:
            record, at = _read_record(body, at)
        except CorruptBatchError as error:
            # A record that looks incomplete may be the place where decompression stopped.
            raise _located(damage or error, header, index) from error
        if index == header.count - 1 and (damage is not None or at != len(body)):
            raise _located(damage or CorruptBatchError(f"{len(body) - at} bytes follow the last record"), header, index)
        yield record


def _located(error: CorruptBatchError, header: BatchHeader, index: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"rows batch with base offset {header.base_offset}, record {index} of {header.count}: {error.message}"
    )


def body_of(
    buffer: ReadableBuffer, position: int, header: BatchHeader, max_bytes: int
) -> tuple[bytes, CorruptBatchError | None]:
    """Return the decompressed body up to the damage, and the decompression error, if any."""
    data = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes].tobytes()
    if not header.compression and len(data) <= max_bytes:  # the usual case, without the cost of the loop
        return data, None
    chunks: list[bytes] = []
    try:
        for chunk in decompressed_chunks(data, Compression.of(header.compression), max_bytes=max_bytes):
            chunks.append(chunk)
    except CorruptBatchError as error:
        return b"".join(chunks), error
    return b"".join(chunks), None


def is_larger(buffer: ReadableBuffer, position: int, header: BatchHeader, max_bytes: int) -> bool:
    """Return whether a compressed body has more than ``max_bytes`` decompressed. It is not kept in memory.

    A body that is damaged before that is not larger. Raises ``UnsupportedCompressionError``.
    """
    data = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes].tobytes()
    try:
        for _ in decompressed_chunks(data, Compression.of(header.compression), max_bytes=max_bytes):
            pass
    except BodyTooLargeError:
        return True
    except CorruptBatchError:
        pass
    return False


def _read_record(body: bytes, start: int) -> tuple[RawRecord, int]:
    length, at = read_varint(body, start)
    end = at + length
    if end > len(body):
        raise CorruptBatchError(f"a length of {length} bytes, but {len(body) - at} bytes are left")
    begin = at
    timestamp_delta, at = read_varint(body, at + 1, 64)
    offset_delta, at = read_varint(body, at)
    key, at = _read_bytes(body, at)
    value, at = _read_bytes(body, at)
    header_count, at = read_varint(body, at)
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    if header_count:
        headers, at = _read_headers(body, at, header_count)
    if at != end:
        raise CorruptBatchError(f"a length of {length} bytes, but a content of {at - begin} bytes")
    return RawRecord(key, value, headers, timestamp_delta, offset_delta, varint_size(length) + length), at


def _read_bytes(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(body, at)
    if size < 0:
        return None, at
    end = at + size
    if end > len(body):
        raise CorruptBatchError(f"a field of {size} bytes, but {len(body) - at} bytes are left")
    return body[at:end], end


def _read_headers(body: bytes, at: int, count: int) -> tuple[list[tuple[bytes, bytes | None]], int]:
    if not 0 <= count <= len(body) - at:
        raise CorruptBatchError(f"{count} headers in {len(body) - at} bytes")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        key, at = _read_bytes(body, at)
        if key is None:
            raise CorruptBatchError("a header without a key")
        value, at = _read_bytes(body, at)
        headers.append((key, value))
    return headers, at
