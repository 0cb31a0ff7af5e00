"""The share groups of one partition of ``__share_group_state``: members, and the partitions that they share.

Members are in memory only: after a restart they join again, with their next heartbeat. For the event loop's thread, but
for ``replay``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from millrace.errors import GroupIdNotFoundError, InvalidRecordError, NonEmptyGroupError
from millrace_broker.coordinators import LoadedBatch, StateLog, written
from millrace_broker.metadata import TopicInfo
from millrace_broker.purgatory import Arrivals, DelayedOperation, Purgatory, Timer
from millrace_broker.runtime import Clock
from millrace_broker.share_groups.delivery import Delivery, DeliverySettings
from millrace_broker.share_groups.members import Assignment, Beat, CountOf, ShareMembers
from millrace_broker.share_groups.partition import SharedPartition
from millrace_broker.share_groups.records import (
    SNAPSHOT_KEY,
    UPDATE_KEY,
    SharedState,
    ShareKey,
    apply_update,
    read_key,
    read_shared_state,
    tombstone,
)

_logger: Final = logging.getLogger(__name__)

MemberKey = tuple[str, str]
"""Group and member."""


class ShareProgress(NamedTuple):
    """How far a group is in a partition: everything before ``start_offset`` is over, and so many offsets after it."""

    start_offset: int
    complete_count: int


class ShareGroup:
    """One group: its members, and the partitions that have been fetched from."""

    def __init__(self, group_id: str, members: ShareMembers) -> None:
        self.group_id: Final = group_id
        self.members: Final = members
        self.partitions: Final[dict[ShareKey, SharedPartition]] = {}

    @property
    def state(self) -> str:
        """By Kafka's names."""
        return "Stable" if self.members.members else "Empty"


