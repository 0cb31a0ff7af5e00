"""Encoding of subscriptions and assignments in Kafka's consumer protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from millrace.clients.assignors import MemberSubscription
from millrace.clients.membership.requests import GroupMember
from millrace.clients.model import TopicPartition
from millrace.coordinator_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    read_assignment,
    read_subscription,
    write_versioned,
)

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
        owned_partitions=_by_topic(sorted(owned)),
        generation_id=generation,
        rack_id=rack or None,
    )
    return write_versioned(subscription, _VERSION)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the partitions that a member gets."""
    assignment = ConsumerProtocolAssignment(assigned_partitions=_by_topic(sorted(partitions)), user_data=None)
    return write_versioned(assignment, _VERSION)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Decode the partitions of an assignment; empty bytes mean none.

    Raises ``InvalidRecordError``, ``UnsupportedVersionError``.
    """
    if not data:
        return frozenset()
    _, assignment = read_assignment(data)
    return frozenset(_partitions(assignment.assigned_partitions))


def decode_members(members: Iterable[GroupMember]) -> list[MemberSubscription]:
    """Decode the members' subscriptions for an assignor. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return [
        MemberSubscription.of(member.member_id, read_subscription(member.metadata)[1], member.group_instance_id or None)
        for member in members
    ]


def _by_topic(in_order: Sequence[TopicPartition]) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic=topic, partitions=tuple(partition.partition for partition in partitions))
        for topic, partitions in groupby(in_order, key=lambda partition: partition.topic)
    )


def _partitions(by_topic: Iterable[TopicPartitions]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, partition) for each in by_topic for partition in each.partitions]
