"""Which of Spark's state partitions a bucket is in: so chosen that all have the same share.

Spark puts a group into the partition ``hash(key) mod partitions``. The numbers of few buckets fall badly: three of 0,
1, 2, 3 fall into one of four partitions, and three quarters of the work into one task. So buckets are grouped by other
numbers, their *places*, whose hash is that of the bucket's number modulo 64: for any power of two up to that, bucket
``b`` is then in partition ``b mod partitions``.

Invariant: a bucket's place depends on nothing but its number. Places are keys of state, in every checkpoint.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from pyspark.sql import Column

PARTITIONS_MAX: Final = 64
"""The highest number of partitions over which buckets are spread evenly."""
_PLACES: Final = 1024
"""Buckets beyond are where Spark puts them: so many are spread evenly enough."""
_SEED: Final = 42


def state_partitions(buckets: int, cores: int) -> int:
    """How many state partitions a query has: a power of two, and no more than buckets or cores."""
    return 1 << (max(1, min(buckets, cores, PARTITIONS_MAX)).bit_length() - 1)


def spread(bucket: Column) -> Column:
    """The places of a column of buckets, to group by."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's users know it

    # Places are not negative: what is beyond them shares no key with one.
    return F.coalesce(F.get(F.lit(places()), bucket), -1 - bucket)


@lru_cache(maxsize=1)
def places() -> list[int]:
    """The places of the first buckets: numbers that fit, each the next one of its kind."""
    # Four times as many as are needed on average: each kind has enough of them.
    hashes = spark_hash(np.arange(4 * _PLACES, dtype=np.uint32)) % PARTITIONS_MAX
    fitting = [np.flatnonzero(hashes == kind) for kind in range(PARTITIONS_MAX)]
    return [int(fitting[bucket % PARTITIONS_MAX][bucket // PARTITIONS_MAX]) for bucket in range(_PLACES)]


def spark_hash(numbers: Any) -> Any:
    """What Spark's hash partitioning makes of a column of ints: Murmur3 of 32 bits; as unsigned numbers."""
    mixed = _rotated(numbers * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    mixed = _rotated(mixed ^ np.uint32(_SEED), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)
    mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return mixed ^ (mixed >> np.uint32(16))


def _rotated(numbers: Any, bits: int) -> Any:
    return (numbers << np.uint32(bits)) | (numbers >> np.uint32(32 - bits))
