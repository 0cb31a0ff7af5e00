"""Fields of a protobuf message, found without copying their values.

See "Encoding" in the documentation of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.errors import InvalidRequestError

_VARINT: Final = 0
_FIXED64: Final = 1
_LENGTH: Final = 2
_FIXED32: Final = 5


def read_fields(view: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, start, and value span of each field with a length; numeric fields are skipped.

    Raises ``InvalidRequestError`` for bytes that are no message.
    """
    while position < end:
        field_start = position
        position, tag = read_varint(view, position)
        kind = tag & 7
        if kind == _LENGTH:
            start, length = read_varint(view, position)
            position = start + length
            if position > end:
                raise InvalidRequestError(f"a message ends at {end}, but one of its fields ends at {position}")
            yield tag >> 3, field_start, start, position
        elif kind == _VARINT:
            position, _ = read_varint(view, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        else:
            raise InvalidRequestError(f"a message has a field of kind {kind} at {field_start}")


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Read a number. Return the position after it, and the number. Raises ``InvalidRequestError``."""
    if position < len(view) and (byte := view[position]) < 0x80:
        return position + 1, byte
    value = shift = 0
    while True:
        if position >= len(view) or shift > 63:
            raise InvalidRequestError(f"a message has no number at {position}")
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return position, value
        shift += 7
