"""Kafka's hash from a group id or transactional id to a partition."""

from __future__ import annotations

import struct
from functools import lru_cache

_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65536)
def _java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` over UTF-16 units, as an unsigned number of 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & _MASK
    return value


def partition_of(key: str, count: int) -> int:
    """Return the partition of ``key`` among ``count``: ``Utils.abs(key.hashCode()) % count``.

    Kafka's ``abs`` gives 0 for the smallest integer.
    """
    value = _java_hash(key)
    if value & 0x80000000:
        value = (1 << 32) - value
    return (0 if value == 0x80000000 else value) % count
