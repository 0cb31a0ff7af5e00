"""Encoding of subscriptions and assignments in Kafka's consumer protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.clients.assignors import MemberSubscription
from millrace.clients.membership.requests import GroupMember
from millrace.clients.model import TopicPartition
from millrace.consumer_protocol import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    OwnedPartitions,
    read_assignment,
    read_subscription,
)
from millrace.kafka_protocol import write_versioned
from millrace.partitions import numbers_by_topic

_VERSION: Final = 3


def encode_subscription(
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    generation: int,
    *,
    user_data: bytes | None = None,
    rack: str = "",
) -> bytes:
    """Encode a member's topics and owned partitions.

    ``user_data`` comes from its assignor.
    """
    subscription = ConsumerProtocolSubscription(
        topics=tuple(sorted(topics)),
        user_data=user_data,
        owned_partitions=tuple(
            OwnedPartitions(topic=topic, partitions=numbers)
            for topic, numbers in numbers_by_topic(sorted(owned)).items()
        ),
        generation_id=generation,
        rack_id=rack or None,
    )
    return write_versioned(subscription, _VERSION)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the partitions that a member gets."""
    assigned = tuple(
        AssignedPartitions(topic=topic, partitions=numbers)
        for topic, numbers in numbers_by_topic(sorted(partitions)).items()
    )
    assignment = ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=None)
    return write_versioned(assignment, _VERSION)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Decode the partitions of an assignment; empty bytes mean none.

    Raises ``InvalidRecordError``, ``UnsupportedVersionError``.
    """
    if not data:
        return frozenset()
    _, assignment = read_assignment(data)
    return frozenset(
        TopicPartition(each.topic, partition)
        for each in assignment.assigned_partitions
        for partition in each.partitions
    )


def decode_members(members: Iterable[GroupMember]) -> list[MemberSubscription]:
    """Decode the members' subscriptions for an assignor. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return [
        MemberSubscription.of(member.member_id, read_subscription(member.metadata)[1], member.group_instance_id or None)
        for member in members
    ]
