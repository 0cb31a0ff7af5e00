"""Tests of partitions grouped by topic."""

from __future__ import annotations

from millrace.partitions import numbers_by_topic


def test_topics_and_numbers_keep_the_order_of_the_partitions() -> None:
    found = numbers_by_topic([("b", 2), ("a", 0), ("b", 1)])
    assert found == {"b": (2, 1), "a": (0,)}
    assert list(found) == ["b", "a"]


def test_no_partitions_have_no_topics() -> None:
    assert numbers_by_topic([]) == {}
