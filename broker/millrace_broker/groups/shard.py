"""The groups of one partition of ``__consumer_offsets``: their machines, their timers, those who wait for answers.

Invariants

- Whatever a machine is told, its effects are carried out before anything else happens to it.
- Everybody who waits is answered: by the machine, or because the caller has gone and the machine was told so.
- Offsets count once their records are in the log; a call that is cancelled meanwhile changes nothing about that.

For the event loop's thread, but for ``replay``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.errors import (
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
from millrace_broker.coordinators import LoadedBatch, StateLog, written
from millrace_broker.groups.group import Group, check_session_timeout
from millrace_broker.groups.loading import LoadedGroup, Loading
from millrace_broker.groups.model import (
    CONSUMER,
    NO_MEMBER,
    Answer,
    GroupSettings,
    GroupState,
    Identity,
    JoinAnswer,
    JoinRequest,
    MemberIdGiven,
    SetTimer,
    Store,
    StoredGroup,
    SyncAnswer,
    SyncRequest,
    TimerKey,
)
from millrace_broker.groups.offsets import Committed, GroupOffsets, Partition
from millrace_broker.groups.records import group_record, group_tombstone, offset_record, offset_tombstone
from millrace_broker.groups.timers import GroupTimers
from millrace_broker.quotas import parked
from millrace_broker.runtime import BackgroundTasks, Clock, Executors

_logger: Final = logging.getLogger(__name__)

_calls: Final = itertools.count()


@dataclass(slots=True)
class Entry:
    """A group with all that is known of it; ``state_since_ms`` is in ms since 1970, -1 if it is not known."""

    group: Group
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1


class GroupShard:
    """The groups of one partition; see the module."""

    def __init__(
        self, log: StateLog, settings: GroupSettings, timers: GroupTimers, *, clock: Clock, executors: Executors
    ) -> None:
        self._clock: Final = clock
        self._executors: Final = executors
        self._log: Final = log
        self._settings: Final = settings
        self._timers: Final = timers
        self._loading: Loading | None = Loading(log.name)
        self._entries: Final[dict[str, Entry]] = {}
        self._waiting: Final[dict[int, asyncio.Future[Any]]] = {}
        self._tasks: Final = BackgroundTasks()
        self._open: Final[dict[int, set[str]]] = {}
        """The groups in which a producer has offsets pending, or on their way."""

    # --- life ----------------------------------------------------------------------------------------------

    def replay(self, batch: LoadedBatch) -> None:
        """Take in a batch of the log."""
        assert self._loading is not None, "it has been loaded"
        self._loading.replay(batch)

    def activate(self) -> None:
        """Begin to answer; members that were there have their sessions' time to be heard of."""
        assert self._loading is not None, "it has been loaded"
        loaded, self._loading = self._loading.groups(), None
        for group_id, each in loaded.items():
            self._entries[group_id] = entry = self._restored(group_id, each)
            for producer_id in entry.offsets.open_producers:
                self._open.setdefault(producer_id, set()).add(group_id)
            self._carry_out(entry)

    def _restored(self, group_id: str, loaded: LoadedGroup) -> Entry:
        stored, state_since_ms = None, -1
        try:
            stored, state_since_ms = loaded.read()
        except (InvalidRecordError, UnsupportedVersionError) as error:
            # A later version of the broker wrote it, say. What it has committed is there all the same.
            _logger.error("group %s cannot be read, its members must join again: %s", group_id, error.message)
        if stored is None:
            return Entry(Group(group_id, self._settings), loaded.offsets)
        group = Group.restore(group_id, self._settings, stored, self._now_ms())
        return Entry(group, loaded.offsets, group.state, state_since_ms)

    def release(self) -> None:
        """Answer all who wait, stop all timers, let nobody in any more. What is being written is finished."""
        for entry in self._entries.values():
            entry.group.close()
            self._carry_out(entry)

    def deactivate(self) -> None:
        """The same, and forget everything."""
        self.release()
        self._entries.clear()

    # --- views ---------------------------------------------------------------------------------------------

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The groups, by id."""
        return self._entries

    # --- membership ----------------------------------------------------------------------------------------

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer | MemberIdGiven:
        """See ``Group.join``; a group that is not there is made for members without an id."""
        entry = self._entries.get(group_id)
        if entry is None:
            check_session_timeout(request.session_timeout_ms, self._settings)
            if request.member_id != NO_MEMBER:
                raise self._unknown_member(group_id, request.member_id)
            entry = self._add(group_id)
        call = next(_calls)
        with self._event(entry):
            entry.group.join(call, request, self._now_ms())
        answer: JoinAnswer | MemberIdGiven = await self._answer(entry, call)
        return answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """See ``Group.sync``."""
        entry = self._member_entry(group_id, request.identity)
        call = next(_calls)
        with self._event(entry):
            entry.group.sync(call, request, self._now_ms())
        answer: SyncAnswer = await self._answer(entry, call)
        return answer

    def heartbeat(self, group_id: str, identity: Identity) -> None:
        """See ``Group.heartbeat``."""
        entry = self._member_entry(group_id, identity)
        with self._event(entry):
            entry.group.heartbeat(identity, self._now_ms())

    def leave(self, group_id: str, identity: Identity) -> None:
        """See ``Group.leave``."""
        entry = self._member_entry(group_id, identity)
        with self._event(entry):
            entry.group.leave(identity, self._now_ms())

    def _member_entry(self, group_id: str, identity: Identity) -> Entry:
        entry = self._entries.get(group_id)
        if entry is None:
            raise self._unknown_member(group_id, identity.member_id)
        return entry

    def _unknown_member(self, group_id: str, member_id: str) -> UnknownMemberError:
        return UnknownMemberError(f"group {group_id} has no members, {member_id or '(none)'} among them: join again")

    def _add(self, group_id: str) -> Entry:
        entry = Entry(Group(group_id, self._settings))
        self._entries[group_id] = entry
        return entry

    # --- running the machines ------------------------------------------------------------------------------

    @contextmanager
    def _event(self, entry: Entry) -> Iterator[None]:
        """Something happens to a group: what follows from it is done at once, also when the event is an error."""
        try:
            yield
        finally:
            self._carry_out(entry)

    def _carry_out(self, entry: Entry) -> None:
        group = entry.group
        if group.state is not entry.state:
            entry.state, entry.state_since_ms = group.state, self._clock.now_ms()
        for effect in group.take_effects():
            if isinstance(effect, Answer):
                self._waiting.setdefault(effect.call, asyncio.get_running_loop().create_future())
                _answer(self._waiting[effect.call], effect.answer)
            elif isinstance(effect, SetTimer):
                self._set_timer(entry, effect.key, effect.delay_ms)
            elif isinstance(effect, Store):
                record = group_record(group.group_id, effect.group, entry.state_since_ms)
                self._tasks.start(self._store(entry, effect.token, self._log.submit([record])))
            else:
                self._timers.cancel((group.group_id, effect.key))

    def _set_timer(self, entry: Entry, key: TimerKey, delay_ms: int) -> None:
        def fire() -> None:
            with self._event(entry):
                entry.group.timer_fired(key, self._now_ms())

        self._timers.set((entry.group.group_id, key), delay_ms, fire)

    async def _answer(self, entry: Entry, call: int) -> Any:
        """Wait for the answer to a call, which may wait for other members: the call is parked."""
        answer = self._waiting.setdefault(call, asyncio.get_running_loop().create_future())
        try:
            if answer.done():
                return answer.result()
            with parked():
                return await answer
        except asyncio.CancelledError:
            with self._event(entry):
                entry.group.abandon(call, self._now_ms())
            raise
        finally:
            del self._waiting[call]

    async def _store(self, entry: Entry, token: int, appending: asyncio.Future[int]) -> None:
        group_id = entry.group.group_id
        error: MillraceError | None = None
        try:
            await appending
        except MillraceError as failure:
            error = failure
            _logger.warning("group %s could not be written down: %s", group_id, error.message)
        except Exception:
            error = UnknownServerError(f"group {group_id} could not be written down: the broker's log says why")
            _logger.exception("group %s could not be written down", group_id)
        with self._event(entry):
            entry.group.stored(token, error, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # --- offsets -------------------------------------------------------------------------------------------

    async def commit(self, group_id: str, identity: Identity, commits: Mapping[Partition, Committed]) -> None:
        """Commit offsets; returns when they are as durable as the topic is to be.

        Raises what ``Group.check_commit`` does, ``IllegalGenerationError`` for a generation of a group that is not
        there, ``InvalidCommitOffsetSizeError`` for more than a batch holds, ``StorageError``.
        """
        entry = self._entry_to_commit(group_id, identity)
        with self._event(entry):
            entry.group.check_commit(identity, self._now_ms())
        if commits:
            await self._append_commits(entry, commits)

    async def commit_transactional(
        self,
        group_id: str,
        identity: Identity,
        commits: Mapping[Partition, Committed],
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        """Commit offsets that count once the producer's transaction is committed; raises what ``commit`` does."""
        entry = self._entry_to_commit(group_id, identity)
        with self._event(entry):
            entry.group.check_commit(identity, self._now_ms(), is_transactional=True)
        if commits:
            self._open.setdefault(producer_id, set()).add(group_id)
            await self._append_commits(entry, commits, (producer_id, producer_epoch))

    def _entry_to_commit(self, group_id: str, identity: Identity) -> Entry:
        entry = self._entries.get(group_id)
        if entry is None:
            if identity.generation_id >= 0:
                raise IllegalGenerationError(
                    f"group {group_id} has no members: generation {identity.generation_id} is not known. Join again"
                )
            entry = self._add(group_id)
        return entry

    async def _append_commits(
        self, entry: Entry, commits: Mapping[Partition, Committed], producer: tuple[int, int] | None = None
    ) -> None:
        group_id = entry.group.group_id
        records = [offset_record(group_id, partition, commit) for partition, commit in commits.items()]
        producer_id = None if producer is None else producer[0]
        entry.offsets.begin(commits, producer_id)
        appending = self._log.submit(records, producer)

        def finish(done: asyncio.Future[int]) -> None:
            position = done.result() if done.exception() is None else None
            entry.offsets.finish(commits, position, producer_id)

        # Before whoever waits is told, and also if nobody waits any more.
        appending.add_done_callback(finish)
        try:
            await written(appending)
        except MessageTooLargeError as error:
            raise InvalidCommitOffsetSizeError(
                f"{len(commits)} offsets of group {group_id} are too many for one batch: commit fewer at once "
                f"({error.message})"
            ) from None

    def complete_transaction(self, producer_id: int, *, is_committed: bool) -> None:
        """A producer's transaction has ended: its marker is in this partition."""
        for group_id in self._open.pop(producer_id, ()):
            entry = self._entries.get(group_id)
            if entry is not None:
                offsets, end_offset = entry.offsets, self._log.end_offset
                offsets.complete(producer_id, is_committed=is_committed, end_offset=end_offset)

    async def delete_offsets(self, group_id: str, partitions: Sequence[Partition]) -> dict[Partition, MillraceError]:
        """Forget offsets of partitions; returns those that could not be, and why.

        Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError`` for a group that is not one of consumers.
        """
        entry = self._present(group_id)
        refused: dict[Partition, MillraceError] = {}
        if entry.group.state is not GroupState.EMPTY:
            if entry.group.protocol_type != CONSUMER:
                raise NonEmptyGroupError(f"group {group_id} has members: stop them first")
            topics = entry.group.subscribed_topics()
            refused = {
                partition: GroupSubscribedToTopicError(f"group {group_id} is subscribed to {partition[0]}")
                for partition in partitions
                if topics is None or partition[0] in topics
            }
        await self._forget(entry, [partition for partition in partitions if partition not in refused])
        return refused

    async def delete_topics(self, topics: frozenset[str]) -> None:
        """Forget all offsets in topics that are gone."""
        for entry in list(self._entries.values()):
            await self._forget(entry, entry.offsets.of_topics(topics))

    async def _forget(self, entry: Entry, partitions: Sequence[Partition]) -> None:
        there = entry.offsets.deletable(partitions)
        if there:
            await self._executors.to_the_end(self._append_tombstones(entry, there))

    async def _append_tombstones(self, entry: Entry, partitions: Sequence[Partition]) -> None:
        records = [offset_tombstone(entry.group.group_id, partition) for partition in partitions]
        for first in range(0, len(records), _TOMBSTONES_AT_ONCE):
            some = records[first : first + _TOMBSTONES_AT_ONCE]
            position = await self._log.append(some)
            entry.offsets.delete(partitions[first : first + len(some)], position + len(some) - 1)

    # --- groups --------------------------------------------------------------------------------------------

    def _present(self, group_id: str) -> Entry:
        entry = self._entries.get(group_id)
        if entry is None:
            raise GroupIdNotFoundError(f"there is no group {group_id}: list them with `millrace groups list`")
        return entry

    async def delete_group(self, group_id: str) -> None:
        """Forget a group and its offsets. Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError``, ``StorageError``."""
        entry = self._present(group_id)
        if entry.group.state is not GroupState.EMPTY:
            raise NonEmptyGroupError(f"group {group_id} has {len(entry.group.roster)} members: stop them first")
        with self._event(entry):
            entry.group.delete()
        await self._executors.to_the_end(self._delete(entry))

    async def _delete(self, entry: Entry) -> None:
        """Write the tombstones of a dead group; until they are there, nobody is let in."""
        group = entry.group
        try:
            await self._append_tombstones(entry, entry.offsets.partitions())
            await self._log.append([group_tombstone(group.group_id)])
            del self._entries[group.group_id]
        except BaseException:
            left = StoredGroup(protocol_type=group.protocol_type, generation_id=group.generation_id)
            again = Group.restore(group.group_id, self._settings, left, self._now_ms())
            self._entries[group.group_id] = Entry(again, entry.offsets, again.state, entry.state_since_ms)
            raise

    async def expire(self, retention_ms: int) -> int:
        """Forget offsets that nobody needs any more, and groups that have nothing left; returns how many offsets."""
        count = 0
        for entry in list(self._entries.values()):
            group = entry.group
            expired = entry.offsets.expired(
                self._clock.now_ms(),
                retention_ms,
                state=group.state,
                protocol_type=group.protocol_type,
                state_since_ms=entry.state_since_ms,
                subscribed_topics=group.subscribed_topics(),
            )
            await self._append_tombstones(entry, expired)
            count += len(expired)
            is_idle = group.state is GroupState.EMPTY and not group.pending
            if is_idle and entry.offsets.is_empty and self._entries.get(group.group_id) is entry:
                await self._forget_idle(entry)
        return count

    async def _forget_idle(self, entry: Entry) -> None:
        group = entry.group
        with self._event(entry):
            group.delete()
        del self._entries[group.group_id]
        if group.generation_id > 0:  # else it was never written down
            await self._log.append([group_tombstone(group.group_id)])


_TOMBSTONES_AT_ONCE: Final = 1000


def _answer(waiting: asyncio.Future[Any], answer: JoinAnswer | MemberIdGiven | SyncAnswer | MillraceError) -> None:
    if waiting.done():
        return  # the caller has gone in this very moment
    if isinstance(answer, MillraceError):
        waiting.set_exception(answer)
        waiting.exception()  # seen, also if the caller goes before it looks
    else:
        waiting.set_result(answer)
