"""Subscriptions and assignments of consumers (Kafka's ``ConsumerProtocol``).

They are the bytes in a group's record whose protocol type is ``consumer``. A reader treats a newer version as the
newest known one, because new fields are appended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millrace.coordinator_records.messages import Kind, M, Message, of, read_version
from millrace.errors import UnsupportedVersionError

PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions(Message):
    """Some partitions of a topic."""

    VERSION_MAX: ClassVar[int] = 3

    topic: str = of(Kind.STRING)
    partitions: tuple[int, ...] = of(Kind.INT32S)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolSubscription(Message):
    """Subscription of a member, with its owned partitions."""

    VERSION_MAX: ClassVar[int] = 3

    topics: tuple[str, ...] = of(Kind.STRINGS)
    user_data: bytes | None = of(Kind.BYTES, nullable=True)
    owned_partitions: tuple[TopicPartitions, ...] = of(Kind.MESSAGES, since=1, element=TopicPartitions, default=())
    generation_id: int = of(Kind.INT32, since=2, default=-1)
    rack_id: str | None = of(Kind.STRING, since=3, nullable=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerProtocolAssignment(Message):
    """Assignment of a member."""

    VERSION_MAX: ClassVar[int] = 3

    assigned_partitions: tuple[TopicPartitions, ...] = of(Kind.MESSAGES, element=TopicPartitions)
    user_data: bytes | None = of(Kind.BYTES, nullable=True)


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
    return known, cls.decode(data[2:], known)
