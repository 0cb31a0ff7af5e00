"""One classic consumer group: what it answers to each request in each of its states. Kafka 3.9's ``GroupCoordinator``.

The machine is pure: methods take an event and the time, change the machine and leave *effects* (``take_effects``):
answers, timers, and what is to be written down. ``join`` and ``sync`` answer by an effect, now or later; the others
return or raise at once, and leave effects all the same.

Times are in ms of any clock that does not go back.
"""

from __future__ import annotations

from typing import Self

from millrace.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    MillraceError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from millrace_broker.groups.base import NEW_MEMBER_JOIN_TIMEOUT_MS
from millrace_broker.groups.model import (
    CONSUMER,
    NO_MEMBER,
    Answer,
    GroupSettings,
    GroupState,
    Identity,
    JoinRequest,
    MemberIdGiven,
    StoredGroup,
    SyncRequest,
    TimerKey,
    TimerKind,
)
from millrace_broker.groups.rebalance import Rebalance, Replaced, topics_of
from millrace_broker.groups.roster import Member


def check_session_timeout(session_timeout_ms: int, settings: GroupSettings) -> None:
    """Raise ``InvalidSessionTimeoutError`` for a session that the broker does not allow."""
    least_ms, most_ms = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not least_ms <= session_timeout_ms <= most_ms:
        raise InvalidSessionTimeoutError(
            f"session.timeout.ms={session_timeout_ms}: the broker allows {least_ms} to {most_ms} "
            "(group.min.session.timeout.ms, group.max.session.timeout.ms)"
        )


