"""Tests of the partition of a key in an internal topic."""

from __future__ import annotations

import pytest

from millrace_broker.coordinators import partition_of


@pytest.mark.parametrize(
    ("key", "count", "partition"),
    [
        ("test-consumer-group", 50, 31),  # hash -1793216381
        ("", 50, 0),
        ("a", 50, 47),
        ("\U0001f600", 50, 1772899 % 50),  # 0xD83D * 31 + 0xDE00
        ("polygenelubricants", 50, 0),  # the smallest integer: Kafka's abs of it is 0
    ],
)
def test_partition_is_that_of_java(key: str, count: int, partition: int) -> None:
    assert partition_of(key, count) == partition
