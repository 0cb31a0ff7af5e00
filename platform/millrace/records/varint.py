"""Zig-zag variable-length integers of the v2 record, read with Kafka's tolerance.

Seven bits a byte, lowest first, the top bit says that another byte follows; zig-zag maps small negative numbers to
small unsigned ones (Kafka's ``ByteUtils``, the same as protobuf's sint32 and sint64). Kafka accepts longer encodings
than needed and drops bits beyond the type's width, but not a sixth (eleventh) byte; so does this.
"""

from __future__ import annotations

from millrace.errors import CorruptBatchError

_VARINT_SHIFT_MAX = 28
_VARLONG_SHIFT_MAX = 63
_ONE_BYTE = [bytes(((value << 1) ^ (value >> 63),)) for value in range(-64, 64)]


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Read a 32-bit signed integer; return it and the position after it. Raises ``CorruptBatchError``."""
    if position < len(data) and (raw := data[position]) < 0x80:  # nearly all of them
        return (raw >> 1) ^ -(raw & 1), position + 1
    raw, position = _read_unsigned(data, position, _VARINT_SHIFT_MAX)
    raw &= 0xFFFF_FFFF
    return (raw >> 1) ^ -(raw & 1), position


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """Read a 64-bit signed integer; return it and the position after it. Raises ``CorruptBatchError``."""
    raw, position = _read_unsigned(data, position, _VARLONG_SHIFT_MAX)
    raw &= 0xFFFF_FFFF_FFFF_FFFF
    return (raw >> 1) ^ -(raw & 1), position


def _read_unsigned(data: bytes, position: int, shift_max: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while (byte := data[position]) >= 0x80:
            value |= (byte & 0x7F) << shift
            position += 1
            shift += 7
            if shift > shift_max:
                raise CorruptBatchError(f"integer at byte {position} of the records is too long")
    except IndexError:
        raise CorruptBatchError("the records end within an integer") from None
    return value | byte << shift, position + 1


def write_varint(value: int) -> bytes:
    """Write a signed integer of up to 64 bits in as few bytes as it takes; 32-bit values come out as varints."""
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
    """Size in bytes of what ``write_varint`` writes."""
    if -64 <= value <= 63:
        return 1
    raw = (value << 1) ^ (value >> 63)
    return max(1, (raw.bit_length() + 6) // 7)
