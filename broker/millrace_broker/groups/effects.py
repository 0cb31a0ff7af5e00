"""Effects that a group asks its shard to carry out.

They are answers, timers and records. A *call* is the number of a request that waits for its answer. The shard keeps the
callers by these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from millrace.errors import MillraceError
from millrace_broker.groups.requests import JoinAnswer, MemberIdGiven, SyncAnswer


class TimerKind(Enum):
    """Purpose of a timer."""

    SESSION = "session"
    """The session timeout of a member."""
    PENDING = "pending"
    """The time in which a client must join with the member id that it was given."""
    JOIN = "join"
    """The time in which members must join a rebalance."""
    SYNC = "sync"
    """The time in which members must ask for their assignment."""
    REVOCATION = "revocation"
    """The time in which a member of a consumer group must revoke partitions."""


@dataclass(frozen=True, slots=True)
class TimerKey:
    """Identity of one timer of a group.

    ``member_id`` is empty for timers of the whole group.
    """

    kind: TimerKind
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Request to answer a call."""

    call: int
    answer: JoinAnswer | MemberIdGiven | SyncAnswer | MillraceError


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Request to call ``ClassicGroup.timer_fired`` after a delay.

    The new timer replaces the timer with the same key.
    """

    key: TimerKey
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Request to cancel the timer with this key, if it is set."""

    key: TimerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """Member of a group as a record holds it (Kafka's ``GroupMetadataValue.MemberMetadata``)."""

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
    """Group as a record holds it (Kafka's ``GroupMetadataValue``)."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None = None
    leader: str | None = None
    members: tuple[StoredMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Request to append the group's record.

    The shard calls ``ClassicGroup.stored`` with the token afterwards.
    """

    token: int
    group: StoredGroup


Effect = Answer | SetTimer | CancelTimer | Store


class Effects:
    """Effects of one group since the shard took them last, in order."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def take(self) -> list[Effect]:
        """Return the effects and forget them."""
        effects, self._effects = self._effects, []
        return effects

    def answer(self, call: int, answer: JoinAnswer | MemberIdGiven | SyncAnswer | MillraceError) -> None:
        """Answer a call."""
        self._effects.append(Answer(call, answer))

    def set_timer(self, kind: TimerKind, delay_ms: int, member_id: str = "") -> None:
        """Set a timer, of a member or of the whole group."""
        self._effects.append(SetTimer(TimerKey(kind, member_id), max(0, delay_ms)))

    def cancel_timer(self, kind: TimerKind, member_id: str = "") -> None:
        """Cancel a timer, if it is set."""
        self._effects.append(CancelTimer(TimerKey(kind, member_id)))

    def store(self, token: int, group: StoredGroup) -> None:
        """Append the group's record."""
        self._effects.append(Store(token, group))
