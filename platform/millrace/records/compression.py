"""Codecs of row batches, compatible with Kafka's (``org.apache.kafka.common.compress``).

Codec numbers, framings and tolerated errors are those of Kafka 3.9:

- *gzip*: consecutive members; bytes behind the last member are ignored;
- *snappy*: xerial's framing (16-byte header, then chunks with a big-endian length), or one raw block without it;
- *lz4*: one frame of independent blocks; the content checksum and all bytes after the end mark are ignored. Writers
  of magic 0 computed the header checksum over the wrong bytes, so readers of magic 0 do not check it;
- *zstd*: consecutive frames up to the last byte.

Columnar batches do not use this module, because Arrow compresses their buffers one by one.

Invariant: a decompressor never holds more than ``max_bytes`` of output, whatever sizes the input declares.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import pyarrow as pa

from millrace.errors import CorruptBatchError, UnsupportedCompressionError
from millrace.records.xxhash32 import xxhash32

DECOMPRESSED_BYTES_MAX: Final = 2**30
"""Default limit of a decompressed body that a reader accepts."""

_READ_BYTES: Final = 32_768
_GZIP_INPUT_BYTES: Final = 8_192
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_HEADER_BYTES: Final = 10
_GZIP_MEMBER_BYTES_MIN: Final = 18
_GZIP_HEADER_CHECKSUM: Final = 0x02
_GZIP_EXTRA: Final = 0x04
_GZIP_NAME: Final = 0x08
_GZIP_COMMENT: Final = 0x10

_SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
_SNAPPY_HEADER: Final = _SNAPPY_MAGIC + struct.pack(">ii", 1, 1)
_SNAPPY_BLOCK_BYTES: Final = 32_768
_SNAPPY_VERSION_MIN: Final = 1
_SNAPPY_READ_BYTES: Final = 2048  # number of bytes that Kafka reads at a time

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_END_MARK: Final = bytes(4)
_LZ4_STORED: Final = 0x8000_0000
_LZ4_BLOCK_BYTES: Final = 65_536
_LZ4_WRITTEN_FLAGS: Final = 0x60  # version 1, independent blocks, no checksums
_LZ4_WRITTEN_BLOCK_SIZE: Final = 0x40  # 64 KiB

_ZSTD_LEVEL_DEFAULT: Final = 3


class BodyTooLargeError(CorruptBatchError):
    """A body is larger after decompression than its reader allows."""


class Compression(IntEnum):
    """Compression of a batch, numbered as in the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def parse(cls, name: str) -> Compression:
        """Parse a configured name (``lz4``); ``uncompressed`` is Kafka's other name for ``none``.

        Raises ``UnsupportedCompressionError`` for any other name.
        """
        lowered = name.strip().lower()
        try:
            return cls.NONE if lowered == "uncompressed" else cls[lowered.upper()]
        except KeyError:
            names = ", ".join(member.name.lower() for member in cls)
            raise UnsupportedCompressionError(f"unknown compression {name!r}: choose one of {names}") from None

    @classmethod
    def of(cls, number: int) -> Compression:
        """Interpret the number in a batch's attributes; raises ``UnsupportedCompressionError`` for 5 to 7."""
        try:
            return cls(number)
        except ValueError:
            raise UnsupportedCompressionError(f"unknown compression number {number}: expected 0 to 4") from None


def compress(data: bytes, compression: Compression, *, level: int | None = None, magic: int = 2) -> bytes:
    """Compress the records of a batch.

    ``level`` is the codec's own (gzip 1-9, lz4 1-12, zstd 1-22); the default is Kafka's. zstd takes the nearest level
    that it supports. ``magic`` 0 gives the lz4 frame that readers of magic 0 expect. Raises
    ``UnsupportedCompressionError`` for a level that the codec does not have.
    """
    try:
        if compression is Compression.NONE:
            return data
        if compression is Compression.GZIP:
            compressor = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.DEFLATED, 31)
            return compressor.compress(data) + compressor.flush()
        if compression is Compression.SNAPPY:
            return _compress_snappy(data)
        if compression is Compression.LZ4:
            return _compress_lz4(data, level, magic)
        codec = pa.Codec("zstd", compression_level=_ZSTD_LEVEL_DEFAULT if level is None else level)
        compressed: bytes = codec.compress(data, asbytes=True)
        return compressed
    except (ValueError, zlib.error, pa.ArrowException) as error:
        raise UnsupportedCompressionError(f"{compression.name.lower()} level {level}: {error}") from error