class ShareShard:
    """The share groups of one partition; see the module."""

    def __init__(
        self,
        log: StateLog,
        settings: DeliverySettings,
        heartbeats: Purgatory[MemberKey],
        *,
        size_max: int,
        session_timeout_ms: int,
        partition_count: CountOf,
        clock: Clock,
        timer: Timer,
        arrivals: Arrivals,
    ) -> None:
        """``size_max`` and ``session_timeout_ms`` are those of each group."""
        self._size_max: Final = size_max
        self._session_timeout_ms: Final = session_timeout_ms
        self._partition_count: Final = partition_count
        self._clock: Final = clock
        self._timer: Final = timer
        self._arrivals: Final = arrivals
        self._log: Final = log
        self._settings: Final = settings
        self._heartbeats: Final = heartbeats
        self._states: Final[dict[ShareKey, SharedState]] = {}
        """What was read, of partitions that nobody has fetched from since."""
        self._groups: Final[dict[str, ShareGroup]] = {}

    # --- life ----------------------------------------------------------------------------------------------

    def replay(self, batch: LoadedBatch) -> None:
        """Take in a batch of the log. Raises ``InvalidRecordError``, ``UnsupportedVersionError`` for a value."""
        for record in batch.records:
            try:
                kind, key = read_key(record.key)
            except InvalidRecordError as error:
                _logger.warning("%s: a record is passed over: %s", self._log.name, error.message)
                continue
            if kind == SNAPSHOT_KEY:
                if record.value is None:
                    self._states.pop(key, None)
                else:
                    self._states[key] = read_shared_state(record.value)
            elif kind == UPDATE_KEY and record.value is not None and key in self._states:
                self._states[key] = apply_update(self._states[key], record.value)

    def activate(self) -> None:
        """Begin to answer: groups that have read something are there, without members."""
        for key in self._states:
            self._group(key.group_id)

    def deactivate(self) -> None:
        """Stop all timers."""
        for group in self._groups.values():
            for partition in group.partitions.values():
                partition.close()
            for member_id in group.members.members:
                self._heartbeats.complete_all((group.group_id, member_id))
        self._groups.clear()

    @property
    def groups(self) -> Mapping[str, ShareGroup]:
        """The groups, by id."""
        return self._groups

    def _group(self, group_id: str) -> ShareGroup:
        group = self._groups.get(group_id)
        if group is None:
            members = ShareMembers(group_id, size_max=self._size_max, session_timeout_ms=self._session_timeout_ms)
            group = self._groups[group_id] = ShareGroup(group_id, members)
        return group

    def present(self, group_id: str) -> ShareGroup:
        """The group. Raises ``GroupIdNotFoundError``."""
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"there is no share group {group_id}: list them with `millrace groups list`")
        return group

    # --- members -------------------------------------------------------------------------------------------

    def beat(self, group_id: str, beat: Beat) -> tuple[int, Assignment | None]:
        """A member lives, joins or leaves; see ``ShareMembers.beat``."""
        is_new = group_id not in self._groups
        group = self._group(group_id)
        try:
            answer = group.members.beat(beat, self._partition_count, self._now_ms())
        except BaseException:
            if is_new:
                del self._groups[group_id]
            raise
        key = (group_id, beat.member_id)
        if beat.member_id not in group.members:
            self._heartbeats.complete_all(key)
            self._has_gone(group, beat.member_id)
        elif not self._heartbeats.waiting(key):
            self._watch(group, beat.member_id)
        return answer

    def _watch(self, group: ShareGroup, member_id: str) -> None:
        """Look whether the member has been heard of in time. Heartbeats only move its deadline."""
        deadline_ms = group.members.get(member_id).deadline_ms
        waiting = _Session(self, group, member_id, max(1, deadline_ms - self._now_ms()))
        self._heartbeats.complete_or_watch(waiting, [(group.group_id, member_id)])

    def session_is_up(self, group: ShareGroup, member_id: str) -> None:
        """A member's timer has fired."""
        if member_id not in group.members:
            return
        if group.members.is_overdue(member_id, self._now_ms()):
            group.members.remove(member_id)
            self._has_gone(group, member_id)
        else:
            self._watch(group, member_id)

    def _has_gone(self, group: ShareGroup, member_id: str) -> None:
        for partition in group.partitions.values():
            partition.release_member(member_id)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # --- partitions ----------------------------------------------------------------------------------------

    def partition(self, group_id: str, topic: TopicInfo, number: int) -> SharedPartition:
        """A partition of a group. Raises ``GroupIdNotFoundError``."""
        group = self.present(group_id)
        key = ShareKey(group_id, topic.topic_id, number)
        partition = group.partitions.get(key)
        if partition is None:
            state = self._states.pop(key, None)
            partition = SharedPartition(
                self._log,
                key,
                topic.name,
                self._settings,
                state,
                clock=self._clock,
                timer=self._timer,
                arrivals=self._arrivals,
            )
            group.partitions[key] = partition
        return partition

    def progress(self, group_id: str) -> dict[ShareKey, ShareProgress]:
        """How far a group is in every partition that it has read of. Raises ``GroupIdNotFoundError``."""
        group = self.present(group_id)
        deliveries = {key: partition.delivery for key, partition in group.partitions.items()}
        for key in self._keys(group):
            if key in self._states:
                deliveries[key] = Delivery.restore(self._settings, self._states[key].snapshot)
        return {
            key: ShareProgress(delivery.start_offset, delivery.complete_count)
            for key, delivery in deliveries.items()
            if delivery is not None
        }

    def begin_at(self, group_id: str, topic: TopicInfo, number: int, offset: int) -> asyncio.Future[int]:
        """Have a group go on from an offset in a partition; wait for the result until that is written down.

        Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError``; the result raises ``StorageError``.
        """
        self._without_members(group_id)
        return self.partition(group_id, topic, number).begin_at(offset)

    async def delete_offsets(self, group_id: str, topic: TopicInfo) -> None:
        """Forget what a group has done with a topic: it begins anew, by ``share.auto.offset.reset``.

        Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError``, ``StorageError``.
        """
        group = self._without_members(group_id)
        await self._forget([key for key in self._keys(group) if key.topic_id == topic.topic_id])

    async def delete_group(self, group_id: str) -> None:
        """Forget a group. Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError``, ``StorageError``."""
        group = self._without_members(group_id)
        await self._forget(self._keys(group))
        if group_id in self._groups and not group.partitions and not group.members.members:
            del self._groups[group_id]

    def _without_members(self, group_id: str) -> ShareGroup:
        group = self.present(group_id)
        if group.members.members:
            raise NonEmptyGroupError(
                f"share group {group_id} has {len(group.members.members)} members: stop them first"
            )
        return group

    def _keys(self, group: ShareGroup) -> list[ShareKey]:
        return [*group.partitions, *(key for key in self._states if key.group_id == group.group_id)]

    async def delete_topic(self, topic: TopicInfo) -> None:
        """Forget what groups have done with a topic that is gone."""
        keys = [key for group in self._groups.values() for key in group.partitions] + list(self._states)
        await self._forget([key for key in keys if key.topic_id == topic.topic_id])

    async def _forget(self, keys: list[ShareKey]) -> None:
        if not keys:
            return
        for key in keys:
            self._states.pop(key, None)
            partition = self._groups[key.group_id].partitions.pop(key, None)
            if partition is not None:
                partition.close()
        await written(self._log.submit([tombstone(key) for key in keys]))


class _Session(DelayedOperation):
    def __init__(self, shard: ShareShard, group: ShareGroup, member_id: str, delay_ms: int) -> None:
        super().__init__(delay_ms)
        self._shard: Final = shard
        self._group: Final = group
        self._member_id: Final = member_id

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        pass

    def on_expiration(self) -> None:
        self._shard.session_is_up(self._group, self._member_id)
