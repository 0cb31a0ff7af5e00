"""Members of one group, part of Kafka's ``GroupMetadata``.

Invariants, kept by the methods that change them, so that no call counts all members:

- ``awaiting_join`` is the number of members with an open JoinGroup call.
- ``_members_by_assignor`` has the number of members that support each assignor.
- ``static`` has the present member id of each static member (a member with ``group.instance.id``).
- The leader is a member. A group without members has no leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace_broker.groups.effects import StoredMember
from millrace_broker.groups.requests import JoinedMember, Protocols


@dataclass(slots=True, eq=False, kw_only=True)
class MemberMetadata:
    """Member of a group (Kafka's ``MemberMetadata``).

    Times are in ms of the group's clock. ``timer_at_ms`` is the time at which the session timer fires, None if no
    timer is set. ``is_new`` holds from the first join until its answer, because the client may not know its member id.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join_call: int | None = None
    sync_call: int | None = None
    is_new: bool = False
    deadline_ms: int = 0
    timer_at_ms: int | None = None

    def metadata(self, protocol_name: str) -> bytes:
        """Return the member's metadata for an assignor, empty if the member does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """Choose the preferred one of ``candidates``, all of which the member supports."""
        return next(name for name, _ in self.protocols if name in candidates)

    def stored(self, protocol_name: str, assignment: bytes) -> StoredMember:
        """Return the member as the group's record holds it."""
        return StoredMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )


class GroupMembers:
    """Members of one group by member id, in joining order."""

    def __init__(self) -> None:
        self._members: Final[dict[str, MemberMetadata]] = {}
        self._members_by_assignor: Final[Counter[str]] = Counter()
        self._static: Final[dict[str, str]] = {}
        self._awaiting_join = 0
        self._leader: str | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[MemberMetadata]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> MemberMetadata | None:
        """Return the member with this id, if there is one."""
        return self._members.get(member_id)

    def static_member_id(self, group_instance_id: str) -> str | None:
        """Return the present member id of a static member, None if the group has no such member."""
        return self._static.get(group_instance_id)

    @property
    def leader(self) -> str | None:
        """The member id of the leader."""
        return self._leader

    @property
    def awaiting_join(self) -> int:
        """The number of members with an open JoinGroup call."""
        return self._awaiting_join

    def add(self, member: MemberMetadata) -> None:
        """Add a member without an open JoinGroup call. The first member becomes the leader."""
        assert member.member_id not in self._members, member.member_id
        assert member.join_call is None, "an open call is counted by park_join"
        self._members[member.member_id] = member
        self._members_by_assignor.update(_names(member.protocols))
        if member.group_instance_id is not None:
            self._static[member.group_instance_id] = member.member_id
        if self._leader is None:
            self._leader = member.member_id

    def remove(self, member: MemberMetadata) -> None:
        """Remove a member whose calls have been answered. If it was the leader, another member becomes the leader."""
        assert member.join_call is None, "its JoinGroup call must have been answered"
        assert member.sync_call is None, "its SyncGroup call must have been answered"
        del self._members[member.member_id]
        self._members_by_assignor.subtract(_names(member.protocols))
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        if self._leader == member.member_id:
            self._leader = next(iter(self._members), None)

    def rename(self, member: MemberMetadata, member_id: str) -> None:
        """Give a static member the member id of its new process."""
        assert member.group_instance_id is not None, "only static members are replaced"
        assert member_id not in self._members, member_id
        del self._members[member.member_id]
        if self._leader == member.member_id:
            self._leader = member_id
        member.member_id = member_id
        self._members[member_id] = member
        self._static[member.group_instance_id] = member_id

    def set_protocols(self, member: MemberMetadata, protocols: Protocols) -> None:
        """Replace the assignors of a member and its metadata for them."""
        if member.protocols != protocols:
            self._members_by_assignor.subtract(_names(member.protocols))
            self._members_by_assignor.update(_names(protocols))
            member.protocols = protocols

    def park_join(self, member: MemberMetadata, call: int) -> int | None:
        """Keep a JoinGroup call open; return the member's earlier open call, which it replaces."""
        before, member.join_call = member.join_call, call
        self._awaiting_join += before is None
        assert 0 <= self._awaiting_join <= len(self._members), self._awaiting_join
        return before

    def take_join(self, member: MemberMetadata) -> int | None:
        """Return the member's open JoinGroup call, if there is one, and forget it."""
        call, member.join_call = member.join_call, None
        self._awaiting_join -= call is not None
        assert 0 <= self._awaiting_join <= len(self._members), self._awaiting_join
        return call

    @property
    def have_all_joined(self) -> bool:
        """True if each member has an open JoinGroup call."""
        return self._awaiting_join == len(self._members)

    def set_leader(self, member_id: str) -> None:
        """Make a member the leader."""
        assert member_id in self._members, member_id
        self._leader = member_id

    def elect_joined_leader(self) -> bool:
        """Make a member with an open JoinGroup call the leader; return whether there is one."""
        leader = self._members.get(self._leader or "")
        if leader is not None and leader.join_call is not None:
            return True
        joined = next((member for member in self if member.join_call is not None), None)
        if joined is not None:
            self.set_leader(joined.member_id)
        return joined is not None

    # --- assignors -----------------------------------------------------------------------------------------

    def candidates(self) -> frozenset[str]:
        """Return the assignors that all members support (Kafka's ``candidateProtocols``)."""
        return frozenset(name for name, count in self._members_by_assignor.items() if count == len(self._members))

    def supports_protocols(self, protocols: Protocols) -> bool:
        """Return whether all members support one of these assignors."""
        return any(self._members_by_assignor[name] == len(self._members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Choose the assignor with most votes among those that all members support, the first one of equals."""
        candidates = self.candidates()
        [(chosen, _)] = Counter(member.vote(candidates) for member in self).most_common(1)
        return chosen

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def joined_members(self, protocol_name: str) -> tuple[JoinedMember, ...]:
        """Return all members for the answer to the leader."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(protocol_name),
            )
            for member in self
        )


def _names(protocols: Iterable[tuple[str, bytes]]) -> set[str]:
    return {name for name, _ in protocols}
