"""Groups, their members and their lag, as they are described. All frozen."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list. ``type`` is classic or share; ``state`` is Kafka's word for it."""

    group_id: str
    protocol_type: str
    state: str
    type: str

    @property
    def is_simple(self) -> bool:
        """Whether it has no members by protocol: somebody commits offsets in its name, and that is all."""
        return not self.protocol_type


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemberDescription:
    """A member of a group, and what it reads; ``topics`` is what it subscribes to."""

    member_id: str
    group_instance_id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]

    @property
    def name(self) -> str:
        """How tables name it, as Kafka's tool does: by its instance id before its member id."""
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
        """Whether it is a share group."""
        return self.type == "share"

    @property
    def is_active(self) -> bool:
        """Whether it has members, so that its offsets are theirs."""
        return self.state not in ("Empty", "Dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartitionOffsets:
    """How far a share group is in a partition.

    Everything before ``start_offset`` is over: accepted, rejected, or given out too often. So are ``complete_count``
    offsets from there on.
    """

    start_offset: int
    complete_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group is behind in one partition; ``None`` where there is nothing to say.

    ``committed`` is the next offset to read. ``lag`` counts offsets up to ``log_end`` (records, but for those that
    compaction took out and for markers). ``lag_bytes`` is the size of the batches that hold them, the first and last
    of them whole. ``lag_seconds`` is the age of the first record that is not read, 0 when all is read.
    ``committed_at_ms`` is when the offset was committed.

    Of a share group ``committed`` is its start offset, ``lag`` does not count what is over after it, and ``member`` is
    ``None``: several may read one partition.
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
