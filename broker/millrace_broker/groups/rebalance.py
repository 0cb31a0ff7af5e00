"""Rebalance of a group (Kafka's ``prepareRebalance`` to ``onCompleteJoin``, SyncGroup).

Members join. The group chooses a leader and an assignor. The leader sends the assignments of all members.

Invariants

- A rebalance ends when all members have joined and no member id is pending, or at the rebalance timeout. Then dynamic
  members that have not joined are removed.
- A rebalance with members ends with a leader that has joined. Without one the rebalance goes on until sessions end.
- The assignment is in the log before any member gets it.

Source: Kafka 3.9's ``GroupCoordinator``, ``DelayedJoin``, ``InitialDelayedJoin``, ``DelayedSync``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millrace.errors import MillraceError, RebalanceInProgressError, UnknownMemberError
from millrace_broker.groups.effects import Effects, TimerKind
from millrace_broker.groups.members import GroupMembers, MemberMetadata
from millrace_broker.groups.open_calls import OpenCalls
from millrace_broker.groups.record_writes import RecordWrites
from millrace_broker.groups.requests import NO_MEMBER, GroupSettings, JoinAnswer, SyncAnswer
from millrace_broker.groups.sessions import Sessions
from millrace_broker.groups.states import GroupState, GroupStateMachine


class Rebalance:
    """Steps of one group from a generation to the next."""

    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        *,
        machine: GroupStateMachine,
        members: GroupMembers,
        calls: OpenCalls,
        sessions: Sessions,
        writes: RecordWrites,
        effects: Effects,
    ) -> None:
        self._group_id: Final = group_id
        self._settings: Final = settings
        self._machine: Final = machine
        self._members: Final = members
        self._calls: Final = calls
        self._sessions: Final = sessions
        self._writes: Final = writes
        self._effects: Final = effects
        self._initial_left_ms: int | None = None
        """The rest of the rebalance timeout while the first rebalance of an empty group waits for more members."""
        self._has_new_member = False
        self._pending_sync: Final[set[str]] = set()
        """Members that have joined and not asked for their assignment (Kafka's ``pendingSyncMembers``)."""

    # --- members join --------------------------------------------------------------------------------------

    def prepare(self, now_ms: int) -> None:
        """Begin a rebalance (Kafka's ``prepareRebalance``), unless members are joining one."""
        if self._machine.state is GroupState.PREPARING_REBALANCE:
            return
        if self._machine.state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(
                RebalanceInProgressError(f"group {self._group_id} begins another rebalance: join again"), now_ms
            )
        self._effects.cancel_timer(TimerKind.SYNC)
        self._pending_sync.clear()
        timeout_ms = self._members.rebalance_timeout_ms
        if self._machine.state is GroupState.EMPTY:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_left_ms = max(0, timeout_ms - delay_ms)
            timeout_ms = delay_ms
        self._machine.transition_to(GroupState.PREPARING_REBALANCE)
        self._effects.set_timer(TimerKind.JOIN, timeout_ms)

    def _fail_syncs(self, error: MillraceError, now_ms: int) -> None:
        """Drop the assignment of this generation, and answer all SyncGroup calls with an error."""
        for member in self._members:
            member.assignment = b""
            if member.sync_call is not None:
                self._calls.answer_sync(member, error)
                self._sessions.extend(member, now_ms)

    def new_member_joined(self) -> None:
        """Let the first rebalance of an empty group wait longer, because more members may follow."""
        self._has_new_member = self._initial_left_ms is not None

    def end_if_all_joined(self, now_ms: int) -> None:
        """End the rebalance if all members have joined. The first rebalance of an empty group waits for its timer."""
        if (
            self._machine.state is GroupState.PREPARING_REBALANCE
            and self._initial_left_ms is None
            and self._members.have_all_joined
            and not self._sessions.has_pending_members
        ):
            self._end_join(now_ms)

    def join_timed_out(self, now_ms: int) -> None:
        """End the rebalance at its timeout. A first rebalance with new members waits once more."""
        if self._machine.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._initial_left_ms and self._has_new_member:
            self._has_new_member = False
            delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._effects.set_timer(TimerKind.JOIN, delay_ms)
            return
        self._end_join(now_ms)

    def _end_join(self, now_ms: int) -> None:
        """Begin the next generation with the members that have joined (Kafka's ``onCompleteJoin``)."""
        self._initial_left_ms = None
        self._has_new_member = False
        if not self._members.have_all_joined:
            for member in list(self._members):
                if member.join_call is None and member.group_instance_id is None:
                    self.remove_member(member)
        if not self._members.elect_joined_leader() and len(self._members):
            self._effects.set_timer(TimerKind.JOIN, self._members.rebalance_timeout_ms)
            return
        self._effects.cancel_timer(TimerKind.JOIN)
        if not len(self._members):
            self._machine.next_generation(None)
            self._writes.start({})
            return
        self._machine.next_generation(self._members.select_protocol())
        for member in self._members:
            self._calls.answer_join(member, self.join_answer(member))
            member.is_new = False
            self._pending_sync.add(member.member_id)
            self._sessions.extend(member, now_ms)
        self._effects.set_timer(TimerKind.SYNC, self._members.rebalance_timeout_ms)

    def join_answer(self, member: MemberMetadata, *, replaced_id: str = NO_MEMBER) -> JoinAnswer:
        """Return the answer to a member's JoinGroup call in the present generation.

        ``replaced_id`` is the earlier id of a static member that has come back.
        """
        is_leader = self._members.leader == member.member_id
        protocol_name = self._machine.protocol_name or ""
        return JoinAnswer(
            generation_id=self._machine.generation_id,
            protocol_type=self._machine.protocol_type,
            protocol_name=protocol_name,
            leader=self._members.leader or "",
            member_id=member.member_id,
            replaced_leader=replaced_id if is_leader else NO_MEMBER,
            members=self._members.joined_members(protocol_name) if is_leader else (),
        )

    # --- members get their assignments ---------------------------------------------------------------------

    def sync_received(self, member: MemberMetadata) -> None:
        """Note that a member has asked for its assignment before the sync timeout."""
        self._pending_sync.discard(member.member_id)
        if not self._pending_sync:
            self._effects.cancel_timer(TimerKind.SYNC)

    def sync_timed_out(self, now_ms: int) -> None:
        """Remove members that joined and did not ask for their assignment (Kafka's ``onExpirePendingSync``)."""
        is_due = self._machine.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) and self._pending_sync
        if not is_due:
            return
        for member_id in sorted(self._pending_sync):
            member = self._members.get(member_id)
            if member is not None:
                self.remove_member(member)
        self.prepare(now_ms)

    def assignment_written(self, assignments: Mapping[str, bytes], error: MillraceError | None, now_ms: int) -> None:
        """Give members their assignments, or begin another rebalance if the write has failed with ``error``."""
        if self._machine.state is not GroupState.COMPLETING_REBALANCE:
            return
        if error is not None:
            self._fail_syncs(error, now_ms)
            self.prepare(now_ms)
            return
        self._machine.transition_to(GroupState.STABLE)
        for member in self._members:
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_call is not None:
                self._calls.answer_sync(member, self.sync_answer(member))
                self._sessions.extend(member, now_ms)

    def sync_answer(self, member: MemberMetadata) -> SyncAnswer:
        """Return a member's assignment in the present generation."""
        return SyncAnswer(
            protocol_type=self._machine.protocol_type,
            protocol_name=self._machine.protocol_name or "",
            assignment=member.assignment,
        )

    # --- members leave -------------------------------------------------------------------------------------

    def remove_member(self, member: MemberMetadata) -> None:
        """Remove a member, and answer its open call with an error."""
        removed = UnknownMemberError(
            f"member {member.member_id} has been removed from group {self._group_id}: join again without a member id"
        )
        self.detach(member, removed)
        self._members.remove(member)

    def detach(self, member: MemberMetadata, error: MillraceError) -> None:
        """End the open call, the session and the pending sync of a member's process."""
        self._calls.answer_join(member, error)
        self._calls.answer_sync(member, error)
        self._sessions.cancel(member)
        self._pending_sync.discard(member.member_id)
