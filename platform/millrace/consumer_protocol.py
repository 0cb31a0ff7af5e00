"""Subscriptions and assignments of consumers (Kafka's ``ConsumerProtocol``).

They are the bytes in a group's record whose protocol type is ``consumer``. A reader treats a newer version as the
newest known one, because new fields are appended.
"""

from __future__ import annotations

from typing import TypeVar

from millrace.errors import UnsupportedVersionError
from millrace.kafka_protocol import Message, read_version
from millrace.kafka_protocol.data.consumer_protocol_assignment import ConsumerProtocolAssignment
from millrace.kafka_protocol.data.consumer_protocol_assignment import TopicPartition as AssignedPartitions
from millrace.kafka_protocol.data.consumer_protocol_subscription import ConsumerProtocolSubscription
from millrace.kafka_protocol.data.consumer_protocol_subscription import TopicPartition as OwnedPartitions

__all__ = [
    "PROTOCOL_TYPE",
    "AssignedPartitions",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "OwnedPartitions",
    "read_assignment",
    "read_subscribed_topics",
    "read_subscription",
]

M = TypeVar("M", bound=Message)
PROTOCOL_TYPE = "consumer"


def read_subscription(data: bytes) -> tuple[int, ConsumerProtocolSubscription]:
    """Read a subscription: (version, message). Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return _read(ConsumerProtocolSubscription, data)


def read_subscribed_topics(data: bytes) -> tuple[str, ...]:
    """Read the topics of a subscription. Raises ``InvalidRecordError``, ``UnsupportedVersionError``.

    Version 0 begins the content of each version, and a coordinator reads no more of it. So the fields
    that a client leaves out of a later version do not matter.
    """
    _check_version(ConsumerProtocolSubscription, data)
    return ConsumerProtocolSubscription.decode_from(data, 0, 2)[0].topics


def read_assignment(data: bytes) -> tuple[int, ConsumerProtocolAssignment]:
    """Read an assignment: (version, message). Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return _read(ConsumerProtocolAssignment, data)


def _read(cls: type[M], data: bytes) -> tuple[int, M]:
    known = min(_check_version(cls, data), cls.VERSION_MAX)
    return known, cls.decode_from(data, known, 2)[0]


def _check_version(cls: type[M], data: bytes) -> int:
    version = read_version(data)
    if version < cls.VERSION_MIN:
        raise UnsupportedVersionError(f"{cls.__name__} of version {version}")
    return version
