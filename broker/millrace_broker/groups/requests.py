"""Requests to a group, its answers, and the settings of all groups.

All are frozen data. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millrace.errors import InvalidSessionTimeoutError

CONSUMER: Final = "consumer"
"""The protocol type of consumers. Coordinators can read the subscriptions of this type only."""

NO_GENERATION: Final = -1
NO_MEMBER: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Broker options that hold for all groups.

    The fields have the names of the options.
    """

    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1


Protocols = tuple[tuple[str, bytes], ...]
"""The assignors of a member by name, the preferred one first, each with the member's metadata for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroup request; a member without an id becomes ``new_member_id``."""

    member_id: str
    new_member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols


def check_session_timeout(session_timeout_ms: int, settings: GroupSettings) -> None:
    """Raise ``InvalidSessionTimeoutError`` for a session timeout outside the broker's bounds."""
    min_ms, max_ms = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not min_ms <= session_timeout_ms <= max_ms:
        raise InvalidSessionTimeoutError(
            f"session.timeout.ms={session_timeout_ms} is outside the broker's bounds, {min_ms} to {max_ms} "
            "(group.min.session.timeout.ms, group.max.session.timeout.ms): set a value between them"
        )


WITH_MEMBER_EPOCHS: Final = 9
"""First version of Kafka's OffsetCommit for members of consumer groups, which have epochs (KIP-848)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Member id, instance id and generation in a member's request.

    ``kafka_version`` is the version of a Kafka client's OffsetCommit, 0 for clients of millrace.
    """

    member_id: str
    group_instance_id: str | None = None
    generation_id: int = NO_GENERATION
    kafka_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroup request; the leader's has the assignments of all members. Empty protocol names are not checked."""

    identity: Identity
    protocol_type: str = ""
    protocol_name: str = ""
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """Member of a generation in the answer to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """Answer to a JoinGroup request, which adds the member to a generation.

    ``members`` is for the leader, which assigns partitions unless ``skip_assignment`` is set. ``replaced_leader`` is
    the earlier member id of a static member that leads and has come back. The assignment of its generation stays.
    """

    generation_id: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    replaced_leader: str = NO_MEMBER
    members: tuple[JoinedMember, ...] = ()

    @property
    def skip_assignment(self) -> bool:
        """True for a leader that must not assign partitions (KIP-814)."""
        return self.replaced_leader != NO_MEMBER


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdGiven:
    """Answer to a JoinGroup request without a member id.

    The client repeats the request with the given id. Clients get this answer as ``MemberIdRequiredError``.
    """

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """Answer to a SyncGroup request, with the member's assignment."""

    protocol_type: str
    protocol_name: str
    assignment: bytes