def decompress(
    data: bytes, compression: Compression, *, max_bytes: int = DECOMPRESSED_BYTES_MAX, magic: int = 2
) -> bytes:
    """Decompress a batch's records.

    Raises ``CorruptBatchError`` if ``data`` is not valid for ``compression``, and ``BodyTooLargeError`` if it grows
    beyond ``max_bytes``.
    """
    return b"".join(decompressed_chunks(data, compression, max_bytes=max_bytes, magic=magic))


def decompressed_chunks(
    data: bytes, compression: Compression, *, max_bytes: int = DECOMPRESSED_BYTES_MAX, magic: int = 2
) -> Iterator[bytes]:
    """Decompress piece by piece, so that the data before a damaged place can still be read.

    Raises ``CorruptBatchError`` at the damage, and ``BodyTooLargeError`` when the output grows beyond ``max_bytes``.
    """
    total = 0
    for chunk in _chunks(data, compression, max_bytes, magic):
        total += len(chunk)
        if total > max_bytes:
            raise BodyTooLargeError(f"{compression.name.lower()} body is larger than {max_bytes} bytes decompressed")
        yield chunk


def _chunks(data: bytes, compression: Compression, max_bytes: int, magic: int) -> Iterator[bytes]:
    if compression is Compression.NONE:
        return iter((data,))
    if compression is Compression.GZIP:
        return _decompress_gzip(data)
    if compression is Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if compression is Compression.LZ4:
        return _decompress_lz4(data, magic)
    return _read_stream(data, "zstd")


def _read_stream(data: bytes, codec: str) -> Iterator[bytes]:
    if not data:
        raise CorruptBatchError(f"{codec} body is empty")
    delivered = 0
    # Read into a buffer of this function, because Arrow's ``read`` leaks its result when it fails.
    piece = memoryview(bytearray(_READ_BYTES))
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while length := stream.readinto(piece):
                delivered += length
                yield bytes(piece[:length])
    except (OSError, pa.ArrowException) as error:
        yield _read_up_to_damage(data, codec, delivered)
        raise CorruptBatchError(f"{codec} body cannot be decompressed: {error}") from error


def _read_up_to_damage(data: bytes, codec: str, skipped_bytes: int) -> bytes:
    """Decompress the data after ``skipped_bytes`` up to the damage.

    The function reads single bytes, because a read that meets the damage returns nothing.
    """
    rest = bytearray()
    piece = memoryview(bytearray(_READ_BYTES))
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while skipped_bytes > 0:
                skipped_bytes -= stream.readinto(piece[: min(skipped_bytes, _READ_BYTES)])
            while stream.readinto(piece[:1]):
                rest += piece[:1]
    except (OSError, pa.ArrowException):
        return bytes(rest)  # the caller reports the same error
    return bytes(rest)


# --- gzip ----------------------------------------------------------------------------------------------------


