"""Order of names in answers as in Kafka's ``java.util.HashMap``.

The protocol promises no order. Client programs and their tests compare answers as lists all the same, so answers
have the order of Kafka's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, TypeVar

T = TypeVar("T")
_BITS: Final = 0xFFFFFFFF
CAPACITY_DEFAULT: Final = 16
"""Number of buckets of a map that is made without a size, and has at most 12 names."""
_NAME_CHARACTERS_MAX: Final = 64
"""Names of options, quotas and parts of entities are shorter. Longer ones in a request are unknown, and their hashes
would hold the event loop for seconds.
"""


def capacity_of(names: int) -> int:
    """Return the number of buckets of a map that has grown to this many names.

    A map grows when it has more names than three quarters of its buckets.
    """
    capacity = 1
    while names > capacity * 3 // 4:
        capacity *= 2
    return capacity


def in_hash_order(items: Iterable[T], name: Callable[[T], str], capacity: int = CAPACITY_DEFAULT) -> list[T]:
    """Sort items by the buckets of their names. Items of one bucket keep their order."""
    return sorted(items, key=lambda item: _bucket(name(item)[:_NAME_CHARACTERS_MAX], capacity))


@lru_cache(maxsize=4096)
def _bucket(name: str, capacity: int) -> int:
    units = name.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & _BITS
    return (code ^ code >> 16) & (capacity - 1)
