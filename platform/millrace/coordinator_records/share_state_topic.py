"""Records of ``__share_group_state``: what has become of the records of a partition in a share group (KIP-932).

A snapshot says it all, an update what has changed since. The number of a key's version says which of them it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

from millrace.coordinator_records.messages import Kind, Message, of, read_version
from millrace.coordinator_records.offsets_topic import UnknownKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshotKey(Message):
    """A partition in a share group, of which the value is a snapshot."""

    group_id: str = of(Kind.STRING)
    topic_id: UUID = of(Kind.UUID)  # noqa: RUF009 - a field, as all others
    partition: int = of(Kind.INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareUpdateKey(Message):
    """The same, of which the value is an update."""

    VERSION_MIN: ClassVar[int] = 1
    VERSION_MAX: ClassVar[int] = 1

    group_id: str = of(Kind.STRING)
    topic_id: UUID = of(Kind.UUID)  # noqa: RUF009 - a field, as all others
    partition: int = of(Kind.INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatch(Message):
    """Records that share a fate. ``delivery_state`` is 0 available, 2 acknowledged, 4 archived."""

    FLEXIBLE_SINCE: ClassVar[int] = 0

    first_offset: int = of(Kind.INT64)
    last_offset: int = of(Kind.INT64)
    delivery_state: int = of(Kind.INT8)
    delivery_count: int = of(Kind.INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSnapshotValue(Message):
    """What has become of all records from ``start_offset`` on; times in ms.

    Kafka since 4.2 may add how many of them are done with (KIP-1226).
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
    """What has changed since the snapshot of ``snapshot_epoch``; ``start_offset`` is -1 where that has not."""

    FLEXIBLE_SINCE: ClassVar[int] = 0

    snapshot_epoch: int = of(Kind.INT32)
    leader_epoch: int = of(Kind.INT32)
    start_offset: int = of(Kind.INT64)
    delivery_complete_count: int = of(Kind.INT32, tag=0, default=-1)
    state_batches: tuple[StateBatch, ...] = of(Kind.MESSAGES, element=StateBatch)


def read_share_state_key(data: bytes) -> ShareSnapshotKey | ShareUpdateKey | UnknownKey:
    """Read a record's key. Raises ``InvalidRecordError`` when it is damaged."""
    version = read_version(data)
    if version == 0:
        return ShareSnapshotKey.decode(data[2:], version)
    if version == ShareUpdateKey.VERSION_MAX:
        return ShareUpdateKey.decode(data[2:], version)
    return UnknownKey(version)
