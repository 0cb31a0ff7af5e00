"""Tests of the fixed, even placement of buckets on state partitions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from millrace_streams.runners.spreading import PARTITIONS_MAX, places, spark_hash, state_partitions


@pytest.mark.parametrize("partitions", [1, 2, 4, 8, 16, 32, PARTITIONS_MAX])
def test_bucket_b_is_in_partition_b_modulo_any_power_of_two(partitions: int) -> None:
    hashes = spark_hash(np.asarray(places(), dtype=np.uint32)) % partitions
    assert hashes.tolist() == [bucket % partitions for bucket in range(len(places()))]


def test_each_bucket_has_a_place_of_its_own_that_never_changes() -> None:
    assert max(Counter(places()).values()) == 1
    assert min(places()) >= 0
    # Every checkpoint has these numbers as keys of its state.
    assert places()[:8] == [38, 64, 57, 80, 37, 29, 32, 35]


@pytest.mark.parametrize(
    ("buckets", "cores", "partitions"), [(1, 8, 1), (4, 2, 2), (4, 8, 4), (6, 8, 4), (3, 1, 1), (1000, 1000, 64)]
)
def test_there_are_no_more_partitions_than_buckets_or_cores(buckets: int, cores: int, partitions: int) -> None:
    assert state_partitions(buckets, cores) == partitions
