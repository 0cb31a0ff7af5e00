"""Consumer group with Kafka's classic rebalance protocol.

The class is a pure state machine. A method takes an event and the time, changes the group, and leaves effects: answers,
timers, and records to append. The shard takes the effects (``take_effects``) after each event. ``join`` and ``sync``
answer by an effect, at once or later. Other methods return or raise at once, and leave effects too.

Times are in ms of any clock that does not go back. Source: Kafka 3.9's ``GroupCoordinator``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from millrace.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from millrace_broker.groups.effects import Effect, Effects, StoredGroup, TimerKey, TimerKind
from millrace_broker.groups.members import GroupMembers, MemberMetadata
from millrace_broker.groups.open_calls import OpenCalls
from millrace_broker.groups.rebalance import Rebalance
from millrace_broker.groups.record_writes import RecordWrites
from millrace_broker.groups.requests import (
    NO_MEMBER,
    GroupSettings,
    Identity,
    JoinRequest,
    MemberIdGiven,
    Protocols,
    SyncRequest,
)
from millrace_broker.groups.sessions import Sessions
from millrace_broker.groups.states import GroupState, GroupStateMachine
from millrace_broker.groups.static_members import StaticMembers
from millrace_broker.groups.subscriptions import SubscribedTopics

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""The timeout of a new member's first JoinGroup call (Kafka's constant). A client that waits longer has gone, and does
not know its member id.
"""


