"""The members of one group: who they are, what they can, who waits. Kafka's ``GroupMetadata`` without its state.

Invariants

- ``awaiting_join`` is the number of members with a parked join; what each assignor counts is how many members know it.
  Both are kept as members change, so that no call looks at all members.
- A static member (one with an instance id) is in ``static`` under the member id that it has now.
- The leader is a member, unless there are none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from millrace_broker.groups.model import JoinedMember, Protocols, StoredMember


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """A member. Times are in ms of the machine's clock; ``timer_at_ms`` is when its timer fires, None if none is set.

    ``is_new`` from its first join until that is answered: it may not even know yet that it is a member.
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
        """What the member told an assignor."""
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def vote(self, candidates: frozenset[str]) -> str:
        """The one of ``candidates`` that it likes best; it knows all of them."""
        return next(name for name, _ in self.protocols if name in candidates)

    def stored(self, protocol_name: str, assignment: bytes) -> StoredMember:
        """The member as it is written down."""
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


class Roster:
    """The members of one group."""

    def __init__(self) -> None:
        self._members: Final[dict[str, Member]] = {}
        self._known_by: Final[Counter[str]] = Counter()
        self.static: Final[dict[str, str]] = {}
        self.awaiting_join = 0
        self.leader: str | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        """The member of that id."""
        return self._members.get(member_id)

    def add(self, member: Member) -> None:
        """A new member, whose join is not parked yet. The first one leads."""
        self._members[member.member_id] = member
        self._known_by.update(_names(member.protocols))
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """A member goes, whose calls have been answered. If it led, another one does."""
        assert member.join_call is None, "its join must have been answered"
        assert member.sync_call is None, "its sync must have been answered"
        del self._members[member.member_id]
        self._known_by.subtract(_names(member.protocols))
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self._members), None)

    def rename(self, member: Member, member_id: str) -> None:
        """A static member is another process now."""
        assert member.group_instance_id is not None, "only static members are replaced"
        del self._members[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        self._members[member_id] = member
        self.static[member.group_instance_id] = member_id

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        """The member knows other assignors, or tells them something else."""
        if member.protocols != protocols:
            self._known_by.subtract(_names(member.protocols))
            self._known_by.update(_names(protocols))
            member.protocols = protocols

    def park_join(self, member: Member, call: int) -> int | None:
        """Let a join wait for the others; returns the call that did so before, which nobody answers any more."""
        before, member.join_call = member.join_call, call
        self.awaiting_join += before is None
        return before

    def take_join(self, member: Member) -> int | None:
        """The parked join, which is to be answered now."""
        call, member.join_call = member.join_call, None
        self.awaiting_join -= call is not None
        return call

    @property
    def have_all_joined(self) -> bool:
        """Whether every member's join is parked."""
        return self.awaiting_join == len(self._members)

    def elect_joined_leader(self) -> bool:
        """Let a member lead that has joined; False when none has."""
        leader = self._members.get(self.leader or "")
        if leader is not None and leader.join_call is not None:
            return True
        joined = next((member for member in self if member.join_call is not None), None)
        if joined is not None:
            self.leader = joined.member_id
        return joined is not None

    # --- assignors -----------------------------------------------------------------------------------------

    def candidates(self) -> frozenset[str]:
        """The assignors that every member knows."""
        return frozenset(name for name, count in self._known_by.items() if count == len(self._members))

    def knows_one_of(self, protocols: Protocols) -> bool:
        """Whether every member knows one of these assignors."""
        return any(self._known_by[name] == len(self._members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """The assignor that most members vote for, of those that all know; of equals the first voted for."""
        candidates = self.candidates()
        return Counter(member.vote(candidates) for member in self).most_common(1)[0][0]

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join again."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def joined_members(self, protocol_name: str) -> tuple[JoinedMember, ...]:
        """All members as the leader is told of them."""
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