def _decompress_gzip(data: bytes) -> Iterator[bytes]:
    # Read the headers and trailers of members here, because zlib returns no data when a trailer is wrong.
    position = 0
    while True:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        position = _gzip_header_end(data, position)
        checksum = size = 0
        try:
            while not inflater.eof:
                piece = inflater.unconsumed_tail
                if not piece:
                    piece = data[position : position + _GZIP_INPUT_BYTES]
                    position += len(piece)
                chunk = inflater.decompress(piece, _READ_BYTES)
                if not piece and not chunk and not inflater.eof:
                    raise CorruptBatchError("gzip body ends before its end mark")
                checksum = zlib.crc32(chunk, checksum)
                size += len(chunk)
                yield chunk
        except zlib.error as error:
            raise CorruptBatchError(f"gzip body cannot be decompressed: {error}") from error
        position -= len(inflater.unused_data)
        if data[position : position + 8] != struct.pack("<II", checksum, size & 0xFFFF_FFFF):
            raise CorruptBatchError("gzip body has a wrong checksum or size at its end")
        position += 8
        if len(data) - position < _GZIP_MEMBER_BYTES_MIN or not data.startswith(_GZIP_MAGIC, position):
            return


def _gzip_header_end(data: bytes, position: int) -> int:
    """Return the position after the header of the member at ``position`` (RFC 1952, 2.3)."""
    if not data.startswith(_GZIP_MAGIC, position):
        raise CorruptBatchError("gzip body does not begin with the format's magic number")
    start, flags = position, data[position + 3] if len(data) > position + 3 else 0
    position += _GZIP_HEADER_BYTES
    if flags & _GZIP_EXTRA:
        position += 2 + int.from_bytes(data[position : position + 2], "little")
    for flag in (_GZIP_NAME, _GZIP_COMMENT):
        if flags & flag:
            position = data.find(0, position) + 1 or len(data) + 1
    if flags & _GZIP_HEADER_CHECKSUM:
        if data[position : position + 2] != struct.pack("<H", zlib.crc32(data[start:position]) & 0xFFFF):
            raise CorruptBatchError("gzip header fails its checksum")
        position += 2
    if position > len(data):
        raise CorruptBatchError("gzip body ends within its header")
    return position


# --- snappy --------------------------------------------------------------------------------------------------


def _compress_snappy(data: bytes) -> bytes:
    codec = pa.Codec("snappy")
    parts = [_SNAPPY_HEADER]
    for start in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        block = codec.compress(data[start : start + _SNAPPY_BLOCK_BYTES], asbytes=True)
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: bytes, max_bytes: int) -> Iterator[bytes]:
    if not data.startswith(_SNAPPY_MAGIC) or len(data) < len(_SNAPPY_HEADER):
        yield _decompress_snappy_block(data, max_bytes)
        return
    pending = b""
    for chunk in _snappy_chunks(data, max_bytes):
        if chunk is None:
            # SnappyInputStream ends a read here and continues with the next read. An empty read ends the body.
            if not pending:
                return
            yield pending
            pending = b""
            continue
        pending += chunk
        # A read that meets damage returns nothing, not even the data before the damage.
        whole = len(pending) - len(pending) % _SNAPPY_READ_BYTES
        if whole:
            yield pending[:whole]
            pending = pending[whole:]
    yield pending


def _snappy_chunks(data: bytes, max_bytes: int) -> Iterator[bytes | None]:
    """Decompress the chunks of consecutive framed streams, as snappy-java's ``SnappyInputStream`` does.

    None stands for a header whose magic number is wrong after its first four bytes.
    """
    position = len(_SNAPPY_HEADER)
    while len(data) - position >= 4:
        (size,) = struct.unpack_from(">i", data, position)
        if data.startswith(_SNAPPY_MAGIC[:4], position):  # another framed stream follows this one
            if len(data) - position < len(_SNAPPY_HEADER):
                raise CorruptBatchError("snappy body ends within the header of a second stream")
            (version,) = struct.unpack_from(">i", data, position + len(_SNAPPY_MAGIC))
            if not data.startswith(_SNAPPY_MAGIC, position):
                yield None
            elif version < _SNAPPY_VERSION_MIN:
                raise CorruptBatchError(f"snappy body has a second stream of version {version}")
            position += len(_SNAPPY_HEADER)
            continue
        position += 4
        if not 0 < size <= len(data) - position:
            raise CorruptBatchError(f"snappy chunk of {size} bytes, but {len(data) - position} bytes are left")
        yield _decompress_snappy_block(data[position : position + size], max_bytes)
        position += size


