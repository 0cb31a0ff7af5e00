"""Partitions and offsets grouped by topic, as requests name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.clients.model import OffsetAndMetadata, TopicPartition
from millrace.partitions import numbers_by_topic
from millrace.protocol import millrace_pb2 as pb


def topic_partitions(partitions: Iterable[TopicPartition]) -> list[pb.TopicPartitions]:
    """Group partitions by topic, each partition once."""
    topics = numbers_by_topic(sorted(set(partitions)))
    return [pb.TopicPartitions(name=name, partitions=numbers) for name, numbers in topics.items()]


def topic_commits(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> list[pb.TopicCommits]:
    """Group offsets to commit by topic."""
    topics: dict[str, pb.TopicCommits] = {}
    for partition, place in offsets.items():
        topic = topics.setdefault(partition.topic, pb.TopicCommits(name=partition.topic))
        topic.partitions.add(
            partition=partition.partition,
            offset=place.offset,
            leader_epoch=place.leader_epoch,
            metadata=place.metadata,
        )
    return list(topics.values())
