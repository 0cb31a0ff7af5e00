"""Members of a consumer group and their partitions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

from millrace_broker.groups.requests import Protocols

Partition = tuple[UUID, int]
"""Topic id and number of a partition."""
Partitions = frozenset[Partition]

NO_PARTITIONS: Final[Partitions] = frozenset()

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""Epoch with which a static member leaves for a short time. It keeps its partitions for its session timeout."""


class MemberState(Enum):
    """State of a member (Kafka's class), with the number of its record."""

    STABLE = 0
    """The member has its target assignment."""
    UNREVOKED_PARTITIONS = 1
    """The member has to revoke partitions before its epoch rises."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that others have to revoke."""
    UNKNOWN = 127
    """State of a newer version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """Fields of a classic member's JoinGroup request (Kafka's ``ClassicMemberMetadata``)."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """Member of a consumer group (Kafka's ``ConsumerGroupMember``).

    ``assigned`` are the partitions that the member owns or was offered. ``revoking`` are those that it has to give up
    first. ``previous_epoch`` is accepted as well, because the answer with the present epoch may be lost. ``regex`` is
    empty without a regular expression. ``classic`` is set for a member with the classic protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS

    @property
    def owned(self) -> Partitions:
        """The partitions that no other member may get."""
        return self.assigned | self.revoking
