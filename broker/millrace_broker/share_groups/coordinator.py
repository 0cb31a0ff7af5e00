"""The coordinator of share groups: what handlers call.

It finds the shard that a group belongs to, and lets fetches wait for records: new ones, and those that are given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidGroupIdError,
    MillraceError,
    NotCoordinatorError,
    UnknownMemberError,
)
from millrace_broker.coordinators import SHARE_STATE_TOPIC, ShardFactory, StateLog
from millrace_broker.metadata import GroupConfigs, TopicInfo
from millrace_broker.purgatory import Arrivals, Purgatory, PurgatoryStatistics, Timer
from millrace_broker.quotas import Lease
from millrace_broker.replication.runtime import PartitionDirectory
from millrace_broker.runtime import BackgroundTasks, Clock
from millrace_broker.share_groups.delivery import DeliverySettings, Run
from millrace_broker.share_groups.partition import Batch
from millrace_broker.share_groups.shard import MemberKey, ShareGroup, ShareShard
from millrace_broker.share_groups.sources import Sources

_logger: Final = logging.getLogger(__name__)

_BYTES_MIN: Final = 1


@dataclass(frozen=True, slots=True)
class ShareStatistics:
    """Share groups, their members, records given out and not acknowledged yet, and members that must be heard of."""

    groups: int
    members: int
    acquired: int
    heartbeats: PurgatoryStatistics


@dataclass(frozen=True, slots=True)
class Wanted:
    """A partition that a member wants records of."""

    topic: str
    topic_id: bytes
    partition: int


@dataclass(slots=True)
class Fetched:
    """What a member was given of a partition, or why not."""

    records: bytes = b""
    acquired: Sequence[Run] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """How much a fetch may bring, and how long it waits while there is nothing."""

    records_max: int
    bytes_max: int
    wait_ms: int


class ShareCoordinator:
    """The share groups that this broker coordinates. For the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        timer: Timer,
        partitions: PartitionDirectory,
        sources: Sources,
        arrivals: Arrivals,
        group_configs: GroupConfigs,
        shards: ShardFactory,
    ) -> None:
        """``arrivals`` are those of records that may be read."""
        self._config: Final = config
        self._clock: Final = clock
        self._timer: Final = timer
        self._partitions: Final = partitions
        self._sources: Final = sources
        self._arrivals: Final = arrivals
        self._group_configs: Final = group_configs
        self._settings: Final = DeliverySettings(
            delivery_count_limit=config.group_share_delivery_count_limit,
            lock_duration_ms=config.group_share_record_lock_duration_ms,
            locks_max=config.group_share_partition_max_record_locks,
        )
        self._heartbeats: Final[Purgatory[MemberKey]] = Purgatory("share heartbeat", timer)
        self._shards: Final = shards.shards(SHARE_STATE_TOPIC, self._make_shard)
        self._deletions: Final = BackgroundTasks()
        self._is_stopping = False

    def _make_shard(self, log: StateLog) -> ShareShard:
        return ShareShard(
            log,
            self._settings,
            self._heartbeats,
            size_max=self._config.group_share_max_size,
            session_timeout_ms=self._config.group_share_session_timeout_ms,
            partition_count=self._sources.partition_count,
            clock=self._clock,
            timer=self._timer,
            arrivals=self._arrivals,
        )

    def start(self) -> None:
        """Begin to read what has been delivered."""
        self._shards.start()

    def release(self) -> None:
        """Let nobody wait any more, now that the broker is about to stop."""
        self._is_stopping = True

    async def close(self) -> None:
        """Stop; what is being written is finished."""
        await asyncio.gather(*self._deletions, return_exceptions=True)
        await self._shards.close()

    @property
    def lock_duration_ms(self) -> int:
        """How long a member has what it was given."""
        return self._settings.lock_duration_ms

    def shard_of(self, group_id: str) -> ShareShard:
        """The shard of a group.

        Raises ``InvalidGroupIdError``, ``CoordinatorLoadInProgressError``, ``CoordinatorNotAvailableError``,
        ``NotCoordinatorError``.
        """
        _check_id(group_id)
        return self._shards.shard_of(group_id)

    async def soon(self, group_id: str) -> ShareShard:
        """The shard of a group, for a member that joins: waits a moment for one that is being read.

        Raises what ``shard_of`` does.
        """
        _check_id(group_id)
        return await self._shards.soon(self._shards.number_of(group_id))

    def groups(self) -> Iterable[ShareGroup]:
        """All groups. Raises ``CoordinatorLoadInProgressError`` while some are still being read."""
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("share groups are being read: try again")
        return [group for shard in self._shards.all() for group in shard.groups.values()]

    def find(self, group_id: str) -> ShareGroup | None:
        """The group, if it is there. Raises ``CoordinatorLoadInProgressError``, ``NotCoordinatorError``."""
        if self._shards.partition_count is None:
            return None
        return self._shards.shard_of(group_id).groups.get(group_id)

    def has_members(self, group_id: str) -> bool:
        """Whether the id is that of a share group with members, as far as that has been read."""
        try:
            group = self.find(group_id)
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            return False
        return group is not None and bool(group.members.members)

    # --- records -------------------------------------------------------------------------------------------

    async def fetch(
        self, group_id: str, member_id: str, wanted: Sequence[Wanted], limits: FetchLimits, lease: Lease
    ) -> list[Fetched]:
        """Give a member records of some partitions, in order of ``wanted``; wait while there is nothing to give.

        An error of a partition stands with it. Raises ``UnknownMemberError``, and what ``shard_of`` does.
        """
        shard = self.shard_of(group_id)
        if group_id not in shard.groups or member_id not in shard.groups[group_id].members:
            raise UnknownMemberError(
                f"share group {group_id} does not know member {member_id or '(none)'}: join with epoch 0"
            )
        deadline = self._clock.monotonic() + limits.wait_ms / 1000
        keys = [key for each in wanted for key in _waiting_keys(group_id, each)]
        while True:
            watch = self._arrivals.watch(keys)
            fetched = await self._fetch_now(shard, group_id, member_id, wanted, limits, lease)
            left_s = deadline - self._clock.monotonic()
            is_done = any(each.acquired or each.error is not None for each in fetched)
            if is_done or left_s <= 0 or self._is_stopping:
                return fetched
            lease.release()
            self._watch_sources(wanted)
            if not await watch.wait(wanted_bytes=_BYTES_MIN, timeout_s=left_s, is_poll=True):
                return fetched

    async def _fetch_now(
        self,
        shard: ShareShard,
        group_id: str,
        member_id: str,
        wanted: Sequence[Wanted],
        limits: FetchLimits,
        lease: Lease,
    ) -> list[Fetched]:
        if not any(self._has_something(shard, group_id, each) for each in wanted):
            return [Fetched() for _ in wanted]  # polls of idle partitions take no memory
        if not await lease.take(limits.bytes_max, is_poll=True):
            return [Fetched() for _ in wanted]
        records_left, bytes_left = limits.records_max, limits.bytes_max
        fetched = []
        for each in wanted:
            result = Fetched()
            fetched.append(result)
            if records_left <= 0 or bytes_left <= 0:
                continue
            try:
                result.acquired, result.records = await self._acquire(
                    shard, group_id, member_id, each, records_left, bytes_left
                )
            except Exception as error:  # noqa: BLE001 - stands beside the partition, unexpected ones are logged there
                result.error = error
            records_left -= sum(run.count for run in result.acquired)
            bytes_left -= len(result.records)
        lease.settle(limits.bytes_max - max(0, bytes_left))
        return fetched

    def _has_something(self, shard: ShareShard, group_id: str, wanted: Wanted) -> bool:
        """Whether there is something to acquire now, or an error to tell."""
        try:
            topic = self._partitions.topic(wanted.topic, wanted.topic_id)
            source = self._sources.of(topic, wanted.partition)
            return shard.partition(group_id, topic, wanted.partition).has_something(source)
        except MillraceError:
            return True

    async def _acquire(
        self, shard: ShareShard, group_id: str, member_id: str, wanted: Wanted, records_max: int, bytes_max: int
    ) -> tuple[Sequence[Run], bytes]:
        topic = self._partitions.topic(wanted.topic, wanted.topic_id)
        source = self._sources.of(topic, wanted.partition)
        return await shard.partition(group_id, topic, wanted.partition).acquire(
            source,
            member_id,
            records_max=records_max,
            bytes_max=bytes_max,
            begins_at_end=self._group_configs.get(group_id).share_auto_offset_reset == "latest",
        )

    def _watch_sources(self, wanted: Sequence[Wanted]) -> None:
        """Have those who wait woken by records that other brokers get."""
        for each in wanted:
            try:
                self._sources.of(self._partitions.topic(each.topic, each.topic_id), each.partition).watch()
            except MillraceError as error:
                _logger.debug("%s-%d is not watched: %s", each.topic, each.partition, error.message)

    def acknowledge(
        self, group_id: str, member_id: str, topic: str, partition: int, batches: Sequence[Batch]
    ) -> asyncio.Future[int]:
        """A member says what has become of records; wait for the result until that is written down.

        Raises ``InvalidRecordStateError``, ``InvalidRequestError``, ``GroupIdNotFoundError``, what ``shard_of`` and
        ``topic_with`` do; the result raises ``StorageError``.
        """
        info = self.topic_with(topic, partition)
        return self.shard_of(group_id).partition(group_id, info, partition).acknowledge(member_id, batches)

    def topic_with(self, name: str, partition: int) -> TopicInfo:
        """The topic that has this partition, wherever that is. Raises ``UnknownTopicOrPartitionError``."""
        topic = self._partitions.topic(name)
        topic.partition(partition)
        return topic

    # --- what others tell ----------------------------------------------------------------------------------

    def topic_deleted(self, topic: TopicInfo) -> None:
        """What groups have done with a topic that is gone is forgotten."""
        self._sources.forget(topic)
        self._deletions.start(self._forget_topic(topic), name=f"millrace-forget-shared-{topic.name}")

    async def _forget_topic(self, topic: TopicInfo) -> None:
        for shard in self._shards.all():
            try:
                await shard.delete_topic(topic)
            except MillraceError as error:
                _logger.warning("deliveries of topic %s, which is gone, are kept: %s", topic.name, error.message)

    def statistics(self) -> ShareStatistics:
        """The present numbers."""
        groups = [group for shard in self._shards.all() for group in shard.groups.values()]
        return ShareStatistics(
            groups=len(groups),
            members=sum(len(group.members.members) for group in groups),
            acquired=sum(
                partition.delivery.acquired_count
                for group in groups
                for partition in group.partitions.values()
                if partition.delivery is not None
            ),
            heartbeats=self._heartbeats.statistics(),
        )


def _check_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupIdError("the group id is empty: set group.id")


def _waiting_keys(group_id: str, wanted: Wanted) -> list[tuple[str, int]]:
    """New records of a partition, and those that are given back to the group."""
    return [(wanted.topic, wanted.partition), (f"{group_id}:{wanted.topic}", wanted.partition)]
