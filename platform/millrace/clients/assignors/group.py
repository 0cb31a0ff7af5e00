"""Group as the sticky assignors see it, with members as numbers.

Members are numbered in the order of their ids. Like Kafka's, the sticky assignors do not distinguish static members,
because previous partitions decide, not positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.clients.assignors.model import (
    NO_RACKS,
    MemberSubscription,
    PartitionRacks,
    partitions_of,
    wanted_topics,
)
from millrace.clients.assignors.racks import Nearness
from millrace.clients.model import TopicPartition
from millrace.java_strings import java_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Members of a group and the topics of their subscriptions.

    Members are numbered from 0 in the order of their ids. ``topics`` and ``subscribers`` contain only existing topics;
    ``subscribers`` ascend. ``is_uniform`` means that all members named the same topics, whether these exist or not.
    """

    member_ids: tuple[str, ...]
    topics: tuple[frozenset[str], ...]
    partition_counts: Mapping[str, int]
    subscribers: Mapping[str, tuple[int, ...]]
    is_uniform: bool
    nearness: Nearness

    @classmethod
    def of(
        cls,
        partition_counts: Mapping[str, int],
        members: Sequence[MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Group:
        """Create the group; ``members`` are in the order of ``by_id``."""
        wanted = wanted_topics(partition_counts, members)
        existing = frozenset(wanted)
        topics = tuple(member.topics & existing for member in members)
        subscribers: dict[str, list[int]] = {topic: [] for topic in wanted}
        for member, subscribed in enumerate(topics):
            for topic in subscribed:
                subscribers[topic].append(member)
        partitions = (partition for topic in wanted for partition in partitions_of(topic, partition_counts))
        member_racks = [member.rack for member in members]
        return cls(
            member_ids=tuple(member.member_id for member in members),
            topics=topics,
            partition_counts={topic: partition_counts[topic] for topic in wanted},
            subscribers={topic: tuple(found) for topic, found in subscribers.items()},
            is_uniform=len({member.topics for member in members}) <= 1,
            nearness=Nearness.of(member_racks, partitions, racks) if racks and any(member_racks) else Nearness(),
        )

    def has(self, partition: TopicPartition) -> bool:
        """Return whether the partition exists and a member subscribes to its topic."""
        return 0 <= partition.partition < self.partition_counts.get(partition.topic, 0)

    def may_hold(self, member: int, partition: TopicPartition) -> bool:
        """Return whether the member subscribes to the partition's topic."""
        return partition.topic in self.topics[member]

    def partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        """Return all partitions of some topics, in that order of topics."""
        return [partition for topic in topics for partition in partitions_of(topic, self.partition_counts)]


def by_id(members: Sequence[MemberSubscription]) -> list[MemberSubscription]:
    """Sort members by id, which defines their numbers."""
    return sorted(members, key=lambda member: java_order(member.member_id))
