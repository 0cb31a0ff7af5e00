"""Replacement of static members (KIP-345).

A static member is replaced when a new process joins with its ``group.instance.id``.
"""

from __future__ import annotations

from typing import Final

from millrace.errors import FencedInstanceIdError, MillraceError
from millrace_broker.groups.members import GroupMembers, MemberMetadata
from millrace_broker.groups.open_calls import OpenCalls
from millrace_broker.groups.rebalance import Rebalance
from millrace_broker.groups.record_writes import RecordWrites, ReplacedMember
from millrace_broker.groups.requests import CONSUMER, JoinRequest
from millrace_broker.groups.sessions import Sessions
from millrace_broker.groups.states import GroupState, GroupStateMachine
from millrace_broker.groups.subscriptions import topics_of


class StaticMembers:
    """Replacements in one group (Kafka's ``updateStaticMemberAndRebalance``)."""

    def __init__(
        self,
        group_id: str,
        *,
        machine: GroupStateMachine,
        members: GroupMembers,
        calls: OpenCalls,
        sessions: Sessions,
        writes: RecordWrites,
        rebalance: Rebalance,
    ) -> None:
        self._group_id: Final = group_id
        self._machine: Final = machine
        self._members: Final = members
        self._calls: Final = calls
        self._sessions: Final = sessions
        self._writes: Final = writes
        self._rebalance: Final = rebalance

    def replace(self, call: int, member: MemberMetadata, request: JoinRequest, now_ms: int) -> None:
        """Give a member to the process that joins with its instance id, and fence the earlier process.

        A stable group does not rebalance unless the assignor or the subscribed topics change.
        """
        replaced = ReplacedMember(
            member,
            member.member_id,
            member.protocols,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
        )
        fenced = FencedInstanceIdError(
            f"another process has joined group {self._group_id} with group.instance.id={member.group_instance_id}: "
            "give each process an instance id of its own"
        )
        self._rebalance.detach(member, fenced)
        self._members.rename(member, request.new_member_id)
        self._members.set_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._calls.park_join(member, call)
        if self._machine.state is GroupState.STABLE and self._is_unchanged(member, replaced):
            self._writes.start({each.member_id: each.assignment for each in self._members}, replaced)
        else:
            # The leader knows the member by its old id, so an assignment that is still missing would not name it.
            self._rebalance.prepare(now_ms)

    def _is_unchanged(self, member: MemberMetadata, replaced: ReplacedMember) -> bool:
        """Return whether the group would choose the same assignor, and the member subscribes to the same topics."""
        protocol_name = self._machine.protocol_name
        if self._members.select_protocol() != protocol_name:
            return False
        old = next((metadata for name, metadata in replaced.old_protocols if name == protocol_name), b"")
        new = member.metadata(protocol_name)
        if self._machine.protocol_type != CONSUMER:
            return old == new
        topics = topics_of(new)
        return old == new or (topics is not None and topics == topics_of(old))

    def replacement_written(self, replaced: ReplacedMember, error: MillraceError | None, now_ms: int) -> None:
        """Answer the new process, or restore the member if the write has failed with ``error``."""
        member = replaced.member
        if self._machine.state is not GroupState.STABLE or self._members.get(member.member_id) is not member:
            return
        if error is None:
            self._calls.answer_join(member, self._rebalance.join_answer(member, replaced_id=replaced.old_member_id))
        else:
            self._calls.answer_join(member, error)
            self._sessions.cancel(member)
            self._members.rename(member, replaced.old_member_id)
            self._members.set_protocols(member, replaced.old_protocols)
            member.session_timeout_ms = replaced.old_session_timeout_ms
            member.rebalance_timeout_ms = replaced.old_rebalance_timeout_ms
        self._sessions.extend(member, now_ms)
