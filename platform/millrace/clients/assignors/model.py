"""What assignors take and give: members as they joined a group, and the partitions of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, Self

from millrace.clients.model import TopicPartition
from millrace.coordinator_records import ConsumerProtocolSubscription

NO_GENERATION: Final = -1

Assignment = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id; a member without any has an empty list."""


PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks of each partition's replicas. Partitions whose replicas are in no rack may be left out."""

NO_RACKS: Final[PartitionRacks] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """A member of a group as it joined: what it wants, and what it says that it had.

    ``owned_partitions`` and ``generation`` are those of the consumer protocol (KIP-429, KIP-792): what the member still
    holds, and the generation in which it got that, -1 if it has none or does not tell. ``user_data`` is what the
    member's assignor added. A member with a ``group_instance_id`` is static (KIP-345). ``rack`` is its ``client.rack``
    (KIP-881), empty without.
    """

    member_id: str
    topics: frozenset[str]
    group_instance_id: str | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    rack: str = ""

    @classmethod
    def of(
        cls, member_id: str, subscription: ConsumerProtocolSubscription, group_instance_id: str | None = None
    ) -> Self:
        """Take a member's subscription as it came over the wire."""
        return cls(
            member_id=member_id,
            topics=frozenset(subscription.topics),
            group_instance_id=group_instance_id,
            owned_partitions=tuple(
                TopicPartition(owned.topic, partition)
                for owned in subscription.owned_partitions
                for partition in owned.partitions
            ),
            generation=subscription.generation_id,
            user_data=subscription.user_data,
            rack=subscription.rack_id or "",
        )


class Assignor(Protocol):
    """A strategy for sharing out partitions. It has no state: what members had comes with their subscriptions."""

    @property
    def name(self) -> str:
        """What members call it when they join a group."""
        ...

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep what they hold during a rebalance (KIP-429); else they give up all before it."""
        ...

    def assign(
        self,
        partition_counts: Mapping[str, int],
        members: Sequence[MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignment:
        """Share out the partitions of the topics that members subscribe to.

        ``partition_counts`` has the topics that exist; others that members name are passed over, and so are topics
        that nobody named. Members have different ids. ``racks`` are those of all replicas, in sync or not.
        """
        ...

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What a member that got ``owned`` in ``generation`` adds to its subscription (-1: it was in none yet)."""
        ...


def java_order(text: str) -> bytes:
    """Sort key that orders strings as Java does, by UTF-16 units: it differs from Python's beyond U+FFFF."""
    return text.encode("utf-16-be", "surrogatepass")


def static_members_first(members: Iterable[MemberSubscription]) -> list[MemberSubscription]:
    """Members in the order in which they are served: static ones by instance id, then the others by member id.

    A static member that comes back under a new member id so keeps its place, and its partitions (KIP-345).
    """
    return sorted(
        members,
        key=lambda member: (
            (1, java_order(member.member_id))
            if member.group_instance_id is None
            else (0, java_order(member.group_instance_id))
        ),
    )


def partitions_of(topic: str, partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    """All partitions of a topic, in order."""
    return [TopicPartition(topic, partition) for partition in range(partition_counts[topic])]


def wanted_topics(partition_counts: Mapping[str, int], members: Iterable[MemberSubscription]) -> list[str]:
    """The topics that exist and that somebody subscribes to, sorted."""
    named = frozenset[str]().union(*(member.topics for member in members))
    return sorted(topic for topic in named if partition_counts.get(topic, 0) > 0)
