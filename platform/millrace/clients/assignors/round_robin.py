"""Assignor ``roundrobin``: all partitions of all topics in turn.

With equal subscriptions, members differ by at most one partition. With different ones, a member is skipped for topics
outside its subscription, which can leave the group far from balanced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.clients.assignors.model import (
    NO_RACKS,
    Assignment,
    MemberSubscription,
    PartitionRacks,
    partitions_of,
    static_members_first,
    wanted_topics,
)
from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True)
class RoundRobinAssignor:
    """Assignor ``roundrobin``; see the module."""

    name: str = "roundrobin"
    is_cooperative: bool = False

    def assign(
        self,
        partition_counts: Mapping[str, int],
        members: Sequence[MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignment:
        """Assign the partitions, topics ordered by name. Racks are ignored, as in Kafka."""
        assignment: Assignment = {member.member_id: [] for member in members}
        circle = static_members_first(members)
        turn = 0
        for topic in wanted_topics(partition_counts, members):
            for partition in partitions_of(topic, partition_counts):
                while topic not in circle[turn].topics:
                    turn = (turn + 1) % len(circle)
                assignment[circle[turn].member_id].append(partition)
                turn = (turn + 1) % len(circle)
        return assignment

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return None, because previous partitions do not matter."""
        return None
