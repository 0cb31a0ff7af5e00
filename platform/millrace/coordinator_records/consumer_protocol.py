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
    "read_subscription",
]

M = TypeVar("M", bound=Message)
PROTOCOL_TYPE = "consumer"


def read_subscription(data: bytes) -> tuple[int, ConsumerProtocolSubscription]:
    """Read a subscription: (version, message). Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return _read(ConsumerProtocolSubscription, data)


def read_assignment(data: bytes) -> tuple[int, ConsumerProtocolAssignment]:
    """Read an assignment: (version, message). Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return _read(ConsumerProtocolAssignment, data)


def _read(cls: type[M], data: bytes) -> tuple[int, M]:
    version = read_version(data)
    if version < cls.VERSION_MIN:
        raise UnsupportedVersionError(f"{cls.__name__} of version {version}")
    known = min(version, cls.VERSION_MAX)
    return known, cls.decode_from(data, known, 2)[0]
