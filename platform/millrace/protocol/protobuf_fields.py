"""Fields of a protobuf message, found without copying their values.

A field begins with its tag, which has its number and the kind of its value. See "Encoding" in the documentation of
Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final

from millrace.errors import InvalidRequestError

VARINT: Final = 0
_FIXED64: Final = 1
LENGTH: Final = 2
_FIXED32: Final = 5


def tag_of(number: int, kind: int = LENGTH) -> int:
    """Return the tag of a field."""
    return number << 3 | kind


def read_fields(view: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the tag of each field, where the field starts, and where its value starts and ends.

    Raises ``InvalidRequestError`` for bytes that are no message.
    """
    while position < end:
        field_start = position
        value_start, tag = read_varint(view, position)
        kind = tag & 7
        if kind == LENGTH:
            value_start, length = read_varint(view, value_start)
            position = value_start + length
        elif kind == VARINT:
            position, _ = read_varint(view, value_start)
        elif kind == _FIXED64:
            position = value_start + 8
        elif kind == _FIXED32:
            position = value_start + 4
        else:
            raise InvalidRequestError(f"a message has a field of kind {kind} at {field_start}")
        if position > end:
            raise InvalidRequestError(f"a message ends at {end}, but one of its fields ends at {position}")
        yield tag, field_start, value_start, position


def without(
    view: memoryview, start: int, end: int, tag: int, budget: Iterable[object] = repeat(None)
) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a message without the fields of a tag, and where the values of these fields start and end.

    Each field takes one element of ``budget``. When it has no more, the fields that follow are not looked at, and stay
    in the message.

    Raises ``InvalidRequestError`` for bytes that are no message.
    """
    outside, spans, copied_to = bytearray(), [], start
    for (found, field_start, value_start, value_end), _ in zip(read_fields(view, start, end), budget, strict=False):
        if found == tag:
            outside += view[copied_to:field_start]
            copied_to = value_end
            spans.append((value_start, value_end))
    outside += view[copied_to:end]
    return bytes(outside), spans


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
