"""Kafka's murmur2 of one key (``Utils.murmur2``), an oracle for columns of keys."""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_R: Final = 24
_MASK: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the hash of one key, as Kafka's signed 32-bit integer."""
    h = (_SEED ^ len(key)) & _MASK
    full = len(key) & ~3
    for at in range(0, full, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _MASK
        k = (k ^ (k >> _R)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if full < len(key):
        h = (h ^ int.from_bytes(key[full:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


def partition_for_key(key: bytes, num_partitions: int) -> int:
    """Return the partition of one key."""
    return (murmur2(key) & 0x7FFFFFFF) % num_partitions
