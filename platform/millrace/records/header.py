"""61-byte header of a record batch, the header of Kafka's v2 batches.

Layout (big-endian; Kafka's ``DefaultRecordBatch``, KIP-98)::

    position  type  field
           0  i64   base offset               assigned by the broker, outside the checksum
           8  i32   batch length              bytes after this field
          12  i32   partition leader epoch    assigned by the broker, outside the checksum
          16  i8    magic                     2
          17  u32   crc                       CRC-32C of everything from attributes to the end
          21  i16   attributes                see below
          23  i32   last offset delta         last offset = base offset + this, also when compaction removed it
          27  i64   base timestamp            ms; of the first record, or the delete horizon
          35  i64   max timestamp             ms
          43  i64   producer id               -1: none
          51  i16   producer epoch            -1: none
          53  i32   base sequence             -1: none
          57  i32   count                     of the records
          61        body

Attributes: bits 0-2 compression, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon, 14 columnar. Kafka
leaves bits 7 to 15 unused and ignores them. A body is columnar exactly if bit 14 is the *only* one of those that is
set. Therefore every batch with other bits is read as rows, as Kafka reads it.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

import google_crc32c
import pyarrow as pa

from millrace.errors import CorruptBatchError, MessageTooLargeError

ReadableBuffer: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
"""Buffer types that batches are read from; mapped files come as ``pa.Buffer``."""

HEADER_BYTES: Final = 61
LOG_OVERHEAD_BYTES: Final = 12
"""Size of the base offset and the batch length, which the batch length does not count."""

MAGIC: Final = 2
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PREFIX: Final = struct.Struct(">qiib")
_LENGTH_MAX: Final = 2**31 - 1
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
CHECKED_FROM: Final = 21
"""First byte that the checksum covers."""

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20
_DELETE_HORIZON_BIT: Final = 0x40
_UNUSED_BY_KAFKA: Final = 0xFF80
COLUMNAR_BIT: Final = 0x4000


class TimestampType(IntEnum):
    """Origin of a batch's timestamps: the producer or the broker."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """Header of a batch as read, with its fields in their order.

    ``compression`` is the attribute's number, which may be unknown (5 to 7). The class is a tuple because headers
    take a large part of the time for small batches.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's name; nobody calls the tuple method that it hides

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the batch held when it was appended."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """Compression number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        """Origin of the timestamps: producers or the broker."""
        return TimestampType.LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """True if the batch holds a control record, which readers never return."""
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def has_delete_horizon(self) -> bool:
        """True if ``base_timestamp`` is the time from which compaction may drop the batch's tombstones (KIP-534)."""
        return bool(self.attributes & _DELETE_HORIZON_BIT)

    @property
    def is_columnar(self) -> bool:
        """True if the body is an Arrow record batch rather than rows."""
        return self.attributes & _UNUSED_BY_KAFKA == COLUMNAR_BIT


def attributes_of(
    *,
    compression: int = 0,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    is_transactional: bool = False,
    is_control: bool = False,
    has_delete_horizon: bool = False,
    is_columnar: bool = False,
) -> int:
    """Compose the attributes field."""
    return (
        compression
        | (TIMESTAMP_TYPE_BIT if timestamp_type else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (_CONTROL_BIT if is_control else 0)
        | (_DELETE_HORIZON_BIT if has_delete_horizon else 0)
        | (COLUMNAR_BIT if is_columnar else 0)
    )


def read_header(buffer: ReadableBuffer, position: int = 0) -> BatchHeader:
    """Read the header at ``position``, checking magic before anything else is interpreted.

    The checksum is not verified (``verify_crc``), and the body need not be in ``buffer``.

    Raises ``CorruptBatchError`` when fewer than 61 bytes are left, the magic is not 2, or the length is below
    the header's own.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatchError(
            f"batch at position {position}: {len(buffer) - position} bytes left, but a header has 61"
        )
    magic = _PREFIX.unpack_from(buffer, position)[3]
    if magic != MAGIC:
        raise CorruptBatchError(f"batch at position {position}: magic {magic}, expected 2")
    header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    if header.batch_length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise CorruptBatchError(f"batch at position {position}: length {header.batch_length} is below the header's 49")
    return header


def read_header_fields(buffer: ReadableBuffer, position: int = 0) -> dict[str, int]:
    """Read by name the fields of a header that ``buffer`` is long enough for, without checks.

    Tools that show damaged logs use this function. All other code reads whole headers (``read_header``).
    """
    fields: dict[str, int] = {}
    for name, type_ in zip(BatchHeader._fields, _HEADER.format[1:], strict=True):
        field = struct.Struct(">" + type_)
        if position + field.size > len(buffer):
            break
        (fields[name],) = field.unpack_from(buffer, position)
        position += field.size
    return fields


def as_arrow_buffer(buffer: ReadableBuffer) -> pa.Buffer:
    """View any readable buffer as an Arrow buffer, without a copy."""
    return buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer)


def checksum(*parts: ReadableBuffer) -> int:
    """Compute the CRC-32C of the concatenation of ``parts``, each contiguous, without copying them."""
    crc = 0
    for part in parts:
        crc = extend_checksum(crc, part)
    return crc


def extend_checksum(crc: int, part: ReadableBuffer) -> int:
    """Extend the CRC-32C ``crc`` by ``part``; the CRC of no bytes is 0."""
    # The C extension takes bytes and read-only buffers that need no release; a memoryview needs one.
    extended: int = google_crc32c.extend(crc, part if isinstance(part, bytes) else as_arrow_buffer(part))
    return extended


def seal(header: BatchHeader, *body: ReadableBuffer, with_checksum: bool = True) -> bytes:
    """Join a header and the parts of its body into a batch with length and checksum; copies each part once.

    ``with_checksum=False`` leaves the checksum 0 for a caller that changes the header and computes the checksum then.
    """
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + sum(len(part) for part in body)
    if length > _LENGTH_MAX:
        raise MessageTooLargeError(
            f"a batch of {length} bytes is too large, because {_LENGTH_MAX} is the maximum: send fewer records at once"
        )
    base_offset, _, leader_epoch, magic, _, *checked = header
    start = _HEADER.pack(base_offset, length, leader_epoch, magic, 0, *checked)
    if with_checksum:
        crc = checksum(start[CHECKED_FROM:], *body)
        start = start[:CRC_POSITION] + crc.to_bytes(4, "big") + start[CHECKED_FROM:]
    return b"".join((start, *body))
