"""Even assignment of buckets to Spark's state partitions.

Spark puts a group into the partition ``hash(key) mod partitions``. Few small numbers are distributed badly. For
example, three of the keys 0, 1, 2, 3 fall into one of four partitions, so one task has three quarters of the work. So
buckets are grouped by other numbers, their *places*, whose hash is the bucket's number modulo 64. For any power of two
up to 64, bucket ``b`` is then in partition ``b mod partitions``.

Invariant: a bucket's place depends only on its number, because places are state keys in every checkpoint.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from pyspark.sql import Column

PARTITIONS_MAX: Final = 64
"""Largest number of partitions with an even distribution."""
_PLACES: Final = 1024
"""Buckets beyond keep Spark's placement, because so many are distributed evenly enough."""
_SEED: Final = 42


def state_partitions(buckets: int, cores: int) -> int:
    """Return the number of state partitions of a query: a power of two, at most the number of buckets or cores."""
    return 1 << (max(1, min(buckets, cores, PARTITIONS_MAX)).bit_length() - 1)


def spread(bucket: Column) -> Column:
    """Return the places of a column of buckets, for the grouping."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

    # Places are not negative, so buckets beyond them get distinct keys.
    return F.coalesce(F.get(F.lit(places()), bucket), -1 - bucket)


@lru_cache(maxsize=1)
def places() -> list[int]:
    """Return the places of the first buckets: for each, the next number with the right hash."""
    # Four times the average need, so that each hash has enough numbers.
    hashes = spark_hash(np.arange(4 * _PLACES, dtype=np.uint32)) % PARTITIONS_MAX
    fitting = [np.flatnonzero(hashes == kind) for kind in range(PARTITIONS_MAX)]
    return [int(fitting[bucket % PARTITIONS_MAX][bucket // PARTITIONS_MAX]) for bucket in range(_PLACES)]


def spark_hash(numbers: Any) -> Any:
    """Return Spark's partitioning hash of a column of ints (32-bit Murmur3), as unsigned numbers."""
    mixed = _rotated(numbers * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = _rotated(mixed ^ np.uint32(_SEED), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> np.uint32(16))


def _rotated(numbers: Any, bits: int) -> Any:
    return (numbers << np.uint32(bits)) | (numbers >> np.uint32(32 - bits))