def _decompress_snappy_block(block: bytes, max_bytes: int) -> bytes:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise CorruptBatchError("snappy block does not begin with its size")
    if size > max_bytes:
        raise BodyTooLargeError(f"snappy block declares {size} bytes, more than the {max_bytes} allowed")
    try:
        decompressed: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatchError(f"snappy block cannot be decompressed: {error}") from error
    return decompressed


# --- lz4 -----------------------------------------------------------------------------------------------------


def _compress_lz4(data: bytes, level: int | None, magic: int) -> bytes:
    # Write the blocks here, because Arrow's frames link their blocks and Kafka's reader accepts only independent
    # ones.
    codec = pa.Codec("lz4_raw") if level is None else pa.Codec("lz4_raw", compression_level=level)
    parts = [_lz4_header(_LZ4_WRITTEN_FLAGS, _LZ4_WRITTEN_BLOCK_SIZE, magic)]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_END_MARK)
    return b"".join(parts)


def _lz4_header(flags: int, block_size: int, magic: int = 2) -> bytes:
    descriptor = bytes((flags, block_size))
    checked = _LZ4_MAGIC + descriptor if magic == 0 else descriptor
    return _LZ4_MAGIC + descriptor + bytes(((xxhash32(checked) >> 8) & 0xFF,))


def _decompress_lz4(data: bytes, magic: int) -> Iterator[bytes]:
    flags, block_size, start = _read_lz4_header(data, magic)
    end, error = _lz4_blocks_end(data, start, 4 * bool(flags & 0x10), 1 << (2 * (block_size >> 4) + 8))
    # Pass the same blocks to liblz4 under a header without the parts that Kafka ignores.
    frame = _lz4_header(_LZ4_WRITTEN_FLAGS | flags & 0x10, block_size) + data[start:end] + _LZ4_END_MARK
    yield from _read_stream(frame, "lz4")
    if error is not None:
        raise error


def _read_lz4_header(data: bytes, magic: int) -> tuple[int, int, int]:
    """Check the frame header; return flags, block size byte and the position of the first block."""
    if len(data) < 7:
        raise CorruptBatchError(f"lz4 body of {len(data)} bytes is shorter than a frame header")
    if not data.startswith(_LZ4_MAGIC):
        raise CorruptBatchError("lz4 body does not begin with the frame's magic number")
    flags, block_size = data[4], data[5]
    if flags & 0xC3 != 0x40 or block_size & 0x8F or not 4 <= block_size >> 4 <= 7:
        raise CorruptBatchError(f"lz4 frame with flags {flags:#x}, block size {block_size:#x} is of an unknown version")
    if not flags & 0x20:
        raise CorruptBatchError("lz4 frame has linked blocks; only independent ones are allowed")
    end = 14 if flags & 0x08 else 6
    if len(data) <= end:
        raise CorruptBatchError("lz4 body ends within its frame header")
    if magic > 0 and data[end] != (xxhash32(data[4:end]) >> 8) & 0xFF:
        raise CorruptBatchError("lz4 frame header fails its checksum")
    return flags, block_size, end + 1


def _lz4_blocks_end(
    data: bytes, position: int, checksum_bytes: int, block_bytes_max: int
) -> tuple[int, CorruptBatchError | None]:
    """Walk the blocks and return the end of the valid ones.

    The second value is the error at that end, or None if the end mark is there.
    """
    while True:
        if len(data) - position < 4:
            return position, CorruptBatchError("lz4 body ends before its end mark")
        (size,) = struct.unpack_from("<I", data, position)
        if size == 0:
            return position, None
        size &= ~_LZ4_STORED
        if size > block_bytes_max:
            return position, CorruptBatchError(f"lz4 block of {size} bytes, but the frame allows {block_bytes_max}")
        following = position + 4 + size + checksum_bytes
        if following > len(data):
            return position, CorruptBatchError("lz4 body ends within a block")
        position = following
