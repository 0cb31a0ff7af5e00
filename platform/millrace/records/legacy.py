"""Kafka's messages of magic 0 and 1, plain or in compressed wrappers.

After offset i64 and length i32, which every entry of a log begins with (big-endian; positions in the message)::

    position  magic 0       magic 1
           0  u32 crc       u32 crc         CRC-32 of everything after it
           4  i8  magic     i8  magic
           5  i8  attributes                bits 0-2 compression, 3 timestamp type (magic 1)
           6                i64 timestamp
           6  i32           14  i32         key length, negative: null; key; value length, negative: null; value

A message with compression is a wrapper: its value is a compressed sequence of messages. The wrapper has the offset of
its last message. Within a wrapper of magic 0 the offsets are absolute. Within a wrapper of magic 1 they are relative,
so that the broker assigns offsets without recompression. The absolute offset is the wrapper's offset, minus the last
relative offset, plus the relative offset.

The rules are those of Kafka's ``AbstractLegacyRecordBatch`` and ``LegacyRecord``, tolerance included. Checksums
within a wrapper are not checked. An incomplete message at the end of a wrapper is dropped. Bytes behind a value are
ignored.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from millrace.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    UnsupportedCompressionError,
    UnsupportedForFormatError,
)
from millrace.records.compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompress
from millrace.records.header import LOG_OVERHEAD_BYTES, NO_TIMESTAMP, TimestampType
from millrace.records.rows import Record

MESSAGE_BYTES_MIN: Final = 14
"""Size of a magic 0 message with null key and value."""

_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I8: Final = struct.Struct(">b")
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_CRC_BYTES: Final = 4
_MAGIC_POSITION: Final = 4
_ATTRIBUTES_POSITION: Final = 5
_TIMESTAMP_POSITION: Final = 6
_KEY_POSITION: Final = {0: 6, 1: 14}
_COMPRESSION_MASK: Final = 0x07
_TIMESTAMP_TYPE_BIT: Final = 0x08


@dataclass(frozen=True, slots=True)
class Message:
    """One message with its offset and its bytes. Fields are parsed on access.

    Fields raise ``CorruptBatchError`` if the message is too short for them.
    """

    offset: int
    data: bytes
    append_time_ms: int | None = None
    """Append time of the wrapper, which applies to its messages if the broker set it."""

    @property
    def size_bytes(self) -> int:
        """Size in the log, offset and length included."""
        return LOG_OVERHEAD_BYTES + len(self.data)

    @property
    def crc(self) -> int:
        """The stored checksum."""
        return int(self._unpack(_U32, 0))

    @property
    def crc_is_valid(self) -> bool:
        """True if size and checksum are valid."""
        return len(self.data) >= MESSAGE_BYTES_MIN and self.crc == zlib.crc32(memoryview(self.data)[_CRC_BYTES:])

    @property
    def magic(self) -> int:
        """The magic: 0 or 1 for an entry of the log, which the caller has checked; unchecked within a wrapper."""
        return int(self._unpack(_I8, _MAGIC_POSITION))

    @property
    def attributes(self) -> int:
        """Compression and timestamp type; a signed byte, as in Kafka."""
        return int(self._unpack(_I8, _ATTRIBUTES_POSITION))

    @property
    def compression(self) -> Compression:
        """Compression of a wrapper; raises ``UnsupportedCompressionError`` for unknown numbers."""
        return Compression.of(self.attributes & _COMPRESSION_MASK)

    @property
    def timestamp_type(self) -> TimestampType | None:
        """Origin of the timestamp; ``None`` for messages of magic 0."""
        if self.magic == 0:
            return None
        if self.append_time_ms is not None or self.attributes & _TIMESTAMP_TYPE_BIT:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def timestamp_ms(self) -> int:
        """Timestamp in milliseconds, -1 in magic 0."""
        if self.magic == 0:
            return NO_TIMESTAMP
        return int(self._unpack(_I64, _TIMESTAMP_POSITION)) if self.append_time_ms is None else self.append_time_ms

    @property
    def key(self) -> bytes | None:
        """The key."""
        return self._delimited(self._key_position)[0]

    @property
    def value(self) -> bytes | None:
        """The value; for a wrapper, its compressed messages."""
        return self._delimited(self._delimited(self._key_position)[1])[0]

    @property
    def _key_position(self) -> int:
        return _KEY_POSITION[0] if self.magic == 0 else _KEY_POSITION[1]

    def _delimited(self, position: int) -> tuple[bytes | None, int]:
        """Read length and bytes; return the bytes and the position after them."""
        size = int(self._unpack(_I32, position))
        start = position + _I32.size
        if size < 0:
            return None, start
        if start + size > len(self.data):
            raise CorruptBatchError(
                f"message at offset {self.offset} has a field of {size} bytes, but {len(self.data) - start} bytes "
                "are left"
            )
        return self.data[start : start + size], start + size

    def _unpack(self, field: struct.Struct, position: int) -> int:
        try:
            return int(field.unpack_from(self.data, position)[0])
        except struct.error:
            raise CorruptBatchError(
                f"message at offset {self.offset} ends after {len(self.data)} bytes, within a field"
            ) from None


def unwrap(message: Message, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Message]:
    """Read the messages within a wrapper, with their absolute offsets; a plain message yields only itself.

    A wrapper is read wholly before its first message is yielded, because its last message determines the first
    offset.

    Raises ``CorruptBatchError``, ``InvalidRecordError`` and ``UnsupportedCompressionError`` before the first message.
    Raises ``InvalidRecordError`` also at a wrapper within the wrapper.
    """
    if message.compression is Compression.NONE:
        yield message
        return
    inner = _read_inner(message, max_bytes)
    base_offset = _base_offset(message, inner) if message.magic == 1 else 0
    for entry in inner:
        if entry.attributes & _COMPRESSION_MASK:
            raise InvalidRecordError(f"wrapper at offset {message.offset} holds another wrapper")
        yield Message(base_offset + entry.offset, entry.data, entry.append_time_ms)


def _read_inner(wrapper: Message, max_bytes: int) -> list[Message]:
    if wrapper.compression is Compression.ZSTD:
        raise InvalidRecordError(
            f"wrapper at offset {wrapper.offset} has compression zstd, which magic {wrapper.magic} does not support"
        )
    value = wrapper.value
    if value is None:
        raise InvalidRecordError(f"wrapper at offset {wrapper.offset} has no value")
    data = decompress(value, wrapper.compression, max_bytes=max_bytes, magic=wrapper.magic)
    append_time = wrapper.timestamp_ms if wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    inner: list[Message] = []
    position = 0
    while len(data) - position >= LOG_OVERHEAD_BYTES:
        offset, length = _OFFSET_AND_LENGTH.unpack_from(data, position)
        position += LOG_OVERHEAD_BYTES
        if length < MESSAGE_BYTES_MIN:
            raise CorruptBatchError(
                f"wrapper at offset {wrapper.offset} holds a message of {length} bytes, but {MESSAGE_BYTES_MIN} is "
                "the minimum"
            )
        if length > len(data) - position:
            break
        message = Message(offset, data[position : position + length])
        inner.append(Message(offset, message.data, append_time) if message.magic == 1 else message)
        position += length
    if not inner:
        raise InvalidRecordError(f"wrapper at offset {wrapper.offset} holds no message")
    return inner


def _base_offset(wrapper: Message, inner: list[Message]) -> int:
    if wrapper.offset == 0:  # some versions of librdkafka produce such wrappers
        return 0
    if wrapper.offset < inner[-1].offset:
        raise InvalidRecordError(
            f"wrapper at offset {wrapper.offset} ends with a message of relative offset {inner[-1].offset}"
        )
    return wrapper.offset - inner[-1].offset


def build_messages(
    records: Sequence[Record],
    *,
    magic: int,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """Write records as plain messages, or with a compression as one wrapper; they keep their offsets.

    With ``TimestampType.LOG_APPEND_TIME`` all records get the largest of their timestamps. Magic 0 has no timestamps,
    so they are lost.

    Raises ``UnsupportedForFormatError`` for headers, ``UnsupportedCompressionError`` for zstd, ``InvalidRecordError``
    for no records or offsets that do not ascend, ``InvalidTimestampError`` for timestamps below -1.
    """
    _check_writable(records, magic, compression)
    attributes = _TIMESTAMP_TYPE_BIT if magic > 0 and timestamp_type is TimestampType.LOG_APPEND_TIME else 0
    newest = max(record.timestamp_ms for record in records)
    is_wrapped = compression is not Compression.NONE
    base_offset = records[0].offset if magic > 0 and is_wrapped else 0
    messages = b"".join(
        _write_message(
            magic,
            attributes,
            offset=record.offset - base_offset,
            timestamp_ms=newest if attributes else record.timestamp_ms,
            key=record.key,
            value=record.value,
        )
        for record in records
    )
    if not is_wrapped:
        return messages
    return _write_message(
        magic,
        attributes | compression,
        offset=records[-1].offset,
        timestamp_ms=newest,
        key=None,
        value=compress(messages, compression, magic=magic),
    )


def _check_writable(records: Sequence[Record], magic: int, compression: Compression) -> None:
    if not records:
        raise InvalidRecordError("a message set needs at least one record")
    if compression is Compression.ZSTD:
        raise UnsupportedCompressionError(f"magic {magic} does not support zstd: choose gzip, snappy or lz4")
    for before, after in pairwise(records):
        if after.offset <= before.offset:
            raise InvalidRecordError(f"offset {after.offset} follows offset {before.offset}: offsets must ascend")
    for record in records:
        if record.headers:
            raise UnsupportedForFormatError(
                f"record at offset {record.offset} has headers, which magic {magic} does not support"
            )
        if record.timestamp_ms < NO_TIMESTAMP:
            raise InvalidTimestampError(
                f"timestamp {record.timestamp_ms} is invalid: timestamps are milliseconds from 0, or -1 for none"
            )


def _write_message(
    magic: int, attributes: int, *, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None
) -> bytes:
    parts = [struct.pack(">bb", magic, attributes)]
    if magic > 0:
        parts.append(_I64.pack(timestamp_ms))
    for field in (key, value):
        parts += (_I32.pack(-1),) if field is None else (_I32.pack(len(field)), field)
    content = b"".join(parts)
    return _OFFSET_AND_LENGTH.pack(offset, _CRC_BYTES + len(content)) + _U32.pack(zlib.crc32(content)) + content
