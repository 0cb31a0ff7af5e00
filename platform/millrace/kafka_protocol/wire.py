"""Primitives of Kafka's encoding that the compiled codecs call.

Integers are big-endian. A length in a flexible version is an unsigned varint, one more than the length (0: null).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Final, TypeAlias
from uuid import UUID

STRING_BYTES_MAX: Final = 2**15 - 1
"""Longest string in any version, as Kafka's generated classes enforce it."""
Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes of a message, or a part of it. A ``memoryview`` has one-byte items."""
TaggedField: TypeAlias = tuple[int, bytes]
"""Tag and content of a tagged field that the definition does not know."""
_VARINT_BYTES_MAX: Final = 5
_UINT32_MAX: Final = 2**32 - 1


class WireError(Exception):
    """Reason why bytes or a value are invalid.

    The caller adds message, field and position.
    """


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits: (value, next position). Raises ``IndexError``, ``WireError``."""
    value = 0
    for number in range(_VARINT_BYTES_MAX):
        byte = data[position + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            if value > _UINT32_MAX:
                break
            return value, position + number + 1
    raise WireError("an unsigned varint of more than 32 bits")


def varint_bytes(value: int) -> bytes:
    """Write an unsigned varint."""
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


SHORT_VARINTS: Final = tuple(bytes((value,)) for value in range(128))
"""Unsigned varints of one byte, by value."""


@lru_cache(maxsize=4096)
def uuid_of(data: bytes) -> UUID:
    """Return the UUID of 16 bytes. The cache serves topic ids, which come again and again."""
    return UUID(bytes=data)


def length_problem(length: int, left: int, unit: str = "bytes") -> WireError:
    """Return the error of a length that cannot be: negative, or more than the bytes that are left."""
    if length == -1:
        return WireError("null, but the field is not nullable in this version")
    if length < 0:
        return WireError(f"a length of {length}")
    return WireError(f"{length} {unit} wanted, but only {left} bytes are left")


def string_problem(length: int) -> WireError:
    """Return the error of a string that is longer than Kafka allows."""
    return WireError(f"a string of {length} bytes, but at most {STRING_BYTES_MAX} are allowed")


def elements_problem(elements_max: int) -> WireError:
    """Return the error of a message with more array elements than its reader takes."""
    return WireError(f"more than {elements_max} elements in one message: send several smaller ones")


def buffer_problem(value: object) -> WireError:
    """Return the error of a value that is neither bytes, nor a bytearray, nor a memoryview."""
    return WireError(f"expected bytes, found {type(value).__name__}")


def write_tagged(
    add: Callable[[Buffer], object],
    known: Iterable[tuple[int, bytes]],
    unknown: Collection[TaggedField],
    declared: Collection[int],
) -> None:
    """Write the tagged fields of a structure, by tag.

    Raises ``WireError`` if tags of ``unknown`` do not ascend, or if one is a tag that the definition declares.
    """
    before = -1
    for tag, _ in unknown:
        if tag <= before:
            raise WireError(f"unknown tagged field {tag} after {before}, but tags must ascend")
        if tag in declared:
            raise WireError(f"unknown tagged field {tag}, but this tag is declared")
        before = tag
    fields = sorted((*known, *unknown), key=lambda field: field[0])
    add(varint_bytes(len(fields)))
    for tag, content in fields:
        add(varint_bytes(tag) + varint_bytes(len(content)))
        add(content)
