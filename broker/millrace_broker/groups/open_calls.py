"""JoinGroup and SyncGroup calls of one group that wait for their answers.

Kafka keeps them as ``awaitingJoinCallback`` and ``awaitingSyncCallback`` of a member.

Invariant: an open call belongs to one member, until it is answered or its caller has disconnected. It is answered once.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import MillraceError, RebalanceInProgressError
from millrace_broker.groups.effects import Effects
from millrace_broker.groups.members import GroupMembers, MemberMetadata
from millrace_broker.groups.requests import JoinAnswer, SyncAnswer


class OpenCalls:
    """Open calls of one group, by number."""

    def __init__(self, group_id: str, members: GroupMembers, effects: Effects) -> None:
        self._group_id: Final = group_id
        self._members: Final = members
        self._effects: Final = effects
        self._callers: Final[dict[int, MemberMetadata]] = {}

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of the open calls."""
        return frozenset(self._callers)

    def _open(self, member: MemberMetadata, call: int) -> None:
        assert call not in self._callers, f"call {call} is open"
        self._callers[call] = member

    def _close(self, call: int, member: MemberMetadata, answer: JoinAnswer | SyncAnswer | MillraceError) -> None:
        caller = self._callers.pop(call, None)
        assert caller is member, f"call {call} has been answered"
        self._effects.answer(call, answer)

    def park_join(self, member: MemberMetadata, call: int) -> None:
        """Let a JoinGroup call wait for its answer; an earlier one of the same member is answered with an error."""
        before = self._members.park_join(member, call)
        self._open(member, call)
        self._supersede(before, member)

    def park_sync(self, member: MemberMetadata, call: int) -> None:
        """Let a SyncGroup call wait for its answer; an earlier one of the same member is answered with an error."""
        before, member.sync_call = member.sync_call, call
        self._open(member, call)
        self._supersede(before, member)

    def _supersede(self, call: int | None, member: MemberMetadata) -> None:
        if call is not None:
            repeated = RebalanceInProgressError(
                f"member {member.member_id} of group {self._group_id} has repeated the request: "
                "the later request gets the answer"
            )
            self._close(call, member, repeated)

    def answer_join(self, member: MemberMetadata, answer: JoinAnswer | MillraceError) -> None:
        """Answer the member's JoinGroup call, if one is open."""
        call = self._members.take_join(member)
        if call is not None:
            self._close(call, member, answer)

    def answer_sync(self, member: MemberMetadata, answer: SyncAnswer | MillraceError) -> None:
        """Answer the member's SyncGroup call, if one is open."""
        call, member.sync_call = member.sync_call, None
        if call is not None:
            self._close(call, member, answer)

    def abandon(self, call: int) -> MemberMetadata | None:
        """Forget a call whose caller has disconnected; return its member, None if the call has been answered."""
        member = self._callers.pop(call, None)
        if member is None:
            return None
        if member.join_call == call:
            self._members.take_join(member)
        else:
            member.sync_call = None
        return member
