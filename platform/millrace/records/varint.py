"""Zig-zag variable-length integers of the v2 record, read with Kafka's tolerance.

Each byte holds seven bits, lowest first; its top bit says that another byte follows. Zig-zag maps small negative
numbers to small unsigned ones (Kafka's ``ByteUtils``, the same as protobuf's sint32 and sint64). Kafka accepts longer
encodings than needed and drops bits beyond the type's width, but refuses a sixth (eleventh) byte. This module does
the same.
"""

from __future__ import annotations

from millrace.errors import CorruptBatchError

_ONE_BYTE = [bytes(((value << 1) ^ (value >> 63),)) for value in range(-64, 64)]


def read_varint(data: bytes, position: int, bits: int = 32) -> tuple[int, int]:
    """Read a signed integer of ``bits`` (32 or 64); return it and the position after it.

    Integers of one and two bytes, the usual sizes, take a fast path. Raises ``CorruptBatchError``.
    """
    try:
        raw = data[position]
        if raw < 0x80:
            return (raw >> 1) ^ -(raw & 1), position + 1
        byte = data[position + 1]
        raw = raw & 0x7F | (byte & 0x7F) << 7
        position += 2
        shift = 7
        while byte >= 0x80:
            shift += 7
            if shift >= bits:
                raise CorruptBatchError(f"integer before byte {position} of the records is too long")
            byte = data[position]
            raw |= (byte & 0x7F) << shift
            position += 1
    except IndexError:
        raise CorruptBatchError("the records end within an integer") from None
    raw &= (1 << bits) - 1
    return (raw >> 1) ^ -(raw & 1), position


def write_varint(value: int) -> bytes:
    """Write a signed integer of up to 64 bits with the fewest bytes; 32-bit values become varints."""
    if -64 <= value <= 63:
        return _ONE_BYTE[value + 64]
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def varint_size(value: int) -> int:
    """Return the number of bytes that ``write_varint`` writes."""
    if -64 <= value <= 63:
        return 1
    raw = (value << 1) ^ (value >> 63)
    return max(1, (raw.bit_length() + 6) // 7)
