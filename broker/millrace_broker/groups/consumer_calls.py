"""Calls to the consumer groups of one shard.

The calls set the groups' timers and append their records.

Invariants

- A group changes after the records of the change are in the log. Changes of one group come one after another
  (``GroupEntry.changing``). A call waits for a change in progress, also if it changes nothing itself: the change may
  remove the member that calls. Kafka's coordinator answers such calls after its pending writes too.
- A member of a group has a session timer. A member that has to revoke partitions has a timer for that too.
- A classic group that is converted accepts no calls from the start of the append. If the append fails, it is restored.

The class is for the event loop's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final, TypeVar

from millrace.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    MillraceError,
    NonEmptyGroupError,
    UnknownMemberError,
)
from millrace_broker.coordinators import StateLog, in_time
from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.consumer import classic_members
from millrace_broker.groups.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerSettings,
    Heartbeat,
    HeartbeatAnswer,
    check_request,
)
from millrace_broker.groups.consumer.members import JOIN_EPOCH, ConsumerMember, MemberState
from millrace_broker.groups.consumer.records import change_records
from millrace_broker.groups.consumer.topics import ClusterTopics
from millrace_broker.groups.effects import TimerKey, TimerKind
from millrace_broker.groups.entries import GroupEntry
from millrace_broker.groups.records import group_record, group_tombstone
from millrace_broker.groups.requests import (
    CONSUMER,
    NO_MEMBER,
    GroupSettings,
    Identity,
    JoinAnswer,
    JoinRequest,
    MemberIdGiven,
    SyncAnswer,
    SyncRequest,
)
from millrace_broker.groups.states import GroupState
from millrace_broker.groups.timers import GroupTimers
from millrace_broker.runtime import BackgroundTasks, Clock, Executors, monotonic_ms

T = TypeVar("T")

_logger: Final = logging.getLogger(__name__)

_MEMBER_TIMERS: Final = (TimerKind.SESSION, TimerKind.REVOCATION, TimerKind.JOIN, TimerKind.SYNC)


class ConsumerCalls:
    """Calls to the consumer groups of one shard; see the module."""

    def __init__(
        self,
        entries: MutableMapping[str, GroupEntry],
        log: StateLog,
        settings: ConsumerSettings,
        classic_settings: GroupSettings,
        timers: GroupTimers,
        *,
        session_timeout_ms: Callable[[str], int],
        topics: ClusterTopics,
        clock: Clock,
        executors: Executors,
        carry_out: Callable[[GroupEntry], None],
    ) -> None:
        """Take the parts. ``session_timeout_ms`` returns the option of a group.

        ``carry_out`` carries out the effects of a classic group.
        """
        self._entries: Final = entries
        self._log: Final = log
        self._settings: Final = settings
        self._classic_settings: Final = classic_settings
        self._timers: Final = timers
        self._session_timeout_ms: Final = session_timeout_ms
        self._topics: Final = topics
        self._clock: Final = clock
        self._executors: Final = executors
        self._carry_out: Final = carry_out
        self._tasks: Final = BackgroundTasks()

    # --- life ----------------------------------------------------------------------------------------------

    def start(self, entry: GroupEntry) -> None:
        """Begin the sessions and the revocations of a loaded group's members."""
        for member in entry.consumer.members.values():
            self._begin_session(entry, member)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                self._await_revocation(entry, member)

    def stop(self, entry: GroupEntry) -> None:
        """Stop all timers of a group."""
        for member_id in entry.consumer.members:
            self._cancel_timers(entry, member_id)

    # --- consumer protocol ---------------------------------------------------------------------------------

    async def heartbeat(self, group_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        """Answer a ConsumerGroupHeartbeat (``ConsumerGroup.heartbeat``). A member that joins creates the group.

        A classic group of consumers becomes a consumer group. Raises ``InvalidRequestError``,
        ``GroupIdNotFoundError``, and the errors of an append.
        """
        check_request(beat)
        entry = self._entries.get(group_id)
        if entry is None or (isinstance(entry.group, ClassicGroup) and beat.member_epoch != JOIN_EPOCH):
            if beat.member_epoch != JOIN_EPOCH:
                raise GroupIdNotFoundError(f"there is no consumer group {group_id}: join with epoch 0")
            entry = self._entries[group_id] = GroupEntry(ConsumerGroup(group_id=group_id))
        elif isinstance(entry.group, ClassicGroup):
            upgraded = await in_time(self._upgrade(entry, beat), self._executors)
            if upgraded is not None:
                return upgraded
        try:
            return await self._change(
                entry,
                lambda group: group.heartbeat(beat, self._topics, self._settings),
                heard_of=beat.member_id if beat.member_epoch >= JOIN_EPOCH else None,
            )
        finally:
            self._forget_if_new(entry)

    def _forget_if_new(self, entry: GroupEntry) -> None:
        """Forget a group whose first member could not join."""
        group = entry.group
        is_new = isinstance(group, ConsumerGroup) and not group.epoch and entry.offsets.is_empty
        if is_new and not entry.is_changing and self._entries.get(group.group_id) is entry:
            del self._entries[group.group_id]

    # --- classic protocol ----------------------------------------------------------------------------------

    async def join(self, entry: GroupEntry, request: JoinRequest) -> JoinAnswer | MemberIdGiven | None:
        """Answer a JoinGroup request (``classic_members.join``).

        The result is None if the group had no members, so that it has become a classic one. Raises
        ``UnknownMemberError`` if it had none and the request has a member id, and ``InconsistentGroupProtocolError`` if
        the migration policy is ``disabled``.
        """
        if not entry.consumer.members:
            if request.member_id != NO_MEMBER:
                entry.consumer.member(request.member_id)  # a refused request does not convert the group
            await in_time(self._become_classic(entry), self._executors)
            return None
        if not (self._settings.may_upgrade or self._settings.may_downgrade):
            raise InconsistentGroupProtocolError(
                f"group {entry.group.group_id} is a consumer group, which no classic member may join, because "
                "group.consumer.migration.policy is disabled: set group.protocol=consumer"
            )
        if request.member_id == NO_MEMBER and request.group_instance_id is None:
            return MemberIdGiven(member_id=request.new_member_id)
        answer = await self._change(
            entry,
            lambda group: classic_members.join(group, request, self._topics, self._settings),
            heard_of=request.member_id,
        )
        member = entry.consumer.members.get(answer.member_id) if isinstance(entry.group, ConsumerGroup) else None
        if member is not None:
            self._timers.cancel(_timer(entry, TimerKind.JOIN, member.member_id))
            self._begin_session(entry, member)
            self._await_call(entry, member, TimerKind.SYNC)
        return answer

    async def sync(self, entry: GroupEntry, request: SyncRequest) -> SyncAnswer:
        """Answer a SyncGroup request (``classic_members.sync``)."""
        await _settled(entry)
        answer = classic_members.sync(entry.consumer, request, self._topics)
        self._timers.cancel(_timer(entry, TimerKind.SYNC, request.identity.member_id))
        self._begin_session(entry, entry.consumer.members[request.identity.member_id])
        return answer

    async def classic_heartbeat(self, entry: GroupEntry, identity: Identity) -> None:
        """Extend the session of a classic member.

        Raises the errors of ``classic_members.check_member``. ``RebalanceInProgressError`` tells the member to join
        again.
        """
        await _settled(entry)
        group = entry.consumer
        member = classic_members.check_member(group, identity)
        self._begin_session(entry, member)
        if classic_members.needs_to_rejoin(group, member):
            if not self._timers.is_set(_timer(entry, TimerKind.JOIN, member.member_id)):
                self._await_call(entry, member, TimerKind.JOIN)
            raise classic_members.must_rejoin(group)

    async def leave(self, entry: GroupEntry, identity: Identity) -> bool:
        """Remove a member, or a static member by its instance id if the request has no member id.

        Return false if the group has become a classic one meanwhile. Clients do not repeat LeaveGroup.
        """
        await _settled(entry)  # the last member with the consumer protocol may be about to leave
        if isinstance(entry.group, ClassicGroup):
            return False
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if instance_id is not None:
            found = entry.consumer.static_member(instance_id)
            if found is not None and member_id not in (NO_MEMBER, found.member_id):
                raise entry.consumer.fenced_instance(instance_id)
            member_id = NO_MEMBER if found is None else found.member_id
        await self._change(entry, lambda group: (group.without(member_id, self._topics, self._settings), None))
        return True

    # --- changes -------------------------------------------------------------------------------------------

    async def _change(
        self,
        entry: GroupEntry,
        decide: Callable[[ConsumerGroup], tuple[ConsumerGroup, T]],
        *,
        heard_of: str | None = None,
    ) -> T:
        """Change a group as ``decide`` says; the call is not cancelled with its caller after it has begun.

        The session of the member ``heard_of`` begins again before another change can begin, which may be the removal
        of that member.
        """
        if not entry.is_changing:
            group = entry.consumer
            after, answer = decide(group)
            if after == group:
                entry.group = after  # it may know a later revision of the topics
                self._hear_of(entry, heard_of)
                return answer
        return await in_time(self._append_change(entry, decide, heard_of), self._executors)

    async def _append_change(
        self,
        entry: GroupEntry,
        decide: Callable[[ConsumerGroup], tuple[ConsumerGroup, T]],
        heard_of: str | None,
    ) -> T:
        async with entry.changing():
            before = self._present(entry).consumer
            after, answer = decide(before)
            if self._is_to_be_classic(after):
                await self._downgrade(entry, before, after)
            else:
                records = change_records(before if before.epoch else None, after, self._clock.now_ms())
                if records:  # none if a repetition of this call has changed the group meanwhile
                    await self._log.append(records)
                entry.group = after
                self._update_timers(entry, before, after)
                self._hear_of(entry, heard_of)
            return answer

    def _hear_of(self, entry: GroupEntry, member_id: str | None) -> None:
        member = entry.consumer.members.get(member_id) if member_id is not None else None
        if member is not None:
            self._begin_session(entry, member)

    def _present(self, entry: GroupEntry) -> GroupEntry:
        if self._entries.get(entry.group.group_id) is not entry or entry.is_deleted:
            raise CoordinatorNotAvailableError(f"group {entry.group.group_id} has been deleted: retry")
        return entry

    async def delete(self, entry: GroupEntry, delete_offsets: Callable[[], Awaitable[None]]) -> None:
        """Append the tombstones of an empty group and its offsets, and forget it. Raises ``NonEmptyGroupError``."""
        async with entry.changing():
            group = self._present(entry).consumer
            if group.members:
                raise NonEmptyGroupError(f"group {group.group_id} has a new member: stop it first")
            entry.is_deleted = True
            try:
                await delete_offsets()
                if group.epoch:
                    await self._log.append(change_records(group, None, self._clock.now_ms()))
            except BaseException:
                entry.is_deleted = False
                raise
            del self._entries[group.group_id]

    # --- migration -----------------------------------------------------------------------------------------

    async def _upgrade(self, entry: GroupEntry, beat: Heartbeat) -> HeartbeatAnswer | None:
        """Make a classic group a consumer group, with the member that joins with a heartbeat, and return its answer.

        Return None if the group has become a consumer group meanwhile. A heartbeat that is refused leaves the classic
        group as it was. Raises ``GroupIdNotFoundError`` if no migration is possible, and the errors of ``heartbeat``.
        """
        async with entry.changing():
            group = self._present(entry).group
            if isinstance(group, ConsumerGroup):
                return None
            if group.state is GroupState.DEAD:
                raise CoordinatorNotAvailableError(f"group {group.group_id} is being deleted: retry")
            self._check_upgrade(group)
            before = classic_members.upgraded(group.group_id, group.generation_id, group.members, self._topics)
            after, answer = before.heartbeat(beat, self._topics, self._settings)
            stored = group.record_content()
            group.upgrade()
            self._carry_out(entry)
            entry.group = before
            records = [group_tombstone(group.group_id)] if group.generation_id else []
            try:
                await self._log.append([*records, *change_records(None, after, self._clock.now_ms())])
            except BaseException:
                entry.group = ClassicGroup.restore(
                    group.group_id, self._classic_settings, stored, monotonic_ms(self._clock)
                )
                self._carry_out(entry)
                raise
            entry.group = after
            self.start(entry)
            if before.members:
                _logger.info("classic group %s has become a consumer group", group.group_id)
            return answer

    def _check_upgrade(self, group: ClassicGroup) -> None:
        if group.state is GroupState.EMPTY:
            return
        reason = None
        if not self._settings.may_upgrade:
            reason = "group.consumer.migration.policy does not allow it"
        elif group.protocol_type != CONSUMER:
            reason = f"its protocol type is {group.protocol_type}"
        elif len(group.members) > self._settings.max_size:
            reason = f"it has {len(group.members)} members, more than group.consumer.max.size"
        if reason is not None:
            raise GroupIdNotFoundError(f"classic group {group.group_id} cannot become a consumer group: {reason}")

    def _is_to_be_classic(self, group: ConsumerGroup) -> bool:
        return (
            self._settings.may_downgrade
            and classic_members.is_classic(group)
            and len(group.members) <= self._classic_settings.max_size
        )

    async def _downgrade(self, entry: GroupEntry, before: ConsumerGroup, after: ConsumerGroup) -> None:
        """Make a group without members of the consumer protocol a classic group, whose members join again.

        As in Kafka, the generation is the epoch before the change, so that members may commit until they join again.
        """
        stored, protocols = classic_members.downgraded(after, before.epoch, self._topics)
        now_ms = self._clock.now_ms()
        record = group_record(before.group_id, stored, now_ms)
        await self._log.append([*change_records(before, None, now_ms), record])
        for member_id in before.members.keys() | after.members.keys():
            self._cancel_timers(entry, member_id)
        group = ClassicGroup.restore(before.group_id, self._classic_settings, stored, monotonic_ms(self._clock))
        entry.group = group
        group.rejoin(protocols, monotonic_ms(self._clock))
        self._carry_out(entry)
        _logger.info("consumer group %s has become a classic group", before.group_id)

    async def _become_classic(self, entry: GroupEntry) -> None:
        async with entry.changing():
            group = self._present(entry).group
            if isinstance(group, ClassicGroup):
                return
            if group.members:
                raise InconsistentGroupProtocolError(f"group {group.group_id} has become a consumer group: join again")
            if group.epoch:
                await self._log.append(change_records(group, None, self._clock.now_ms()))
            entry.group = ClassicGroup(group.group_id, self._classic_settings)

    # --- timers --------------------------------------------------------------------------------------------

    def _update_timers(self, entry: GroupEntry, before: ConsumerGroup, after: ConsumerGroup) -> None:
        for member_id in before.members.keys() - after.members.keys():
            self._cancel_timers(entry, member_id)
        for member in after.members.values():
            present = before.members.get(member.member_id)
            if present is member:
                continue
            if member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._timers.cancel(_timer(entry, TimerKind.REVOCATION, member.member_id))
            elif present is None or (present.state, present.epoch) != (member.state, member.epoch):
                self._await_revocation(entry, member)

    def _cancel_timers(self, entry: GroupEntry, member_id: str) -> None:
        for kind in _MEMBER_TIMERS:
            self._timers.cancel(_timer(entry, kind, member_id))

    def _begin_session(self, entry: GroupEntry, member: ConsumerMember) -> None:
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        else:
            timeout_ms = self._session_timeout_ms(entry.group.group_id)
        timer = _timer(entry, TimerKind.SESSION, member.member_id)
        self._set_timer(entry, member, TimerKind.SESSION, timeout_ms, lambda _: not self._timers.is_set(timer))

    def _await_revocation(self, entry: GroupEntry, member: ConsumerMember) -> None:
        def has_not_revoked(present: ConsumerMember) -> bool:
            return present.state is MemberState.UNREVOKED_PARTITIONS and present.epoch == member.epoch

        self._set_timer(entry, member, TimerKind.REVOCATION, member.rebalance_timeout_ms, has_not_revoked)

    def _await_call(self, entry: GroupEntry, member: ConsumerMember, kind: TimerKind) -> None:
        self._set_timer(entry, member, kind, member.rebalance_timeout_ms, lambda present: present.classic is not None)

    def _set_timer(
        self,
        entry: GroupEntry,
        member: ConsumerMember,
        kind: TimerKind,
        delay_ms: int,
        is_overdue: Callable[[ConsumerMember], bool],
    ) -> None:
        """Fence the member after a delay, if it is overdue then, and still when its removal begins."""

        def fire() -> None:
            present = entry.group.members.get(member.member_id) if isinstance(entry.group, ConsumerGroup) else None
            if present is not None and is_overdue(present):
                self._tasks.start(self._fence(entry, present, kind, is_overdue))

        self._timers.set(_timer(entry, kind, member.member_id), max(1, delay_ms), fire)

    async def _fence(
        self, entry: GroupEntry, member: ConsumerMember, kind: TimerKind, is_overdue: Callable[[ConsumerMember], bool]
    ) -> None:
        group_id = entry.group.group_id
        _logger.info("member %s of group %s is removed: its %s timer has ended", member.member_id, group_id, kind.value)

        def removed(group: ConsumerGroup) -> tuple[ConsumerGroup, None]:
            present = group.members.get(member.member_id)
            if present is not None and not is_overdue(present):
                return group, None  # a call of the member has been answered meanwhile
            return group.without(member.member_id, self._topics, self._settings), None

        try:
            await self._change(entry, removed)
        except UnknownMemberError:
            return  # it has left meanwhile
        except MillraceError as error:
            _logger.warning("member %s of group %s could not be removed: %s", member.member_id, group_id, error.message)
            if self._entries.get(group_id) is entry and isinstance(entry.group, ConsumerGroup):
                self._begin_session(entry, member)


async def _settled(entry: GroupEntry) -> None:
    """Wait for a change of the group that is in progress."""
    if entry.is_changing:
        async with entry.changing():
            pass


def _timer(entry: GroupEntry, kind: TimerKind, member_id: str) -> tuple[str, TimerKey]:
    return entry.group.group_id, TimerKey(kind, member_id)
