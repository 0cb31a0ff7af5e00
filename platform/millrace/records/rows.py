"""The rows body: Kafka's v2 records (KIP-98), written as Kafka writes them and read with its rules.

A record is: length varint, attributes i8 (unused), timestamp delta varlong, offset delta varint, key length varint
(negative: null), key, value length varint, value, header count varint, then per header key length, key (UTF-8),
value length (negative: null), value. Compressed, all records of the batch are one stream.

Reading notices what Kafka's reader notices and no more: a record that does not fill its length, fewer or more
records than the count. Offsets within a batch need not ascend, a record's attributes are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from millrace.errors import CorruptBatchError, InvalidRecordError, InvalidTimestampError
from millrace.records.compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompressed_chunks
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
from millrace.records.varint import read_varint, read_varlong, varint_size, write_varint

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

_INT_MAX: Final = 2**31 - 1
_LONG_SPAN: Final = 2**64
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. ``size_bytes`` is its size within its batch before compression, -1 for one not read from a batch."""

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

    The records are numbered from ``base_offset`` in their order; with ``None`` they keep their own offsets, which must
    ascend. ``last_offset`` is for a batch from whose end compaction took records. For
    ``TimestampType.LOG_APPEND_TIME`` the largest timestamp counts for all records. ``delete_horizon_ms`` is the time
    from which compaction may drop the batch's tombstones. No records and a ``last_offset`` give the empty batch that
    compaction leaves behind to remember a producer's last sequence.

    Raises ``InvalidRecordError`` for offsets that do not ascend, a producer id without sequence or epoch, or no
    records; ``InvalidTimestampError`` for a timestamp below -1; ``UnsupportedCompressionError``;
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
    """Compose the header of a rows batch, length and checksum left out, and see that its fields agree.

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

    Raises ``CorruptBatchError`` on reaching what is wrong, after the sound records before it: a record that does not
    fill its length, too few records, a stream that cannot be decompressed or grows beyond ``max_bytes``. That records
    are left over is noticed while reading the last, which is then not handed out (Kafka's ``DefaultRecordBatch``).
    Raises ``UnsupportedCompressionError`` for compression numbers 5 to 7.
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
    """An idempotent producer's sequence number of a record in its batch, -1 without one; it goes round at 2^31."""
    return _sequence(header.base_sequence, record.offset - header.base_offset)


def last_sequence_of(header: BatchHeader) -> int:
    """Sequence number of the last record that the batch held when it was appended, -1 without one."""
    return _sequence(header.base_sequence, header.last_offset_delta)


def _sequence(base: int, delta: int) -> int:
    if base < 0:
        return NO_SEQUENCE
    return base + delta if base + delta <= _INT_MAX else base + delta - _INT_MAX - 1


def decoded_headers(headers: Sequence[tuple[bytes, bytes | None]]) -> Headers:
    """Read the keys of a record's headers as text; what is not UTF-8 in them is replaced, as Java does."""
    return tuple((key.decode("utf-8", "replace"), value) for key, value in headers)


def append_time(header: BatchHeader) -> int | None:
    """The timestamp that counts for all records of the batch, if the broker set it."""
    return header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None


def wrapped(value: int) -> int:
    """What a 64-bit sum comes to when it overflows, as it does in Kafka."""
    return value if -_LONG_MAX <= value <= _LONG_MAX else (value + 2**63) % _LONG_SPAN - 2**63


class RawRecord(NamedTuple):
    """A record as it is stored: header keys undecoded, offset and timestamp relative to the batch's."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]
    timestamp_delta: int
    offset_delta: int
    size_bytes: int


def read_raw(body: bytes, damage: CorruptBatchError | None, header: BatchHeader) -> Iterator[RawRecord]:
    """Read the records of what ``body_of`` gave, as they are stored; raises ``CorruptBatchError``."""
    if header.count < 0:
        raise CorruptBatchError(f"rows batch with base offset {header.base_offset}: count {header.count}")
    at = 0
    for index in range(header.count):
        try:
            record, at = _read_record(body, at)
        except CorruptBatchError as error:
            # What looks like a cut record may be the place where decompression stopped.
            raise _located(damage or error, header, index) from error
        if index == header.count - 1 and (damage is not None or at != len(body)):
            raise _located(damage or CorruptBatchError(f"{len(body) - at} bytes are left over"), header, index)
        yield record


def _located(error: CorruptBatchError, header: BatchHeader, index: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"rows batch with base offset {header.base_offset}, record {index} of {header.count}: {error.message}"
    )


def body_of(
    buffer: ReadableBuffer, position: int, header: BatchHeader, max_bytes: int
) -> tuple[bytes, CorruptBatchError | None]:
    """Find the records as they lie in the stream, up to where decompressing failed, and why it failed."""
    data = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes].tobytes()
    chunks: list[bytes] = []
    try:
        for chunk in decompressed_chunks(data, Compression.of(header.compression), max_bytes=max_bytes):
            chunks.append(chunk)
    except CorruptBatchError as error:
        return b"".join(chunks), error
    return b"".join(chunks), None


def _read_record(body: bytes, start: int) -> tuple[RawRecord, int]:
    length, at = read_varint(body, start)
    end = at + length
    if length < 0 or end > len(body):
        raise CorruptBatchError(f"a length of {length} bytes, {len(body) - at} are left")
    begin = at
    timestamp_delta, at = read_varlong(body, at + 1)
    offset_delta, at = read_varint(body, at)
    key, at = _read_bytes(body, at)
    value, at = _read_bytes(body, at)
    header_count, at = read_varint(body, at)
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    if header_count:
        headers, at = _read_headers(body, at, header_count)
    if at != end:
        raise CorruptBatchError(f"a length of {length} bytes and a content of {at - begin}")
    return RawRecord(key, value, headers, timestamp_delta, offset_delta, varint_size(length) + length), at


def _read_bytes(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(body, at)
    if size < 0:
        return None, at
    end = at + size
    if end > len(body):
        raise CorruptBatchError(f"a field of {size} bytes, {len(body) - at} are left")
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
