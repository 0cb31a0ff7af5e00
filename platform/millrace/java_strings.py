"""Order and hash of Java's strings. Some results of Kafka depend on them."""

from __future__ import annotations

import struct
from functools import lru_cache

_MASK = 0xFFFFFFFF


def java_order(text: str) -> bytes:
    """Return a sort key in Java's string order, by UTF-16 units, which differs from Python's beyond U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


@lru_cache(maxsize=65536)
def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` over UTF-16 units, as an unsigned number of 32 bits."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", java_order(text)):
        value = (31 * value + unit) & _MASK
    return value
