"""Share groups of one partition of ``__share_group_state``.

A group has members and share partitions. Members are in memory only. After a restart they join again with their next
heartbeat. The class is for the event loop's thread, except for ``replay``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from millrace.errors import GroupIdNotFoundError, InvalidRecordError, NonEmptyGroupError, UnknownTopicOrPartitionError
from millrace_broker.coordinators import LoadedBatch, StateLog, written
from millrace_broker.metadata import TopicInfo
from millrace_broker.purgatory import Arrivals, DelayedOperation, Purgatory, Timer
from millrace_broker.runtime import Clock, monotonic_ms
from millrace_broker.share_groups.in_flight import InFlightRecords, ShareGroupSettings
from millrace_broker.share_groups.members import Assignment, FindTopic, ShareHeartbeat, ShareMembers
from millrace_broker.share_groups.partition import SharePartition
from millrace_broker.share_groups.records import (
    SNAPSHOT_KEY,
    UPDATE_KEY,
    ShareGroupOffset,
    SharePartitionKey,
    apply_update,
    read_key,
    read_shared_state,
    tombstone,
)

_logger: Final = logging.getLogger(__name__)

MemberKey = tuple[str, str]
"""Group id and member id."""


class ShareProgress(NamedTuple):
    """Progress of a group in a partition.

    ``complete_count`` is the number of complete offsets after the start offset.
    """

    start_offset: int
    complete_count: int


class ShareGroup:
    """Share group with its members, and with the partitions that were fetched."""

    def __init__(self, group_id: str, members: ShareMembers) -> None:
        self.group_id: Final = group_id
        self.members: Final = members
        self.partitions: Final[dict[SharePartitionKey, SharePartition]] = {}

    @property
    def state(self) -> str:
        """The state, with Kafka's name."""
        return "Stable" if self.members.members else "Empty"


