"""Assignor ``range``: of each topic, every subscribed member gets a run of neighbouring partitions.

Topics are shared out one by one, always beginning with the same member. So members with the same subscriptions get the
same partition numbers of topics with as many partitions, which joins of such topics need; and the first members get
more than the last ones when there are many topics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.clients.assignors.model import (
    Assignment,
    MemberSubscription,
    partitions_of,
    static_members_first,
    wanted_topics,
)
from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True)
class RangeAssignor:
    """Assignor ``range``; see the module."""

    name: str = "range"
    is_cooperative: bool = False

    def assign(self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        """Give each member its run of each topic; topics come in order of their names."""
        assignment: Assignment = {member.member_id: [] for member in members}
        in_order = static_members_first(members)
        for topic in wanted_topics(partition_counts, members):
            subscribers = [member.member_id for member in in_order if topic in member.topics]
            partitions = partitions_of(topic, partition_counts)
            each, left_over = divmod(len(partitions), len(subscribers))
            start = 0
            for place, member_id in enumerate(subscribers):
                end = start + each + (place < left_over)
                assignment[member_id] += partitions[start:end]
                start = end
        return assignment

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """None: what members had does not matter."""
        return None