class Group(Rebalance):
    """One group; see the module."""

    @classmethod
    def restore(cls, group_id: str, settings: GroupSettings, stored: StoredGroup, now_ms: int) -> Self:
        """The group as it was written down. Its members have their sessions' time to be heard of."""
        group = cls(group_id, settings)
        group.generation_id = stored.generation_id
        group.protocol_type = stored.protocol_type
        group.protocol_name = stored.protocol_name if stored.members else None
        for each in stored.members:
            member = Member(
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                protocols=((stored.protocol_name or "", each.subscription),),
                assignment=each.assignment,
            )
            group.roster.add(member)
            group._heard_of(member, now_ms)
        if stored.members:
            group.state = GroupState.STABLE
            if stored.leader is not None and stored.leader in group.roster:
                group.roster.leader = stored.leader
            if len(group.roster) > settings.max_size:
                group._prepare(now_ms)
        return group

    @property
    def stable_protocol(self) -> str | None:
        """The assignor by which members have what they have; None unless the group is stable."""
        return self.protocol_name if self.state is GroupState.STABLE else None

    # --- joining -------------------------------------------------------------------------------------------

    def join(self, call: int, request: JoinRequest, now_ms: int) -> None:
        """Somebody joins: answered now, or once the rebalance that this begins or belongs to is done.

        Errors among the answers: ``InvalidSessionTimeoutError``, ``GroupMaxSizeReachedError``,
        ``InconsistentGroupProtocolError``, ``UnknownMemberError``, ``FencedInstanceIdError``,
        ``CoordinatorNotAvailableError``, ``InvalidRequestError``.
        """
        try:
            self._join(call, request, now_ms)
        except MillraceError as error:
            self._effects.append(Answer(call, error))
        self._check_joined(now_ms)

    def _join(self, call: int, request: JoinRequest, now_ms: int) -> None:
        check_session_timeout(request.session_timeout_ms, self.settings)
        if not self._accepts(request.member_id):
            member = self.roster.get(request.member_id)
            if member is not None:
                self._take_out(member)
            self._forget_pending(request.member_id)
            raise GroupMaxSizeReachedError(
                f"group {self.group_id} has {len(self.roster)} members, and group.max.size is {self.settings.max_size}"
            )
        self._check_alive()
        self._check_protocols(request)
        if request.member_id == NO_MEMBER:
            self._join_newly(call, request, now_ms)
        elif request.member_id in self.pending:
            if request.group_instance_id is not None:
                raise InvalidRequestError(f"member id {request.member_id} was given to a member that was not static")
            self._forget_pending(request.member_id)
            self._add(call, request, request.member_id, now_ms)
        else:
            member = self._known_member(
                Identity(member_id=request.member_id, group_instance_id=request.group_instance_id)
            )
            self._join_again(call, member, request, now_ms)

    def _accepts(self, member_id: str) -> bool:
        member = self.roster.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            # Who waits already is counted, whoever was a member before: too many are so brought down to the limit.
            is_in = member is not None and member.join_call is not None
            return is_in or self.roster.awaiting_join < self.settings.max_size
        if self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(self.roster) < self.settings.max_size
        return True

    def _check_protocols(self, request: JoinRequest) -> None:
        if self.state is GroupState.EMPTY:
            is_known = bool(request.protocol_type and request.protocols)
        else:
            is_known = request.protocol_type == self.protocol_type and self.roster.knows_one_of(request.protocols)
        if not is_known:
            offered = ", ".join(name for name, _ in request.protocols) or "none"
            known = ", ".join(sorted(self.roster.candidates())) or "any"
            raise InconsistentGroupProtocolError(
                f"group {self.group_id} (protocol type {self.protocol_type or 'any'}, assignors {known}) has none in "
                f"common with the member (protocol type {request.protocol_type or 'none'}, assignors {offered})"
            )

    def _join_newly(self, call: int, request: JoinRequest, now_ms: int) -> None:
        if request.group_instance_id is None:
            self.pending.add(request.new_member_id)
            self._set_timer(TimerKey(TimerKind.PENDING, request.new_member_id), request.session_timeout_ms)
            self._effects.append(Answer(call, MemberIdGiven(member_id=request.new_member_id)))
            return
        old_member_id = self.roster.static.get(request.group_instance_id)
        old_member = None if old_member_id is None else self.roster.get(old_member_id)
        if old_member is None:
            self._add(call, request, request.new_member_id, now_ms)
        else:
            self._replace(call, old_member, request, now_ms)

    def _add(self, call: int, request: JoinRequest, member_id: str, now_ms: int) -> None:
        if not len(self.roster):
            self.protocol_type = request.protocol_type
        if self.state is GroupState.PREPARING_REBALANCE and self.generation_id == 0:
            self._has_new_member = True
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )
        self.roster.add(member)
        self._park_join(member, call)
        self._heard_of(member, now_ms, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._prepare(now_ms)

    def _join_again(self, call: int, member: Member, request: JoinRequest, now_ms: int) -> None:
        has_changed = member.protocols != request.protocols
        is_leader = self.roster.leader == member.member_id
        if self.state is GroupState.EMPTY:
            raise UnknownMemberError(f"group {self.group_id} is empty: join without a member id")
        is_lost_answer = self.state is GroupState.COMPLETING_REBALANCE and not has_changed
        is_idle_follower = self.state is GroupState.STABLE and not has_changed and not is_leader
        if is_lost_answer or is_idle_follower:
            self._effects.append(Answer(call, self._join_answer(member)))
            return
        self._update(member, request)
        self._park_join(member, call)
        self._prepare(now_ms)

    def _update(self, member: Member, request: JoinRequest) -> None:
        self.roster.set_protocols(member, request.protocols)
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def _replace(self, call: int, member: Member, request: JoinRequest, now_ms: int) -> None:
        """A static member is there again, as another process. Unless what it wants has changed, nobody is disturbed."""
        replaced = Replaced(
            member,
            member.member_id,
            member.protocols,
            member.session_timeout_ms,
            member.rebalance_timeout_ms,
        )
        fenced = FencedInstanceIdError(
            f"another member with group.instance.id={member.group_instance_id} has joined group {self.group_id}"
        )
        self._answer_join(member, fenced)
        self._answer_sync(member, fenced)
        self._cancel_session_timer(member)
        self._pending_sync.discard(member.member_id)
        self.roster.rename(member, request.new_member_id)
        self._update(member, request)
        self._park_join(member, call)
        self._heard_of(member, now_ms)
        if self.state is GroupState.STABLE and self._is_same(member, replaced):
            self._store({each.member_id: each.assignment for each in self.roster}, replaced)
        else:
            # With the assignment still to come, the leader knows the member by its old id.
            self._prepare(now_ms)

    def _is_same(self, member: Member, replaced: Replaced) -> bool:
        """Whether the group would come to the same assignor, and the member wants the same topics as before."""
        if self.roster.select_protocol() != self.protocol_name:
            return False
        old = next((metadata for name, metadata in replaced.old_protocols if name == self.protocol_name), b"")
        new = member.metadata(self.protocol_name)
        if self.protocol_type != CONSUMER:
            return old == new
        topics = topics_of(new)
        return old == new or (topics is not None and topics == topics_of(old))

    # --- members ask ---------------------------------------------------------------------------------------

    def sync(self, call: int, request: SyncRequest, now_ms: int) -> None:
        """A member asks for its assignment, the leader brings it; answered now, or once the leader's is written down.

        Errors among the answers: ``UnknownMemberError``, ``FencedInstanceIdError``, ``IllegalGenerationError``,
        ``InconsistentGroupProtocolError``, ``RebalanceInProgressError``, ``CoordinatorNotAvailableError``.
        """
        try:
            self._sync(call, request, now_ms)
        except MillraceError as error:
            self._effects.append(Answer(call, error))

    def _sync(self, call: int, request: SyncRequest, now_ms: int) -> None:
        member = self._current_member(request.identity)
        self._check_named("protocol type", request.protocol_type, self.protocol_type)
        self._check_named("assignor", request.protocol_name, self.protocol_name or "")
        if self.state is GroupState.PREPARING_REBALANCE:
            raise self._rebalancing()
        self._has_asked(member)
        if self.state is GroupState.STABLE:
            self._effects.append(Answer(call, self._sync_answer(member)))
            self._heard_of(member, now_ms)
            return
        self._park_sync(member, call)
        if self.roster.leader == member.member_id and not self._is_storing_assignment:
            self._store({each.member_id: request.assignments.get(each.member_id, b"") for each in self.roster})

    def _check_named(self, what: str, named: str, present: str) -> None:
        if named and named != present:
            raise InconsistentGroupProtocolError(
                f"group {self.group_id} has {what} {present or 'none'}, the member takes it for {named}: join again"
            )

    def heartbeat(self, identity: Identity, now_ms: int) -> None:
        """A member lives. Raises what ``sync`` answers, ``RebalanceInProgressError`` if it is to join again."""
        member = self._current_member(identity)
        self._heard_of(member, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise self._rebalancing()

    def leave(self, identity: Identity, now_ms: int) -> None:
        """A member goes. Without a member id, it is the static member of that instance, whoever asks.

        Raises ``UnknownMemberError``, ``FencedInstanceIdError``, ``CoordinatorNotAvailableError``.
        """
        self._check_alive()
        member_id = identity.member_id
        if member_id == NO_MEMBER:
            member_id = self.roster.static.get(identity.group_instance_id or "", NO_MEMBER)
        if member_id in self.pending:
            self._forget_pending(member_id)
            self._check_joined(now_ms)
            return
        member = self._known_member(Identity(member_id=member_id, group_instance_id=identity.group_instance_id))
        self._remove(member, now_ms)

    def check_commit(self, identity: Identity, now_ms: int, *, is_transactional: bool = False) -> None:
        """Check that somebody may commit offsets of the group; a member that does so lives.

        Raises ``UnknownMemberError``, ``FencedInstanceIdError``, ``IllegalGenerationError``,
        ``RebalanceInProgressError``, ``CoordinatorNotAvailableError``.
        """
        self._check_alive()
        is_empty = self.state is GroupState.EMPTY
        is_member = identity.member_id != NO_MEMBER or identity.group_instance_id is not None
        if identity.generation_id < 0 and (is_empty or (is_transactional and not is_member)):
            return
        if identity.generation_id < 0 and not is_member:
            raise UnknownMemberError(
                f"group {self.group_id} has members: only they commit. Stop them first, or use another group id"
            )
        member = self._current_member(identity)
        if is_transactional:
            return  # the generation is all that counts (KIP-447)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise self._rebalancing()
        self._heard_of(member, now_ms)

    # --- time ----------------------------------------------------------------------------------------------

    def timer_fired(self, key: TimerKey, now_ms: int) -> None:
        """The time of a timer has come. One that was cancelled or set anew meanwhile does no harm."""
        if self.state is GroupState.DEAD:
            return
        if key.kind is TimerKind.JOIN:
            self._join_time_is_up(now_ms)
        elif key.kind is TimerKind.SYNC:
            self._sync_time_is_up(now_ms)
        elif key.kind is TimerKind.PENDING:
            self.pending.discard(key.member_id)
        else:
            member = self.roster.get(key.member_id)
            if member is not None and self._is_overdue(member, now_ms):
                self._remove(member, now_ms)
        self._check_joined(now_ms)

    def _remove(self, member: Member, now_ms: int) -> None:
        self._take_out(member)
        self._prepare(now_ms)
        self._check_joined(now_ms)

    # --- checks --------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailableError(
                f"group {self.group_id} is being deleted: find the coordinator and try again"
            )

    def _known_member(self, identity: Identity) -> Member:
        """The member that somebody is. Raises ``FencedInstanceIdError``, ``UnknownMemberError``."""
        member = self.roster.get(identity.member_id)
        if identity.group_instance_id is not None:
            present = self.roster.static.get(identity.group_instance_id)
            if present is not None and present != identity.member_id:
                raise FencedInstanceIdError(
                    f"another member with group.instance.id={identity.group_instance_id} has joined group "
                    f"{self.group_id}: give each process an instance id of its own"
                )
            if present is None:
                member = None
        if member is None:
            raise UnknownMemberError(
                f"group {self.group_id} does not know member {identity.member_id or '(none)'}: join again"
            )
        return member

    def _current_member(self, identity: Identity) -> Member:
        """The member, which must be of this generation; raises ``IllegalGenerationError`` as well."""
        self._check_alive()
        member = self._known_member(identity)
        if identity.generation_id != self.generation_id:
            raise IllegalGenerationError(
                f"group {self.group_id} is in generation {self.generation_id}, member {identity.member_id} in "
                f"{identity.generation_id}: join again"
            )
        return member

    def _rebalancing(self) -> RebalanceInProgressError:
        return RebalanceInProgressError(f"group {self.group_id} is rebalancing: join again")