class ShareShard:
    """Share groups of one partition of ``__share_group_state``; see the module."""

    def __init__(
        self,
        log: StateLog,
        settings: Callable[[str], ShareGroupSettings],
        heartbeats: Purgatory[MemberKey],
        *,
        size_max: int,
        find_topic: FindTopic,
        clock: Clock,
        timer: Timer,
        arrivals: Arrivals,
    ) -> None:
        """Take the parts; ``settings`` returns the options in force of a group, ``size_max`` holds for each group."""
        self._size_max: Final = size_max
        self._find_topic: Final = find_topic
        self._clock: Final = clock
        self._timer: Final = timer
        self._arrivals: Final = arrivals
        self._log: Final = log
        self._settings: Final = settings
        self._heartbeats: Final = heartbeats
        self._states: Final[dict[SharePartitionKey, ShareGroupOffset]] = {}
        """Loaded states of partitions that were not fetched since the load."""
        self._groups: Final[dict[str, ShareGroup]] = {}

    # --- life ----------------------------------------------------------------------------------------------

    def replay(self, batch: LoadedBatch) -> None:
        """Apply a batch of the log. Raises ``InvalidRecordError``, ``UnsupportedVersionError`` for a value."""
        for record in batch.records:
            try:
                kind, key = read_key(record.key)
            except InvalidRecordError as error:
                _logger.warning("%s: a record is ignored: %s", self._log.name, error.message)
                continue
            if key is None:
                continue
            if kind == SNAPSHOT_KEY:
                if record.value is None:
                    self._states.pop(key, None)
                else:
                    self._states[key] = read_shared_state(record.value)
            elif kind == UPDATE_KEY and record.value is not None and key in self._states:
                self._states[key] = apply_update(self._states[key], record.value)

    def activate(self) -> None:
        """Begin to answer. The groups of all loaded states exist, without members."""
        for key in self._states:
            self._group(key.group_id)

    def deactivate(self) -> None:
        """Stop all timers, and wake fetches that wait."""
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
            members = ShareMembers(group_id, size_max=self._size_max)
            group = self._groups[group_id] = ShareGroup(group_id, members)
        return group

    def present(self, group_id: str) -> ShareGroup:
        """Return the group. Raises ``GroupIdNotFoundError``."""
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(
                f"share group {group_id} does not exist: list groups with `millrace groups list`"
            )
        return group

    # --- members -------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, heartbeat: ShareHeartbeat) -> tuple[int, Assignment | None]:
        """Extend, add or remove a member; see ``ShareMembers.heartbeat``."""
        is_new = group_id not in self._groups
        group = self._group(group_id)
        try:
            answer = group.members.heartbeat(
                heartbeat,
                self._find_topic,
                monotonic_ms(self._clock),
                session_timeout_ms=self._settings(group_id).session_timeout_ms,
            )
        except BaseException:
            if is_new:
                del self._groups[group_id]
            raise
        key = (group_id, heartbeat.member_id)
        if heartbeat.member_id not in group.members:
            self._heartbeats.complete_all(key)
            self._has_gone(group, heartbeat.member_id)
        elif not self._heartbeats.waiting(key):
            self._watch(group, heartbeat.member_id)
        return answer

    def _watch(self, group: ShareGroup, member_id: str) -> None:
        """Set the session timer of a member. Heartbeats only move its deadline."""
        deadline_ms = group.members.get(member_id).deadline_ms
        waiting = _Session(self, group, member_id, max(1, deadline_ms - monotonic_ms(self._clock)))
        self._heartbeats.complete_or_watch(waiting, [(group.group_id, member_id)])

    def session_timed_out(self, group: ShareGroup, member_id: str) -> None:
        """Remove a member whose session has ended, or set its timer again."""
        if member_id not in group.members:
            return
        if group.members.is_overdue(member_id, monotonic_ms(self._clock)):
            group.members.remove(member_id)
            self._has_gone(group, member_id)
        else:
            self._watch(group, member_id)

    def _has_gone(self, group: ShareGroup, member_id: str) -> None:
        for partition in group.partitions.values():
            partition.release_member(member_id)

    # --- partitions ----------------------------------------------------------------------------------------

    def partition(self, group_id: str, topic: TopicInfo, number: int) -> SharePartition:
        """Return a share partition. Raises ``GroupIdNotFoundError``."""
        group = self.present(group_id)
        key = SharePartitionKey(group_id, topic.topic_id, number)
        partition = group.partitions.get(key)
        if partition is None:
            state = self._states.pop(key, None)
            partition = SharePartition(
                self._log,
                key,
                topic.name,
                partial(self._settings, group_id),
                state,
                clock=self._clock,
                timer=self._timer,
                arrivals=self._arrivals,
            )
            group.partitions[key] = partition
        return partition

    def progress(self, group_id: str) -> dict[SharePartitionKey, ShareProgress]:
        """Return the progress of a group in each partition that it has fetched. Raises ``GroupIdNotFoundError``."""
        group = self.present(group_id)
        records = {key: partition.in_flight for key, partition in group.partitions.items()}
        for key in self._keys(group):
            if key in self._states:
                records[key] = InFlightRecords.restore(self._settings(group_id), self._states[key].snapshot)
        return {
            key: ShareProgress(each.start_offset, each.complete_count)
            for key, each in records.items()
            if each is not None
        }

    def reset_offset(self, group_id: str, topic: TopicInfo, number: int, offset: int) -> asyncio.Future[int]:
        """Let a group, which need not exist, continue from an offset of a partition.

        The result ends after the append. Raises ``NonEmptyGroupError``; the result raises ``NotCoordinatorError``.
        """
        self.check_has_no_members(group_id)
        self._group(group_id)
        return self.partition(group_id, topic, number).reset_offset(offset)

    async def delete_offsets(self, group_id: str, topic: TopicInfo) -> None:
        """Delete the state of a topic. The group starts again by ``share.auto.offset.reset``.

        Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError``, ``UnknownTopicOrPartitionError`` if the group has no
        offset of the topic, ``NotCoordinatorError``.
        """
        group = self.without_members(group_id)
        keys = [key for key in self._keys(group) if key.topic_id == topic.topic_id]
        if not keys:
            raise UnknownTopicOrPartitionError(f"share group {group_id} has no offset of topic {topic.name}")
        await self._forget(keys)

    async def delete_group(self, group_id: str) -> None:
        """Delete a group. Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError``, ``NotCoordinatorError``."""
        group = self.without_members(group_id)
        await self._forget(self._keys(group))
        if group_id in self._groups and not group.partitions and not group.members.members:
            del self._groups[group_id]

    def without_members(self, group_id: str) -> ShareGroup:
        """Return a group that has no members. Raises ``GroupIdNotFoundError``, ``NonEmptyGroupError``."""
        group = self.present(group_id)
        self.check_has_no_members(group_id)
        return group

    def check_has_no_members(self, group_id: str) -> None:
        """Raise ``NonEmptyGroupError`` if a group with this id has members."""
        group = self._groups.get(group_id)
        if group is not None and group.members.members:
            raise NonEmptyGroupError(
                f"share group {group_id} cannot be changed while it has members ({len(group.members.members)}): stop "
                "them first"
            )

    def _keys(self, group: ShareGroup) -> list[SharePartitionKey]:
        return [*group.partitions, *(key for key in self._states if key.group_id == group.group_id)]

    async def delete_topic(self, topic: TopicInfo) -> None:
        """Delete the state of all groups for a deleted topic."""
        keys = [key for group in self._groups.values() for key in group.partitions] + list(self._states)
        await self._forget([key for key in keys if key.topic_id == topic.topic_id])

    async def _forget(self, keys: list[SharePartitionKey]) -> None:
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
        self._shard.session_timed_out(self._group, self._member_id)
