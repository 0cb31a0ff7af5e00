"""Assignor ``range``: a run of adjacent partitions of each topic per member.

Topics are assigned one by one, always from the same member. So members with the same subscriptions get the same
partition numbers of topics with equal partition counts, which joins need. With many topics the first members get more
partitions than the last ones.

If racks matter for a topic (KIP-881), each member first gets near partitions up to its share; the rest is assigned in
runs. Topics with equal partition counts and members are assigned together. A partition number goes to a member that
is near it in all of them, so that they can still be joined.
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
from millrace.clients.assignors.racks import racks_matter
from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True)
class RangeAssignor:
    """Assignor ``range``; see the module."""

    name: str = "range"
    is_cooperative: bool = False

    def assign(
        self,
        partition_counts: Mapping[str, int],
        members: Sequence[MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignment:
        """Assign each member its run of each topic; topics are ordered by name."""
        in_order = static_members_first(members)
        dealings = [
            _Dealing(topic, partitions_of(topic, partition_counts), in_order, racks)
            for topic in wanted_topics(partition_counts, members)
        ]
        if any(dealing.racks_matter for dealing in dealings):
            _deal_nearby(dealings)
        assignment: Assignment = {member.member_id: [] for member in members}
        for dealing in dealings:
            dealing.deal_rest()
            for place, member_id in enumerate(dealing.member_ids):
                assignment[member_id] += sorted(dealing.given[place])
        return assignment

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return None, because previous partitions do not matter."""
        return None


class _Dealing:
    """Assignment of one topic. Its subscribers are numbers, in the order in which they are served."""

    def __init__(
        self,
        topic: str,
        partitions: Sequence[TopicPartition],
        in_order: Sequence[MemberSubscription],
        racks: PartitionRacks,
    ) -> None:
        subscribers = [member for member in in_order if topic in member.topics]
        self.topic = topic
        self.member_ids = tuple(member.member_id for member in subscribers)
        self.count = len(partitions)
        self.free = dict.fromkeys(partitions)
        self.given: list[list[TopicPartition]] = [[] for _ in subscribers]
        self._each, self._larger_left = divmod(len(partitions), len(subscribers))
        self._racks = racks
        self._member_racks = [member.rack for member in subscribers]
        self.has_racks = any(self._member_racks)
        self.racks_matter = bool(racks) and racks_matter(
            self._member_racks, [racks.get(partition, frozenset()) for partition in partitions]
        )

    def room(self, place: int) -> int:
        """Return how many more partitions a member may get."""
        return max(0, self._each + (self._larger_left > 0) - len(self.given[place]))

    def allows(self, place: int, partition: TopicPartition) -> bool:
        """Return whether a member is near a partition, or has no rack."""
        rack = self._member_racks[place]
        return not rack or rack in self._racks.get(partition, ())

    def give(self, place: int, partitions: Sequence[TopicPartition]) -> None:
        """Assign partitions to a member that has room for them."""
        if not partitions:
            return
        self.given[place] += partitions
        self._larger_left -= len(self.given[place]) > self._each
        for partition in partitions:
            del self.free[partition]

    def deal_nearby(self) -> None:
        """Assign near partitions to each member, up to its share."""
        for place in range(len(self.member_ids)):
            nearby = [partition for partition in self.free if self.allows(place, partition)]
            self.give(place, nearby[: self.room(place)])

    def deal_rest(self) -> None:
        """Assign the remaining partitions up to each member's share."""
        for place in range(len(self.member_ids)):
            self.give(place, list(self.free)[: self.room(place)])


def _deal_nearby(dealings: Sequence[_Dealing]) -> None:
    together: dict[tuple[tuple[str, ...], int], list[_Dealing]] = {}
    for dealing in dealings:
        together.setdefault((dealing.member_ids, dealing.count), []).append(dealing)
    for group in together.values():
        if len(group) > 1:
            _deal_together(group)
        elif group[0].racks_matter:
            group[0].deal_nearby()


def _deal_together(dealings: Sequence[_Dealing]) -> None:
    """Assign partition numbers, of all topics at once, to members that are near in all."""
    first = dealings[0]
    if not first.has_racks:
        return
    left = list(range(len(first.member_ids)))
    for number in range(first.count):
        for place in left:
            # A member has the same room in all of these topics.
            if first.room(place) and all(
                dealing.allows(place, TopicPartition(dealing.topic, number)) for dealing in dealings
            ):
                for dealing in dealings:
                    dealing.give(place, [TopicPartition(dealing.topic, number)])
                if not first.room(place):
                    left.remove(place)
                break
