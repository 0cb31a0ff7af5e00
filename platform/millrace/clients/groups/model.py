"""Descriptions of groups, their members and their lag. All frozen."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list. ``type`` is classic or share; ``state`` is Kafka's name."""

    group_id: str
    protocol_type: str
    state: str
    type: str

    @property
    def is_simple(self) -> bool:
        """True if the group has no group protocol, because programs only commit offsets under its id."""
        return not self.protocol_type


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemberDescription:
    """A member of a group with its partitions; ``topics`` is its subscription."""

    member_id: str
    group_instance_id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]

    @property
    def name(self) -> str:
        """Name in tables, as in Kafka's tool: the instance id if present, else the member id."""
        return self.group_instance_id or self.member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group. ``state`` is Stable, Empty, PreparingRebalance, CompletingRebalance or Dead."""

    group_id: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    generation_id: int
    members: tuple[GroupMemberDescription, ...]
    coordinator: str

    @property
    def is_shared(self) -> bool:
        """True if the group is a share group."""
        return self.type == "share"

    @property
    def is_active(self) -> bool:
        """True if the group has members, so that its offsets must not be changed."""
        return self.state not in ("Empty", "Dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionOffsets:
    """Progress of a share group in a partition.

    All records before ``start_offset`` are completed: accepted, rejected, or delivered too often. ``complete_count``
    offsets after it are completed as well.
    """

    start_offset: int
    complete_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """Lag of a group in one partition; ``None`` for unknown values.

    ``committed`` is the next offset to read. ``lag`` counts offsets up to ``log_end``, including offsets of compacted
    records and markers. ``lag_bytes`` is the size of the batches that hold them, the first and last of them whole.
    ``lag_seconds`` is the age of the first unread record, 0 if all are read. ``committed_at_ms`` is the commit time.

    For a share group ``committed`` is its start offset. ``lag`` excludes completed offsets after it, and ``member``
    is ``None``, because several members may read one partition.
    """

    group_id: str
    topic: str
    partition: int
    committed: int | None
    log_start: int | None
    log_end: int | None
    lag: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    committed_at_ms: int | None = None
    member: GroupMemberDescription | None = None
