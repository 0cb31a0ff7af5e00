"""Records of ``__share_group_state``: delivery states in share groups (KIP-932).

A snapshot holds the whole state of a partition, an update the changes since. The key's version distinguishes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from millrace.coordinator_records.messages import Kind, Message, of, read_version
from millrace.coordinator_records.offsets_topic import UnknownKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshotKey(Message):
    """Key of a snapshot of a partition in a share group."""

    group_id: str = of(Kind.STRING)
    topic_id: UUID = of(Kind.UUID)  # noqa: RUF009 - a field like the others
    partition: int = of(Kind.INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareUpdateKey(Message):
    """Key of an update of a partition in a share group."""

    VERSION_MIN: ClassVar[int] = 1
    VERSION_MAX: ClassVar[int] = 1

    group_id: str = of(Kind.STRING)
    topic_id: UUID = of(Kind.UUID)  # noqa: RUF009 - a field like the others
    partition: int = of(Kind.INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatch(Message):
    """Records with the same state. ``delivery_state`` is 0 available, 2 acknowledged, 4 archived."""

    FLEXIBLE_SINCE: ClassVar[int] = 0

    first_offset: int = of(Kind.INT64)
    last_offset: int = of(Kind.INT64)
    delivery_state: int = of(Kind.INT8)
    delivery_count: int = of(Kind.INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshotValue(Message):
    """State of all records from ``start_offset`` on; times in ms.

    Kafka since 4.2 may add the number of completed records (KIP-1226).
    """

    FLEXIBLE_SINCE: ClassVar[int] = 0

    snapshot_epoch: int = of(Kind.INT32)
    state_epoch: int = of(Kind.INT32)
    leader_epoch: int = of(Kind.INT32)
    start_offset: int = of(Kind.INT64)
    delivery_complete_count: int = of(Kind.INT32, tag=0, default=-1)
    create_timestamp: int = of(Kind.INT64)
    write_timestamp: int = of(Kind.INT64)
    state_batches: tuple[StateBatch, ...] = of(Kind.MESSAGES, element=StateBatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareUpdateValue(Message):
    """Changes since the snapshot of ``snapshot_epoch``; ``start_offset`` is -1 if unchanged."""

    FLEXIBLE_SINCE: ClassVar[int] = 0

    snapshot_epoch: int = of(Kind.INT32)
    leader_epoch: int = of(Kind.INT32)
    start_offset: int = of(Kind.INT64)
    delivery_complete_count: int = of(Kind.INT32, tag=0, default=-1)
    state_batches: tuple[StateBatch, ...] = of(Kind.MESSAGES, element=StateBatch)


def read_share_state_key(data: bytes) -> ShareSnapshotKey | ShareUpdateKey | UnknownKey:
    """Read a record's key. Raises ``InvalidRecordError`` if it is damaged."""
    version = read_version(data)
    if version == 0:
        return ShareSnapshotKey.decode(data[2:], version)
    if version == ShareUpdateKey.VERSION_MAX:
        return ShareUpdateKey.decode(data[2:], version)
    return UnknownKey(version)
