"""Kafka's hash from a group id or transactional id to a partition."""

from __future__ import annotations

from millrace.java_strings import java_hash


def partition_of(key: str, count: int) -> int:
    """Return the partition of ``key`` among ``count``: ``Utils.abs(key.hashCode()) % count``.

    Kafka's ``abs`` gives 0 for the smallest integer.
    """
    value = java_hash(key)
    if value & 0x80000000:
        value = (1 << 32) - value
    return (0 if value == 0x80000000 else value) % count
