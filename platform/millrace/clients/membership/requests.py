"""Requests of a member and their responses, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Request to join the group. ``owned`` are the partitions that the member still reads, since ``generation``."""

    member_id: str
    generation: int
    owned: frozenset[TopicPartition]
    topics: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """Member in the leader's join response.

    ``metadata`` is its subscription in the bytes of the consumer protocol.
    """

    member_id: str
    group_instance_id: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Response to ``Join``. ``members`` are for the leader, which assigns unless ``skip_assignment``."""

    generation: int
    member_id: str
    protocol: str
    is_leader: bool
    skip_assignment: bool = False
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Request for the member's assignment; the leader sends all assignments."""

    joined: Joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeat, whose response shows whether the group rebalances."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Request to leave the group. Other members then get the partitions at once."""

    member_id: str
    reason: str


Request = Join | Sync | Heartbeat | Leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Work before a join.

    The partitions in ``revoked`` must be revoked, and offsets can still be committed. Others already own those in
    ``lost``.
    """

    revoked: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Result of a rebalance.

    ``revoked`` is processed first, then ``added``. ``owned`` is the whole assignment.
    """

    revoked: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    owned: frozenset[TopicPartition]
