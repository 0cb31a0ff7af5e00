"""Interface of assignors: members with their subscriptions, and assignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol, Self

from millrace.clients.model import TopicPartition
from millrace.consumer_protocol import ConsumerProtocolSubscription
from millrace.java_strings import java_order

NO_GENERATION: Final = -1

Assignment = dict[str, list[TopicPartition]]
"""Partitions of each member, by member id; a member without any has an empty list."""


PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""Racks of each partition's replicas. Partitions without racks may be omitted."""

NO_RACKS: Final[PartitionRacks] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """Member of a group as it joined (Kafka's ``Subscription``).

    ``owned_partitions`` and ``generation`` are those of the consumer protocol (KIP-429, KIP-792). The member still owns
    these partitions, and got them in that generation, which is -1 if unknown. ``user_data`` comes from the member's
    assignor. A member with a ``group_instance_id`` is static (KIP-345). ``rack`` is its ``client.rack`` (KIP-881), or
    empty.
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
        """Create a member from its subscription on the wire."""
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
    """Assignment strategy. It is stateless, because the subscriptions carry the members' previous partitions."""

    @property
    def name(self) -> str:
        """Name of the assignor in join requests."""
        ...

    @property
    def is_cooperative(self) -> bool:
        """True if members keep their partitions during a rebalance (KIP-429). Otherwise they first revoke all."""
        ...

    def assign(
        self,
        partition_counts: Mapping[str, int],
        members: Sequence[MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> Assignment:
        """Assign the partitions of the topics to which members subscribe.

        ``partition_counts`` has the existing topics. Other subscribed topics are ignored, and so are topics without a
        subscriber. Member ids are unique. ``racks`` are those of all replicas, in sync or not.
        """
        ...

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return a member's user data, from ``owned`` and ``generation`` (-1: none yet)."""
        ...


def static_members_first(members: Iterable[MemberSubscription]) -> list[MemberSubscription]:
    """Sort static members by instance id, then the others by member id.

    Therefore a static member that returns under a new member id keeps its place and its partitions (KIP-345).
    """
    return sorted(
        members,
        key=lambda member: (
            member.group_instance_id is None,
            java_order(member.member_id if member.group_instance_id is None else member.group_instance_id),
        ),
    )


def partitions_of(topic: str, partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    """Return all partitions of a topic, in order."""
    return [TopicPartition(topic, partition) for partition in range(partition_counts[topic])]


def wanted_topics(partition_counts: Mapping[str, int], members: Iterable[MemberSubscription]) -> list[str]:
    """Return the existing topics with a subscriber, sorted."""
    named = frozenset[str]().union(*(member.topics for member in members))
    return sorted(topic for topic in named if partition_counts.get(topic, 0) > 0)
