"""What a membership asks for, and what it is answered: plain values between the pure machine and those that send."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.clients.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Join the group, or join it again. ``owned`` is what the member still reads, since ``generation``."""

    member_id: str
    generation: int
    owned: frozenset[TopicPartition]
    topics: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member as the leader is told of it: its subscription in the consumer protocol's bytes."""

    member_id: str
    group_instance_id: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to ``Join``. ``members`` are for the leader, who shares out unless ``skip_assignment``."""

    generation: int
    member_id: str
    protocol: str
    is_leader: bool
    skip_assignment: bool = False
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Ask for one's assignment; the leader brings everybody's."""

    joined: Joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Say that the member lives, and learn whether the group rebalances."""

    member_id: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave the group, so that others get the partitions at once."""

    member_id: str
    reason: str


Request = Join | Sync | Heartbeat | Leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Before joining: give up ``revoked`` (offsets can still be committed), or notice that ``lost`` are others' now."""

    revoked: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """After a rebalance: ``revoked`` first, then ``added``; ``owned`` is everything that is assigned now."""

    revoked: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    owned: frozenset[TopicPartition]
