"""Reader and writer of logs of any Kafka format (``MemoryRecords``).

The formats are those of magic 0 to 2. Conversion, compaction and tools that show damaged logs use this module for
files from Kafka. A log of millrace has magic 2 only, and is read with ``scan`` and ``decoding``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from millrace.errors import CorruptBatchError, UnsupportedForFormatError
from millrace.records.compression import DECOMPRESSED_BYTES_MAX, Compression
from millrace.records.header import (
    CHECKED_FROM,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    ReadableBuffer,
    TimestampType,
    as_arrow_buffer,
    checksum,
    read_header,
    read_header_fields,
)
from millrace.records.legacy import MESSAGE_BYTES_MIN, Message, build_messages, unwrap
from millrace.records.rows import Record, build_rows_batch, read_rows

OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
MAGIC_BYTE: Final = struct.Struct(">b")
MAGIC_POSITION: Final = 16
_THROUGH_MAGIC_BYTES: Final = 17
_INT_MAX: Final = 2**31 - 1


class BatchEntry:
    """A batch of magic 2.

    If a wrong length cuts the header short, ``header`` raises but ``fields`` does not.
    """

    def __init__(self, buffer: ReadableBuffer, position: int, size_bytes: int) -> None:
        self._buffer = as_arrow_buffer(buffer).slice(position, size_bytes)
        self.magic = _magic_at(buffer, position)
        self.position = position
        self.size_bytes = size_bytes

    @property
    def header(self) -> BatchHeader:
        """The whole header; raises ``CorruptBatchError`` if the entry is too short for it."""
        return read_header(self._buffer)

    @property
    def fields(self) -> dict[str, int]:
        """The fields of the header that lie within the entry."""
        return read_header_fields(self._buffer)

    @property
    def crc_is_valid(self) -> bool:
        """True if the entry has a valid size for its format and a valid checksum."""
        return self.size_bytes >= HEADER_BYTES and checksum(self._buffer.slice(CHECKED_FROM)) == self._field("crc")

    @property
    def compression(self) -> Compression:
        """Compression of the records; raises ``UnsupportedCompressionError`` for unknown numbers."""
        return Compression.of(self._field("attributes") & 0x07)

    @property
    def timestamp_type(self) -> TimestampType:
        """Origin of the timestamps."""
        return TimestampType.LOG_APPEND_TIME if self._field("attributes") & 0x08 else TimestampType.CREATE_TIME

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return self._field("base_offset")

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self._field("base_offset") + self._field("last_offset_delta")

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp."""
        return self._field("max_timestamp")

    def check(self) -> None:
        """Raise ``CorruptBatchError`` unless size and checksum are valid; the records are not checked."""
        if self.size_bytes < HEADER_BYTES:
            raise CorruptBatchError(
                f"batch at position {self.position} has {self.size_bytes} bytes, but a header has 61"
            )
        if not self.crc_is_valid:
            raise CorruptBatchError(f"batch at position {self.position} fails its checksum")

    def records(self, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """Read the records. Raises ``CorruptBatchError`` or ``InvalidRecordError`` at the first invalid record.

        Raises ``UnsupportedForFormatError`` for a columnar batch, which ``decode_batch`` reads.
        """
        if self.header.is_columnar:
            raise UnsupportedForFormatError(f"batch at position {self.position} is columnar: decode it to Arrow")
        yield from read_rows(self._buffer, 0, self.header, max_bytes=max_bytes)

    def _field(self, name: str) -> int:
        try:
            return self.fields[name]
        except KeyError:
            raise CorruptBatchError(
                f"batch at position {self.position} ends after {self.size_bytes} bytes, before its {name}"
            ) from None


class MessageEntry:
    """Message of magic 0 or 1, or a wrapper of such messages."""

    def __init__(self, buffer: ReadableBuffer, position: int, size_bytes: int) -> None:
        data = as_arrow_buffer(buffer).slice(position, size_bytes).to_pybytes()
        (offset,) = struct.unpack_from(">q", data)
        self.message = Message(offset, data[LOG_OVERHEAD_BYTES:])
        self.magic = self.message.magic
        self.position = position
        self.size_bytes = size_bytes

    @property
    def crc_is_valid(self) -> bool:
        """True if the entry has a valid size for its format and a valid checksum."""
        return self.message.crc_is_valid

    @property
    def compression(self) -> Compression:
        """Compression of the records; raises ``UnsupportedCompressionError`` for unknown numbers."""
        return self.message.compression

    @property
    def timestamp_type(self) -> TimestampType | None:
        """Origin of the timestamps; ``None`` in magic 0."""
        return self.message.timestamp_type

    @property
    def base_offset(self) -> int:
        """Offset of the first record. A wrapper must be read for it, which can raise the errors of ``records``."""
        return next(unwrap(self.message)).offset

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.message.offset

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp, -1 in magic 0."""
        return self.message.timestamp_ms

    def check(self) -> None:
        """Raise ``CorruptBatchError`` unless size and checksum are valid; the records are not checked."""
        if not self.crc_is_valid:
            raise CorruptBatchError(f"message at position {self.position} fails its checksum")

    def records(self, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """Read the records. Raises ``CorruptBatchError`` or ``InvalidRecordError`` at the first invalid record."""
        for message in unwrap(self.message, max_bytes=max_bytes):
            yield Record(
                key=message.key,
                value=message.value,
                timestamp_ms=message.timestamp_ms,
                offset=message.offset,
                size_bytes=message.size_bytes,
            )


def read_entries(buffer: ReadableBuffer) -> Iterator[BatchEntry | MessageEntry]:
    """Walk the entries of a log in memory; an incomplete last entry is dropped.

    Raises ``CorruptBatchError`` at an entry with an impossible length or magic (Kafka's
    ``ByteBufferLogInputStream``).
    """
    position, end = 0, len(buffer)
    while end - position >= LOG_OVERHEAD_BYTES:
        length = _length_at(buffer, position)
        if end - position < _THROUGH_MAGIC_BYTES:
            return
        magic = _magic_at(buffer, position)
        if not 0 <= magic <= MAGIC:
            raise CorruptBatchError(f"entry at position {position} has magic {magic}: expected 0 to 2")
        size = LOG_OVERHEAD_BYTES + length
        if size > _INT_MAX:
            raise CorruptBatchError(f"entry at position {position} has the invalid length {length}")
        if size > end - position:
            return
        yield (BatchEntry if magic == MAGIC else MessageEntry)(buffer, position, size)
        position += size


def build_entries(
    records: Sequence[Record],
    *,
    magic: int,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> bytes:
    """Write records, with their own offsets, in the format of any magic; ``convert`` handles whole logs.

    Raises ``UnsupportedForFormatError`` for data that the format cannot hold (headers and producers before magic 2),
    and the errors of ``build_rows_batch`` and ``build_messages``.
    """
    if magic == MAGIC:
        return build_rows_batch(
            records,
            base_offset=None,
            compression=compression,
            timestamp_type=timestamp_type,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
    if not 0 <= magic < MAGIC:
        raise UnsupportedForFormatError(f"magic {magic} is unknown: expected 0 to 2")
    if producer_id != NO_PRODUCER_ID or is_transactional:
        raise UnsupportedForFormatError(
            f"producer id {producer_id} is not supported: magic {magic} has neither producers nor transactions"
        )
    return build_messages(records, magic=magic, compression=compression, timestamp_type=timestamp_type)


def _length_at(buffer: ReadableBuffer, position: int) -> int:
    length = int(OFFSET_AND_LENGTH.unpack_from(buffer, position)[1])
    if length < MESSAGE_BYTES_MIN:
        raise CorruptBatchError(
            f"entry at position {position} has a length of {length} bytes, but {MESSAGE_BYTES_MIN} is the minimum"
        )
    return length


def _magic_at(buffer: ReadableBuffer, position: int) -> int:
    return int(MAGIC_BYTE.unpack_from(buffer, position + MAGIC_POSITION)[0])
