"""Groups of one partition of ``__consumer_offsets``, with their timers, callers and records.

Invariants

- The effects of an event are carried out before the next event of the same group.
- Each open call is answered, or the group is told that its caller has disconnected.
- Offsets count after their records are in the log, even if the call is cancelled meanwhile.

The class is for the event loop's thread, except for ``replay``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from millrace.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InvalidCommitOffsetSizeError,
    InvalidRecordError,
    MessageTooLargeError,
    MillraceError,
    NonEmptyGroupError,
    UnknownMemberError,
    UnknownServerError,
    UnsupportedVersionError,
)
from millrace_broker.coordinators import LoadedBatch, OpenTransaction, StateLog, in_time, when_done, written
from millrace_broker.groups.callers import Callers
from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.consumer.consumer_group import ConsumerGroup, ConsumerSettings, Heartbeat, HeartbeatAnswer
from millrace_broker.groups.consumer.topics import ClusterTopics
from millrace_broker.groups.consumer_calls import ConsumerCalls
from millrace_broker.groups.effects import Answer, SetTimer, Store, StoredGroup, TimerKey
from millrace_broker.groups.entries import GroupEntry
from millrace_broker.groups.loading import GroupLoader, LoadedGroup
from millrace_broker.groups.offsets import CommittedOffset
from millrace_broker.groups.records import group_record, group_tombstone, offset_record, offset_tombstone
from millrace_broker.groups.requests import (
    CONSUMER,
    NO_MEMBER,
    WITH_MEMBER_EPOCHS,
    GroupSettings,
    Identity,
    JoinAnswer,
    JoinRequest,
    MemberIdGiven,
    SyncAnswer,
    SyncRequest,
    check_session_timeout,
)
from millrace_broker.groups.states import GroupState
from millrace_broker.groups.timers import GroupTimers
from millrace_broker.purgatory import PartitionKey
from millrace_broker.runtime import BackgroundTasks, Clock, Executors, monotonic_ms

_logger: Final = logging.getLogger(__name__)

_calls: Final = itertools.count()
_TOMBSTONES_AT_ONCE: Final = 1000
"""Tombstones in one append."""
Commits = Mapping[PartitionKey, CommittedOffset]


class GroupShard:
    """Groups of one partition of ``__consumer_offsets``; see the module."""

    def __init__(
        self,
        log: StateLog,
        settings: GroupSettings,
        consumer_settings: ConsumerSettings,
        timers: GroupTimers,
        *,
        session_timeout_ms: Callable[[str], int],
        topics: ClusterTopics,
        clock: Clock,
        executors: Executors,
    ) -> None:
        self._clock: Final = clock
        self._executors: Final = executors
        self.log: Final = log
        """The log of the partition, which also verifies transactions."""
        self._settings: Final = settings
        self._timers: Final = timers
        self._loading: GroupLoader | None = GroupLoader(log.name)
        self._entries: Final[dict[str, GroupEntry]] = {}
        self._callers: Final = Callers()
        self._tasks: Final = BackgroundTasks()
        self._consumers: Final = ConsumerCalls(
            self._entries,
            log,
            consumer_settings,
            settings,
            timers,
            session_timeout_ms=session_timeout_ms,
            topics=topics,
            clock=clock,
            executors=executors,
            carry_out=self._carry_out,
        )
        self._open_groups: Final[dict[int, set[str]]] = {}
        """The groups with offsets of a producer that are pending or being appended, as in Kafka."""

    # --- life ----------------------------------------------------------------------------------------------

    def replay(self, batch: LoadedBatch) -> None:
        """Apply a batch of the log."""
        assert self._loading is not None, "the shard is active"
        self._loading.replay(batch)

    def activate(self) -> None:
        """Begin to answer. The sessions of loaded members begin now."""
        assert self._loading is not None, "the shard is active"
        loaded, self._loading = self._loading.groups(), None
        for group_id, each in loaded.items():
            self._entries[group_id] = entry = self._restore(group_id, each)
            for producer_id in entry.offsets.open_producers:
                self._open_groups.setdefault(producer_id, set()).add(group_id)
            if isinstance(entry.group, ConsumerGroup):
                self._consumers.start(entry)
            else:
                self._carry_out(entry)

    def _restore(self, group_id: str, loaded: LoadedGroup) -> GroupEntry:
        if (consumer := loaded.consumer) is not None:
            return GroupEntry(consumer, loaded.offsets)
        stored, state_since_ms = None, -1
        try:
            stored, state_since_ms = loaded.read()
        except (InvalidRecordError, UnsupportedVersionError) as error:
            # A later version may have written the record. The committed offsets are read all the same.
            _logger.error(
                "the record of group %s cannot be read, its members must join again: %s", group_id, error.message
            )
        if stored is None:
            return GroupEntry(ClassicGroup(group_id, self._settings), loaded.offsets)
        group = ClassicGroup.restore(group_id, self._settings, stored, monotonic_ms(self._clock))
        return GroupEntry(group, loaded.offsets, group.state, state_since_ms)

    def release(self) -> None:
        """Answer all open calls, stop all timers, and accept no new members. Appends that have begun go on."""
        for entry in self._entries.values():
            if isinstance(entry.group, ConsumerGroup):
                self._consumers.stop(entry)
            else:
                entry.group.close()
                self._carry_out(entry)

    def deactivate(self) -> None:
        """Release all groups, and forget them."""
        self.release()
        self._entries.clear()

    @property
    def entries(self) -> Mapping[str, GroupEntry]:
        """The groups, by id."""
        return self._entries

    # --- membership ----------------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer | MemberIdGiven:
        """Answer a JoinGroup request (``ClassicGroup.join``). A member without an id creates the group.

        A consumer group accepts classic members too (``classic_members.join``). Raises ``InvalidSessionTimeoutError``.
        """
        check_session_timeout(request.session_timeout_ms, self._settings)
        entry = self._entries.get(group_id)
        if entry is None:
            if request.member_id != NO_MEMBER:
                raise self._unknown_member(group_id, request.member_id)
            entry = self._add(group_id)
        if isinstance(entry.group, ConsumerGroup):
            given = await self._consumers.join(entry, request)
            if given is not None:
                return given
        call, group = next(_calls), entry.classic
        with self._event(entry):
            group.join(call, request, monotonic_ms(self._clock))
        answer: JoinAnswer | MemberIdGiven = await self._answer(entry, call)
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Answer a SyncGroup request (``ClassicGroup.sync``)."""
        entry = self._member_entry(group_id, request.identity)
        if isinstance(entry.group, ConsumerGroup):
            return await self._consumers.sync(entry, request)
        call = next(_calls)
        with self._event(entry):
            entry.classic.sync(call, request, monotonic_ms(self._clock))
        answer: SyncAnswer = await self._answer(entry, call)
        return answer

    async def heartbeat(self, group_id: str, identity: Identity) -> None:
        """Extend a member's session (``ClassicGroup.heartbeat``)."""
        entry = self._member_entry(group_id, identity)
        if isinstance(entry.group, ConsumerGroup):
            await self._consumers.classic_heartbeat(entry, identity)
            return
        with self._event(entry):
            entry.classic.heartbeat(identity, monotonic_ms(self._clock))

    async def consumer_heartbeat(self, group_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        """Answer a ConsumerGroupHeartbeat (``ConsumerCalls.heartbeat``)."""
        return await self._consumers.heartbeat(group_id, beat)

    async def leave(self, group_id: str, identity: Identity) -> None:
        """Remove a member (``ClassicGroup.leave``)."""
        entry = self._member_entry(group_id, identity)
        if isinstance(entry.group, ConsumerGroup) and await self._consumers.leave(entry, identity):
            return
        with self._event(entry):
            entry.classic.leave(identity, monotonic_ms(self._clock))

    def _member_entry(self, group_id: str, identity: Identity) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            raise self._unknown_member(group_id, identity.member_id)
        return entry

    def _unknown_member(self, group_id: str, member_id: str) -> UnknownMemberError:
        return UnknownMemberError(
            f"group {group_id} has no members, so {member_id or '(no member id)'} is not one: join again"
        )

    def _add(self, group_id: str) -> GroupEntry:
        entry = GroupEntry(ClassicGroup(group_id, self._settings))
        self._entries[group_id] = entry
        return entry

    # --- running the machines ------------------------------------------------------------------------------

    @contextmanager
    def _event(self, entry: GroupEntry) -> Iterator[None]:
        """Carry out the effects of a classic group's event, even if it raises an error."""
        try:
            yield
        finally:
            self._carry_out(entry)

    def _carry_out(self, entry: GroupEntry) -> None:
        group = entry.classic
        if group.state is not entry.state:
            entry.state, entry.state_since_ms = group.state, self._clock.now_ms()
        for effect in group.take_effects():
            if isinstance(effect, Answer):
                self._callers.answer(effect.call, effect.answer)
            elif isinstance(effect, SetTimer):
                self._set_timer(entry, effect.key, effect.delay_ms)
            elif isinstance(effect, Store):
                record = group_record(group.group_id, effect.group, entry.state_since_ms)
                self._tasks.start(self._store(entry, effect.token, self.log.submit([record])))
            else:
                self._timers.cancel((group.group_id, effect.key))

    def _set_timer(self, entry: GroupEntry, key: TimerKey, delay_ms: int) -> None:
        group = entry.classic

        def fire() -> None:
            if entry.group is group:
                with self._event(entry):
                    group.timer_fired(key, monotonic_ms(self._clock))

        self._timers.set((entry.group.group_id, key), delay_ms, fire)

    async def _answer(self, entry: GroupEntry, call: int) -> Any:
        """Wait for the answer to a call. A call that waits for other members is parked."""
        group = entry.group
        try:
            return await self._callers.wait(call)
        except asyncio.CancelledError:
            if isinstance(group, ClassicGroup) and entry.group is group:
                with self._event(entry):
                    group.abandon(call, monotonic_ms(self._clock))
            raise

    async def _store(self, entry: GroupEntry, token: int, appending: asyncio.Future[int]) -> None:
        group = entry.classic
        group_id = group.group_id
        error: MillraceError | None = None
        try:
            await written(appending)
        except MillraceError as failure:
            error = failure
            _logger.warning("the record of group %s could not be appended: %s", group_id, error.message)
        except Exception:
            error = UnknownServerError(f"group {group_id} could not be stored: see the broker's log for the cause")
            _logger.exception("the record of group %s could not be appended", group_id)
        if entry.group is group:  # else it has become a consumer group meanwhile
            with self._event(entry):
                group.stored(token, error, monotonic_ms(self._clock))

    # --- offsets -------------------------------------------------------------------------------------------

    async def commit(self, group_id: str, identity: Identity, commits: Commits) -> None:
        """Commit offsets; return when their records are as durable as the topic requires.

        Raises the errors of ``ClassicGroup.check_commit`` and ``ConsumerGroup.check_commit``, and those of a
        generation of an unknown group. Raises ``InvalidCommitOffsetSizeError`` for more offsets than one batch holds.
        """
        entry = self._entry_to_commit(group_id, identity)
        self._check_commit(entry, identity, is_transactional=False)
        if commits:
            await self._append_commits(entry, commits)

    async def commit_transactional(
        self, group_id: str, identity: Identity, commits: Commits, transaction: OpenTransaction
    ) -> None:
        """Append offsets that count when the producer's transaction commits.

        Raises the errors of ``commit``, ``InvalidTxnStateError`` if the transaction has ended.
        """
        entry = self._entry_to_commit(group_id, identity)
        self._check_commit(entry, identity, is_transactional=True)
        if commits:
            self._open_groups.setdefault(transaction.producer_id, set()).add(group_id)
            await self._append_commits(entry, commits, transaction)

    def _check_commit(self, entry: GroupEntry, identity: Identity, *, is_transactional: bool) -> None:
        if entry.is_deleted:
            raise CoordinatorNotAvailableError(f"group {entry.group.group_id} is being deleted: retry")
        if isinstance(entry.group, ConsumerGroup):
            entry.group.check_commit(identity, is_transactional=is_transactional)
            return
        with self._event(entry):
            entry.group.check_commit(identity, monotonic_ms(self._clock), is_transactional=is_transactional)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Check that a client may fetch the offsets of a group (``ConsumerGroup.check_fetch``)."""
        entry = self._entries.get(group_id)
        if entry is not None and isinstance(entry.group, ConsumerGroup):
            entry.group.check_fetch(member_id, member_epoch)

    def _entry_to_commit(self, group_id: str, identity: Identity) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            if identity.generation_id >= 0:
                if identity.kafka_version >= WITH_MEMBER_EPOCHS:
                    raise GroupIdNotFoundError(f"group {group_id} does not exist: join it again")
                raise IllegalGenerationError(
                    f"group {group_id} has no members, so generation {identity.generation_id} is unknown: join again"
                )
            entry = self._add(group_id)
        return entry

    async def _append_commits(
        self, entry: GroupEntry, commits: Commits, transaction: OpenTransaction | None = None
    ) -> None:
        group_id = entry.group.group_id
        records = [offset_record(group_id, partition, commit) for partition, commit in commits.items()]
        producer_id = None if transaction is None else transaction.producer_id
        entry.offsets.begin(commits, producer_id)
        appending = self.log.submit(records, transaction, at_once=True)

        def finish(done: asyncio.Future[int]) -> None:
            position = done.result() if done.exception() is None else None
            entry.offsets.finish(commits, position, producer_id)

        # This runs before the caller gets its answer, and also after the caller has disconnected.
        when_done(appending, finish)
        try:
            await written(appending)
        except MessageTooLargeError as error:
            raise InvalidCommitOffsetSizeError(
                f"{len(commits)} offsets of group {group_id} do not fit into one batch ({error.message}): "
                "commit fewer partitions at a time"
            ) from None

    def complete_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        """Commit or drop a producer's pending offsets, because the marker of its transaction is in this partition."""
        for group_id in self._open_groups.pop(producer_id, ()):
            entry = self._entries.get(group_id)
            if entry is not None:
                offsets, end_offset = entry.offsets, self.log.end_offset
                offsets.complete(producer_id, is_committed=is_committed, end_offset=end_offset)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[PartitionKey]
    ) -> dict[PartitionKey, MillraceError]:
        """Delete the offsets of partitions; return the partitions that were refused, with the reason.

        Raises ``GroupIdNotFoundError``, and ``NonEmptyGroupError`` for a group with members that are not consumers.
        """
        entry = self._present(group_id)
        refused: dict[PartitionKey, MillraceError] = {}
        if not entry.group.is_empty:
            if entry.group.protocol_type != CONSUMER:
                raise NonEmptyGroupError(f"offsets of group {group_id} are kept while it has members: stop them first")
            topics = entry.group.subscribed_topics()
            refused = {
                partition: GroupSubscribedToTopicError(
                    f"offsets of {partition[0]} are kept while group {group_id} subscribes to it: unsubscribe first"
                )
                for partition in partitions
                if topics is None or partition[0] in topics
            }
        await self._forget(entry, [partition for partition in partitions if partition not in refused])
        return refused

    async def delete_topics(self, topics: frozenset[str]) -> None:
        """Delete all offsets of deleted topics."""
        for entry in list(self._entries.values()):
            await self._forget(entry, entry.offsets.of_topics(topics))

    async def _forget(self, entry: GroupEntry, partitions: Sequence[PartitionKey]) -> None:
        there = entry.offsets.deletable(partitions)
        if there:
            await in_time(self._append_tombstones(entry, there), self._executors)

    async def _append_tombstones(self, entry: GroupEntry, partitions: Sequence[PartitionKey]) -> None:
        records = [offset_tombstone(entry.group.group_id, partition) for partition in partitions]
        for first in range(0, len(records), _TOMBSTONES_AT_ONCE):
            some = records[first : first + _TOMBSTONES_AT_ONCE]
            position = await self.log.append(some)
            entry.offsets.delete(partitions[first : first + len(some)], position + len(some) - 1)

    # --- groups --------------------------------------------------------------------------------------------

    def _present(self, group_id: str) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            raise GroupIdNotFoundError(f"group {group_id} does not exist: list groups with `millrace groups list`")
        return entry

    async def delete_group(self, group_id: str) -> None:
        """Delete a group and its offsets. Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError``, append errors."""
        entry = self._present(group_id)
        if not entry.group.is_empty:
            raise NonEmptyGroupError(
                f"group {group_id} is not deleted while it has members ({len(entry.group.members)}): stop them first"
            )
        if isinstance(entry.group, ConsumerGroup):
            await self._delete_consumers(entry)
        else:
            with self._event(entry):
                entry.group.delete()
            await in_time(self._delete(entry), self._executors)

    async def _delete_consumers(self, entry: GroupEntry) -> None:
        await in_time(
            self._consumers.delete(entry, lambda: self._append_tombstones(entry, entry.offsets.partitions())),
            self._executors,
        )

    async def _delete(self, entry: GroupEntry) -> None:
        """Append the tombstones of a dead group. The group accepts no members until they are in the log."""
        group = entry.classic
        try:
            await self._append_tombstones(entry, entry.offsets.partitions())
            await self.log.append([group_tombstone(group.group_id)])
            del self._entries[group.group_id]
        except BaseException:
            left = StoredGroup(protocol_type=group.protocol_type, generation_id=group.generation_id)
            again = ClassicGroup.restore(group.group_id, self._settings, left, monotonic_ms(self._clock))
            self._entries[group.group_id] = GroupEntry(again, entry.offsets, again.state, entry.state_since_ms)
            raise

    async def expire(self, retention_ms: int) -> int:
        """Delete expired offsets, and empty groups without offsets; return the number of offsets."""
        count = 0
        for entry in list(self._entries.values()):
            group = entry.group
            expired = entry.offsets.expired(
                self._clock.now_ms(),
                retention_ms,
                state=group.state if isinstance(group, ClassicGroup) else GroupState.STABLE,  # since each commit
                protocol_type=group.protocol_type,
                state_since_ms=entry.state_since_ms,
                subscribed_topics=group.subscribed_topics(),
            )
            if expired:
                await in_time(self._append_tombstones(entry, expired), self._executors)
            count += len(expired)
            is_idle = group.is_empty and not (isinstance(group, ClassicGroup) and group.pending_members)
            if is_idle and entry.offsets.is_empty and self._entries.get(group.group_id) is entry:
                await self._forget_idle(entry)
        return count

    async def _forget_idle(self, entry: GroupEntry) -> None:
        if isinstance(entry.group, ConsumerGroup):
            if not entry.is_changing:  # else it is about to have a member
                await self._delete_consumers(entry)
            return
        group = entry.group
        with self._event(entry):
            group.delete()
        del self._entries[group.group_id]
        if group.generation_id > 0:  # a group without a generation has no record
            await written(self.log.submit([group_tombstone(group.group_id)]))
