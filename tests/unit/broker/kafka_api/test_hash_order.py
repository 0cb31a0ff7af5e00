"""Tests of the order of names in answers, against Kafka 4.3."""

from __future__ import annotations

import pytest

from millrace_broker.kafka_api.hash_order import capacity_of, in_hash_order

_KAFKA = """\
compression.type remote.log.delete.on.disable leader.replication.throttled.replicas remote.storage.enable
min.insync.replicas segment.jitter.ms remote.log.copy.disable local.retention.ms cleanup.policy flush.ms
follower.replication.throttled.replicas compression.lz4.level segment.bytes retention.ms compression.gzip.level
flush.messages compression.zstd.level max.compaction.lag.ms file.delete.delay.ms max.message.bytes
min.compaction.lag.ms message.timestamp.type local.retention.bytes preallocate index.interval.bytes
min.cleanable.dirty.ratio unclean.leader.election.enable retention.bytes delete.retention.ms
message.timestamp.after.max.ms message.timestamp.before.max.ms segment.ms segment.index.bytes
"""
"""Options of a topic in the order of Kafka's DescribeConfigs."""
_TOPIC_OPTIONS = _KAFKA.split()


def test_options_of_a_topic_have_the_order_of_kafka() -> None:
    capacity = capacity_of(len(_TOPIC_OPTIONS))
    assert in_hash_order(_TOPIC_OPTIONS, name=str, capacity=capacity) == _TOPIC_OPTIONS
    assert in_hash_order(reversed(_TOPIC_OPTIONS), name=str, capacity=capacity)[0] == _TOPIC_OPTIONS[0]


def test_parts_of_an_entity_have_the_order_of_kafka() -> None:
    assert in_hash_order(["user", "client-id"], name=str) == ["client-id", "user"]
    assert in_hash_order(["client-id", "user"], name=str) == ["client-id", "user"]


@pytest.mark.parametrize(("names", "capacity"), [(0, 1), (1, 2), (2, 4), (3, 4), (4, 8), (12, 16), (13, 32), (33, 64)])
def test_a_map_grows_before_more_than_three_of_four_buckets_are_used(names: int, capacity: int) -> None:
    assert capacity_of(names) == capacity


def test_names_outside_the_basic_plane_are_hashed_by_their_surrogates() -> None:
    """``"\\ud83d\\ude00".hashCode()`` is 1772899 in Java, and ``"\\u00e9"`` is 233."""
    assert in_hash_order(["\U0001f600", "\u00e9"], name=str, capacity=1024) == ["\u00e9", "\U0001f600"]


def test_names_that_are_longer_than_any_known_one_keep_their_order() -> None:
    """Otherwise a request of 100 MB with long names would be hashed whole."""
    names = ["x" * 64 + end for end in "bac"]
    assert in_hash_order(names, name=str) == names
