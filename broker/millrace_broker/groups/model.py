"""What goes into a group and comes out of it: requests, answers, effects. Plain frozen data.

A *call* is the number under which a caller waits; whoever runs the machine keeps the callers by it. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from millrace.errors import MillraceError

CONSUMER: Final = "consumer"
"""The protocol type of consumers: what coordinators know to read subscriptions of."""

NO_GENERATION: Final = -1
NO_MEMBER: Final = ""


class GroupState(Enum):
    """Where a group stands, by Kafka's names."""

    EMPTY = "Empty"
    """No members; there may be committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are joining; those who are in it already have to join again."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """Everybody has joined; the leader's assignment is awaited."""
    STABLE = "Stable"
    """Every member knows its assignment."""
    DEAD = "Dead"
    """Deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What groups have in common: the broker's options of the same names."""

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1


Protocols = tuple[tuple[str, bytes], ...]
"""A member's assignors by name, the preferred first, with what the member tells each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """Somebody wants to be a member. ``new_member_id`` is what it will be called if it has no id yet."""

    member_id: str
    new_member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a member says that it is."""

    member_id: str
    group_instance_id: str | None = None
    generation_id: int = NO_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings everybody's. Empty protocol names are not checked."""

    identity: Identity
    protocol_type: str = ""
    protocol_name: str = ""
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader is told of it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The member belongs to a generation. ``members`` is for its leader, unless that may ``skip_assignment``."""

    generation_id: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdGiven:
    """The answer to a first join: to be repeated with this member id (``MemberIdRequiredError``)."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """A member's part of the assignment."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


# --- effects -----------------------------------------------------------------------------------------------------


class TimerKind(Enum):
    """What a timer is for."""

    SESSION = "session"
    """A member must be heard of."""
    PENDING = "pending"
    """Somebody who was given a member id must join with it."""
    JOIN = "join"
    """A rebalance must come to its end."""
    SYNC = "sync"
    """Members must ask for their assignment."""


@dataclass(frozen=True, slots=True)
class TimerKey:
    """One timer of a group; ``member_id`` is empty where it concerns the group."""

    kind: TimerKind
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer a call."""

    call: int
    answer: JoinAnswer | MemberIdGiven | SyncAnswer | MillraceError


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Report ``Group.timer_fired`` after a delay; it replaces the timer of the same key."""

    key: TimerKey
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """The timer of this key is not needed any more, if it is set."""

    key: TimerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member as it is written down."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group as it is written down, and as it is after it has been read."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None = None
    leader: str | None = None
    members: tuple[StoredMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Write the group down, and report ``Group.stored`` with the token when that is done or has failed."""

    token: int
    group: StoredGroup


Effect = Answer | SetTimer | CancelTimer | Store