class ClassicGroup:
    """Consumer group (Kafka's ``GroupMetadata``); see the module."""

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id: Final = group_id
        self.members: Final = GroupMembers()
        self._settings: Final = settings
        self._machine: Final = GroupStateMachine()
        self._effects: Final = Effects()
        self._sessions: Final = Sessions(self._effects)
        self._calls: Final = OpenCalls(group_id, self.members, self._effects)
        self._writes: Final = RecordWrites(self._machine, self.members, self._effects)
        self._topics: Final = SubscribedTopics(self._machine, self.members)
        self._rebalance: Final = Rebalance(
            group_id,
            settings,
            machine=self._machine,
            members=self.members,
            calls=self._calls,
            sessions=self._sessions,
            writes=self._writes,
            effects=self._effects,
        )
        self._static_members: Final = StaticMembers(
            group_id,
            machine=self._machine,
            members=self.members,
            calls=self._calls,
            sessions=self._sessions,
            writes=self._writes,
            rebalance=self._rebalance,
        )

    @classmethod
    def restore(cls, group_id: str, settings: GroupSettings, stored: StoredGroup, now_ms: int) -> Self:
        """Return the group of a record. The sessions of its members begin now."""
        group = cls(group_id, settings)
        group._machine.restore(
            stored.generation_id, stored.protocol_type, stored.protocol_name, has_members=bool(stored.members)
        )
        for each in stored.members:
            member = MemberMetadata(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                protocols=((stored.protocol_name or "", each.subscription),),
                assignment=each.assignment,
            )
            group.members.add(member)
            group._sessions.extend(member, now_ms)
        if stored.leader is not None and stored.leader in group.members:
            group.members.set_leader(stored.leader)
        if len(group.members) > settings.max_size:
            group._rebalance.prepare(now_ms)
        return group

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        """The present state."""
        return self._machine.state

    @property
    def is_empty(self) -> bool:
        """True if the group is in the state ``Empty``, without members."""
        return self.state is GroupState.EMPTY

    @property
    def generation_id(self) -> int:
        """The number of rebalances that have ended."""
        return self._machine.generation_id

    @property
    def protocol_type(self) -> str:
        """``consumer`` for consumer groups; empty for a group that never had members."""
        return self._machine.protocol_type

    @property
    def stable_protocol(self) -> str | None:
        """The assignor of a stable group; None in other states."""
        return self._machine.protocol_name if self.state is GroupState.STABLE else None

    @property
    def pending_members(self) -> frozenset[str]:
        """The member ids that were given to clients which have not joined with them yet."""
        return self._sessions.pending_members

    @property
    def open_calls(self) -> frozenset[int]:
        """The calls that wait for their answers."""
        return self._calls.numbers

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics of this generation's members; None for groups that are not of consumers."""
        return self._topics.get()

    def record_content(self) -> StoredGroup:
        """Return the group as its record holds it."""
        return self._writes.record_content({member.member_id: member.assignment for member in self.members})

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order. The shard calls this after each event."""
        return self._effects.take()

    # --- JoinGroup -----------------------------------------------------------------------------------------

    def join(self, call: int, request: JoinRequest, now_ms: int) -> None:
        """Answer a JoinGroup request, at once or when the rebalance that it begins or joins has ended.

        Errors among the answers: ``GroupMaxSizeReachedError``, ``InconsistentGroupProtocolError``,
        ``UnknownMemberError``, ``FencedInstanceIdError``, ``CoordinatorNotAvailableError``, ``InvalidRequestError``.
        """
        try:
            self._join(call, request, now_ms)
        except MillraceError as error:
            self._effects.answer(call, error)
        self._rebalance.end_if_all_joined(now_ms)

    def _join(self, call: int, request: JoinRequest, now_ms: int) -> None:
        self._check_size(request.member_id)
        self._check_alive()
        self._check_protocols(request)
        if request.member_id == NO_MEMBER:
            self._join_without_id(call, request, now_ms)
        elif self._sessions.is_pending(request.member_id):
            if request.group_instance_id is not None:
                raise InvalidRequestError(
                    f"member id {request.member_id} was given to a dynamic member: static members "
                    "(group.instance.id) join without a member id"
                )
            self._sessions.remove_pending(request.member_id)
            self._add(call, request, request.member_id, now_ms)
        else:
            member = self._known_member(
                Identity(member_id=request.member_id, group_instance_id=request.group_instance_id)
            )
            self._join_again(call, member, request, now_ms)

    def _check_size(self, member_id: str) -> None:
        """Refuse a member beyond ``group.max.size``, and remove it."""
        if self._has_place_for(member_id):
            return
        member = self.members.get(member_id)
        if member is not None:
            self._rebalance.remove_member(member)
        self._sessions.remove_pending(member_id)
        raise GroupMaxSizeReachedError(
            f"group {self.group_id} has {len(self.members)} members, and group.max.size is {self._settings.max_size}: "
            "stop other members, or raise group.max.size"
        )

    def _has_place_for(self, member_id: str) -> bool:
        member = self.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            # Only members with an open call count. So a group that is too large shrinks to the limit.
            is_waiting = member is not None and member.join_call is not None
            return is_waiting or self.members.awaiting_join < self._settings.max_size
        if self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(self.members) < self._settings.max_size
        return True

    def _check_protocols(self, request: JoinRequest) -> None:
        if self.state is GroupState.EMPTY:
            is_accepted = bool(request.protocol_type and request.protocols)
        else:
            has_type = request.protocol_type == self.protocol_type
            is_accepted = has_type and self.members.supports_protocols(request.protocols)
        if not is_accepted:
            offered = ", ".join(name for name, _ in request.protocols) or "none"
            supported = ", ".join(sorted(self.members.candidates())) or "any"
            raise InconsistentGroupProtocolError(
                f"the member has protocol type {request.protocol_type or 'none'} and assignors {offered}, but group "
                f"{self.group_id} has protocol type {self.protocol_type or 'any'} and assignors {supported}: give all "
                "members one common assignor (partition.assignment.strategy)"
            )

    def _join_without_id(self, call: int, request: JoinRequest, now_ms: int) -> None:
        if request.group_instance_id is None:
            self._sessions.add_pending(request.new_member_id, request.session_timeout_ms)
            self._effects.answer(call, MemberIdGiven(member_id=request.new_member_id))
            return
        old_member_id = self.members.static_member_id(request.group_instance_id)
        old_member = None if old_member_id is None else self.members.get(old_member_id)
        if old_member is None:
            self._add(call, request, request.new_member_id, now_ms)
        else:
            self._static_members.replace(call, old_member, request, now_ms)

    def _add(self, call: int, request: JoinRequest, member_id: str, now_ms: int) -> None:
        if not len(self.members):
            self._machine.protocol_type = request.protocol_type
        self._rebalance.new_member_joined()
        member = MemberMetadata(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )
        self.members.add(member)
        self._calls.park_join(member, call)
        self._sessions.extend(member, now_ms, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.prepare(now_ms)

    def _join_again(self, call: int, member: MemberMetadata, request: JoinRequest, now_ms: int) -> None:
        has_changed = member.protocols != request.protocols
        is_leader = self.members.leader == member.member_id
        is_answer_lost = self.state is GroupState.COMPLETING_REBALANCE and not has_changed
        is_unchanged_follower = self.state is GroupState.STABLE and not has_changed and not is_leader
        if is_answer_lost or is_unchanged_follower:
            self._effects.answer(call, self._rebalance.join_answer(member))
            return
        self.members.set_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._calls.park_join(member, call)
        self._rebalance.prepare(now_ms)

    # --- SyncGroup, Heartbeat, LeaveGroup, OffsetCommit ----------------------------------------------------

    def sync(self, call: int, request: SyncRequest, now_ms: int) -> None:
        """Answer a SyncGroup request, at once or when the leader's assignment is in the log.

        Errors among the answers: ``UnknownMemberError``, ``FencedInstanceIdError``, ``IllegalGenerationError``,
        ``InconsistentGroupProtocolError``, ``RebalanceInProgressError``, ``CoordinatorNotAvailableError``.
        """
        try:
            self._sync(call, request, now_ms)
        except MillraceError as error:
            self._effects.answer(call, error)

    def _sync(self, call: int, request: SyncRequest, now_ms: int) -> None:
        member = self._current_member(request.identity)
        self._check_name("protocol type", request.protocol_type, self.protocol_type)
        self._check_name("assignor", request.protocol_name, self._machine.protocol_name or "")
        if self.state is GroupState.PREPARING_REBALANCE:
            raise self._rebalance_in_progress()
        self._rebalance.sync_received(member)
        if self.state is GroupState.STABLE:
            self._effects.answer(call, self._rebalance.sync_answer(member))
            self._sessions.extend(member, now_ms)
            return
        self._calls.park_sync(member, call)
        if self.members.leader == member.member_id and not self._writes.has_assignment:
            self._writes.start({each.member_id: request.assignments.get(each.member_id, b"") for each in self.members})

    def _check_name(self, kind: str, requested: str, present: str) -> None:
        if requested and requested != present:
            raise InconsistentGroupProtocolError(
                f"group {self.group_id} has {kind} {present or 'none'}, but the request names {requested}: join again"
            )

    def heartbeat(self, identity: Identity, now_ms: int) -> None:
        """Extend a member's session.

        Raises the errors that ``sync`` answers; ``RebalanceInProgressError`` tells the member to join again.
        """
        member = self._current_member(identity)
        self._sessions.extend(member, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise self._rebalance_in_progress()

    def leave(self, identity: Identity, now_ms: int) -> None:
        """Remove a member, or a static member by its instance id if the request has no member id.

        Raises ``UnknownMemberError``, ``FencedInstanceIdError``, ``CoordinatorNotAvailableError``.
        """
        self._check_alive()
        member_id = identity.member_id
        if member_id == NO_MEMBER:
            member_id = self.members.static_member_id(identity.group_instance_id or "") or NO_MEMBER
        if self._sessions.is_pending(member_id):
            self._sessions.remove_pending(member_id)
            self._rebalance.end_if_all_joined(now_ms)
            return
        member = self._known_member(Identity(member_id=member_id, group_instance_id=identity.group_instance_id))
        self._remove(member, now_ms)

    def check_commit(self, identity: Identity, now_ms: int, *, is_transactional: bool = False) -> None:
        """Check that a client may commit offsets of the group, and extend its session if it is a member.

        Raises ``UnknownMemberError``, ``FencedInstanceIdError``, ``IllegalGenerationError``,
        ``RebalanceInProgressError``, ``CoordinatorNotAvailableError``.
        """
        self._check_alive()
        is_empty = self.state is GroupState.EMPTY
        is_member = identity.member_id != NO_MEMBER or identity.group_instance_id is not None
        if identity.generation_id < 0 and (is_empty or (is_transactional and not is_member)):
            return
        if not is_member:
            raise UnknownMemberError(
                f"group {self.group_id} has members, and only members may commit its offsets: stop them first, "
                "or use another group id"
            )
        member = self._current_member(identity)
        if is_transactional:
            return  # only the generation is checked (KIP-447)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise self._rebalance_in_progress()
        self._sessions.extend(member, now_ms)

    def abandon(self, call: int, now_ms: int) -> None:
        """Forget a call whose caller has disconnected. The member stays for its session timeout.

        A call that has been answered is ignored.
        """
        member = self._calls.abandon(call)
        if member is not None:
            member.is_new = False
            self._sessions.extend(member, now_ms)

    # --- effects that have ended ---------------------------------------------------------------------------

    def stored(self, token: int, error: MillraceError | None, now_ms: int) -> None:
        """Continue after a ``Store`` effect has ended, or has failed with ``error``."""
        write = self._writes.end(token)
        if write.generation_id != self.generation_id:
            return  # the record of a later generation is in the log, or will be
        if write.replaced is not None:
            self._static_members.replacement_written(write.replaced, error, now_ms)
        else:
            self._rebalance.assignment_written(write.assignments, error, now_ms)

    def timer_fired(self, key: TimerKey, now_ms: int) -> None:
        """Continue after the delay of a timer. A timer that was cancelled or set again meanwhile is harmless."""
        if self.state is GroupState.DEAD:
            return
        if key.kind is TimerKind.JOIN:
            self._rebalance.join_timed_out(now_ms)
        elif key.kind is TimerKind.SYNC:
            self._rebalance.sync_timed_out(now_ms)
        elif key.kind is TimerKind.PENDING:
            self._sessions.pending_expired(key.member_id)
        else:
            member = self.members.get(key.member_id)
            if member is not None and self._sessions.has_expired(member, now_ms):
                self._remove(member, now_ms)
        self._rebalance.end_if_all_joined(now_ms)

    def _remove(self, member: MemberMetadata, now_ms: int) -> None:
        self._rebalance.remove_member(member)
        self._rebalance.prepare(now_ms)
        self._rebalance.end_if_all_joined(now_ms)

    # --- the end -------------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Delete the group, which has no members."""
        assert not len(self.members), "a group with members is not deleted"
        self._stop_timers()
        self._machine.transition_to(GroupState.DEAD)

    def close(self) -> None:
        """Answer all open calls, because this broker no longer coordinates the group."""
        self._end(
            CoordinatorNotAvailableError(
                f"this broker no longer coordinates group {self.group_id}: find the coordinator again"
            )
        )

    def upgrade(self) -> None:
        """Answer all open calls, because the group becomes a consumer group (KIP-848). Its members join again."""
        if not len(self.members):
            self.delete()
        else:
            self._end(self._rebalance_in_progress())

    def rejoin(self, protocols: Mapping[str, Protocols], now_ms: int) -> None:
        """Set the assignors of the members of a former consumer group, and begin a rebalance."""
        for member in self.members:
            self.members.set_protocols(member, protocols[member.member_id])
        self._rebalance.prepare(now_ms)

    def _end(self, error: MillraceError) -> None:
        for member in self.members:
            self._calls.answer_join(member, error)
            self._calls.answer_sync(member, error)
            self._sessions.cancel(member)
        self._stop_timers()
        self._machine.transition_to(GroupState.DEAD)

    def _stop_timers(self) -> None:
        self._effects.cancel_timer(TimerKind.JOIN)
        self._effects.cancel_timer(TimerKind.SYNC)
        self._sessions.remove_all_pending()

    # --- checks --------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailableError(
                f"group {self.group_id} is being deleted: find the coordinator again and retry"
            )

    def _known_member(self, identity: Identity) -> MemberMetadata:
        """Return the member of a request. Raises ``FencedInstanceIdError``, ``UnknownMemberError``."""
        member = self.members.get(identity.member_id)
        if identity.group_instance_id is not None:
            present = self.members.static_member_id(identity.group_instance_id)
            if present is not None and present != identity.member_id:
                raise FencedInstanceIdError(
                    f"another process has joined group {self.group_id} with "
                    f"group.instance.id={identity.group_instance_id}: give each process an instance id of its own"
                )
            if present is None:
                member = None
        if member is None:
            raise UnknownMemberError(
                f"group {self.group_id} has no member {identity.member_id or '(no member id)'}: join again"
            )
        return member

    def _current_member(self, identity: Identity) -> MemberMetadata:
        """Return the member of a request of this generation; raises ``IllegalGenerationError`` too."""
        self._check_alive()
        member = self._known_member(identity)
        if identity.generation_id != self.generation_id:
            raise IllegalGenerationError(
                f"group {self.group_id} is in generation {self.generation_id}, but member {identity.member_id} is in "
                f"generation {identity.generation_id}: join again"
            )
        return member

    def _rebalance_in_progress(self) -> RebalanceInProgressError:
        return RebalanceInProgressError(f"group {self.group_id} is rebalancing: join again")
