"""Records of ``__consumer_offsets`` (Kafka 3.9's ``group-coordinator`` messages).

The version of a key determines the type of the record: 0 and 1 a committed offset, 2 a group. Other versions belong
to newer kinds of groups and are skipped. A record without a value is a deletion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from millrace.coordinator_records.messages import Kind, Message, of, read_version, read_versioned


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitKey(Message):
    """Key of a group's offset in a partition."""

    VERSION_MAX: ClassVar[int] = 1

    group: str = of(Kind.STRING)
    topic: str = of(Kind.STRING)
    partition: int = of(Kind.INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataKey(Message):
    """Key of a group."""

    VERSION_MIN: ClassVar[int] = 2
    VERSION_MAX: ClassVar[int] = 2

    group: str = of(Kind.STRING)


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """Key of an unknown version."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitValue(Message):
    """A committed offset; times in ms. ``leader_epoch`` is that of the last record consumed, -1 if unknown."""

    VERSION_MAX: ClassVar[int] = 4
    FLEXIBLE_SINCE: ClassVar[int] = 4

    offset: int = of(Kind.INT64)
    leader_epoch: int = of(Kind.INT32, since=3, default=-1)
    metadata: str = of(Kind.STRING)
    commit_timestamp: int = of(Kind.INT64)
    expire_timestamp: int = of(Kind.INT64, since=1, until=1, default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember(Message):
    """A member of a group. ``subscription`` and ``assignment`` use the group's protocol; timeouts are in ms."""

    VERSION_MAX: ClassVar[int] = 4
    FLEXIBLE_SINCE: ClassVar[int] = 4

    member_id: str = of(Kind.STRING)
    group_instance_id: str | None = of(Kind.STRING, since=3, nullable=True, default=None)
    client_id: str = of(Kind.STRING)
    client_host: str = of(Kind.STRING)
    rebalance_timeout: int = of(Kind.INT32, since=1, default=0)
    session_timeout: int = of(Kind.INT32)
    subscription: bytes = of(Kind.BYTES)
    assignment: bytes = of(Kind.BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadataValue(Message):
    """State of a group after a rebalance."""

    VERSION_MAX: ClassVar[int] = 4
    FLEXIBLE_SINCE: ClassVar[int] = 4

    protocol_type: str = of(Kind.STRING)
    generation: int = of(Kind.INT32)
    protocol: str | None = of(Kind.STRING, nullable=True)
    leader: str | None = of(Kind.STRING, nullable=True)
    current_state_timestamp: int = of(Kind.INT64, since=2, default=-1)
    members: tuple[GroupMember, ...] = of(Kind.MESSAGES, element=GroupMember)


def read_offsets_key(data: bytes) -> OffsetCommitKey | GroupMetadataKey | UnknownKey:
    """Read a record's key. Raises ``InvalidRecordError`` if it is damaged."""
    version = read_version(data)
    if OffsetCommitKey.VERSION_MIN <= version <= OffsetCommitKey.VERSION_MAX:
        return OffsetCommitKey.decode(data[2:], version)
    if version == GroupMetadataKey.VERSION_MAX:
        return GroupMetadataKey.decode(data[2:], version)
    return UnknownKey(version)


def read_offset_value(data: bytes) -> OffsetCommitValue:
    """Read a committed offset. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(OffsetCommitValue, data)[1]


def read_group_value(data: bytes) -> GroupMetadataValue:
    """Read a group. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    return read_versioned(GroupMetadataValue, data)[1]
