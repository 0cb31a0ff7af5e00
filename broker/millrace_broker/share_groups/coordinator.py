"""Coordinator of this broker's share groups.

Handlers call it. It finds the shard of a group, and lets fetches wait for new and for released records. Kafka divides
this between ``GroupCoordinatorService``, ``ShareCoordinatorService`` and ``SharePartitionManager``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.config.share_offset_reset import duration_of
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
from millrace_broker.share_groups.in_flight import InFlightBatch, ShareGroupSettings
from millrace_broker.share_groups.partition import AcknowledgementBatch
from millrace_broker.share_groups.shard import MemberKey, ShareGroup, ShareShard
from millrace_broker.share_groups.sources import Source, Sources

_logger: Final = logging.getLogger(__name__)

_BYTES_MIN: Final = 1
_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ShareStatistics:
    """Numbers of share groups, members, acquired records and session timers."""

    groups: int
    members: int
    acquired: int
    heartbeats: PurgatoryStatistics


@dataclass(frozen=True, slots=True)
class ShareFetchPartition:
    """Partition that a member fetches."""

    topic: str
    topic_id: bytes
    partition: int


@dataclass(slots=True)
class SharePartitionData:
    """Records of a partition for a member, or its error."""

    records: bytes = b""
    acquired: Sequence[InFlightBatch] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits of a fetch, and the time that it waits without records.

    With ``whole_batches``, the last record batch is delivered whole, beyond ``records_max``.
    """

    records_max: int
    bytes_max: int
    wait_ms: int
    whole_batches: bool = False


class ShareCoordinator:
    """Share groups that this broker coordinates, for the event loop's thread."""

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
        """Take the parts; ``arrivals`` wakes fetches when records become readable."""
        self._config: Final = config
        self._clock: Final = clock
        self._timer: Final = timer
        self._partitions: Final = partitions
        self._sources: Final = sources
        self._arrivals: Final = arrivals
        self._group_configs: Final = group_configs
        self._heartbeats: Final[Purgatory[MemberKey]] = Purgatory("share heartbeat", timer)
        self._shards: Final = shards.shards(SHARE_STATE_TOPIC, self._make_shard)
        self._deletions: Final = BackgroundTasks()
        self._is_stopping = False

    def _make_shard(self, log: StateLog) -> ShareShard:
        return ShareShard(
            log,
            self.settings_of,
            self._heartbeats,
            size_max=self._config.group_share_max_size,
            find_topic=self._sources.find_topic,
            clock=self._clock,
            timer=self._timer,
            arrivals=self._arrivals,
        )

    def start(self) -> None:
        """Load the share groups."""
        self._shards.start()

    def release(self) -> None:
        """End the wait of all fetches, because the broker is about to stop."""
        self._is_stopping = True

    async def close(self) -> None:
        """Stop, after the appends that have begun."""
        await asyncio.gather(*self._deletions, return_exceptions=True)
        await self._shards.close()

    def settings_of(self, group_id: str) -> ShareGroupSettings:
        """Return the options in force of a group."""
        config = self._group_configs.get(group_id)
        return ShareGroupSettings(
            delivery_count_limit=config.share_delivery_count_limit,
            lock_duration_ms=config.share_record_lock_duration_ms,
            locks_max=config.share_partition_max_record_locks,
            allows_renewal=config.share_renew_acknowledge_enable,
            session_timeout_ms=config.share_session_timeout_ms,
            heartbeat_interval_ms=config.share_heartbeat_interval_ms,
        )

    def shard_of(self, group_id: str) -> ShareShard:
        """Return the shard of a group.

        Raises ``InvalidGroupIdError``, ``CoordinatorLoadInProgressError``, ``CoordinatorNotAvailableError``,
        ``NotCoordinatorError``.
        """
        _check_id(group_id)
        return self._shards.shard_of(group_id)

    async def wait_for_shard(self, group_id: str) -> ShareShard:
        """Return the shard of a group, after a short wait if it is being loaded.

        Raises the errors of ``shard_of``.
        """
        _check_id(group_id)
        return await self._shards.wait_for_shard(self._shards.number_of(group_id))

    def groups(self) -> Iterable[ShareGroup]:
        """Return all groups. Raises ``CoordinatorLoadInProgressError`` while some are being loaded."""
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("share groups are being loaded: retry")
        return [group for shard in self._shards.all() for group in shard.groups.values()]

    def find(self, group_id: str) -> ShareGroup | None:
        """Return the group, if it exists. Raises ``CoordinatorLoadInProgressError``, ``NotCoordinatorError``."""
        if self._shards.partition_count is None:
            return None
        return self._shards.shard_of(group_id).groups.get(group_id)

    def has_group(self, group_id: str) -> bool:
        """Return whether a loaded share group has this id."""
        try:
            group = self.find(group_id)
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            return False
        return group is not None

    # --- records -------------------------------------------------------------------------------------------

    async def fetch(
        self, group_id: str, member_id: str, wanted: Sequence[ShareFetchPartition], limits: FetchLimits, lease: Lease
    ) -> list[SharePartitionData]:
        """Deliver records of some partitions to a member, after a wait if there are none.

        The result has the order of ``wanted``, with the error of each partition. If the coordinator moves, or the
        member leaves, the whole call ends. Raises ``UnknownMemberError``, and the errors of ``shard_of``.
        """
        deadline = self._clock.monotonic() + limits.wait_ms / 1000
        keys = [key for each in wanted for key in _arrival_keys(group_id, each)]
        while True:
            watch = self._arrivals.watch(keys)
            shard = self._shard_with(group_id, member_id)
            fetched = await self._fetch_now(shard, group_id, member_id, wanted, limits, lease)
            if any(each.error is not None for each in fetched):
                self._shard_with(group_id, member_id)
            left_s = deadline - self._clock.monotonic()
            is_done = any(each.acquired or each.error is not None for each in fetched)
            if is_done or left_s <= 0 or self._is_stopping:
                return fetched
            lease.release()
            self._watch_sources(group_id, wanted)
            if not await watch.wait(wanted_bytes=_BYTES_MIN, timeout_s=left_s, is_poll=True):
                return fetched

    def _shard_with(self, group_id: str, member_id: str) -> ShareShard:
        shard = self.shard_of(group_id)
        if group_id not in shard.groups or member_id not in shard.groups[group_id].members:
            raise UnknownMemberError(
                f"share group {group_id} has no member {member_id or '(no member id)'}: join with epoch 0"
            )
        return shard

    async def _fetch_now(
        self,
        shard: ShareShard,
        group_id: str,
        member_id: str,
        wanted: Sequence[ShareFetchPartition],
        limits: FetchLimits,
        lease: Lease,
    ) -> list[SharePartitionData]:
        if not any(self._may_acquire(shard, group_id, each) for each in wanted):
            return [SharePartitionData() for _ in wanted]  # polls of idle partitions take no memory
        if not await lease.take(limits.bytes_max, is_poll=True):
            return [SharePartitionData() for _ in wanted]
        records_left, bytes_left = limits.records_max, limits.bytes_max
        fetched = []
        for each in wanted:
            result = SharePartitionData()
            fetched.append(result)
            if records_left <= 0 or bytes_left <= 0:
                continue
            try:
                result.acquired, result.records = await self._acquire(
                    shard, group_id, member_id, each, records_left, bytes_left, whole_batches=limits.whole_batches
                )
            except Exception as error:  # noqa: BLE001 - the partition's error; unexpected errors are logged
                result.error = error
            records_left -= sum(batch.count for batch in result.acquired)
            bytes_left -= len(result.records)
        lease.settle(limits.bytes_max - max(0, bytes_left))
        return fetched

    def _may_acquire(self, shard: ShareShard, group_id: str, wanted: ShareFetchPartition) -> bool:
        """Return whether a fetch would get records or an error now."""
        try:
            topic = self._partitions.topic(wanted.topic, wanted.topic_id)
            source = self._source(group_id, topic, wanted.partition)
            return shard.partition(group_id, topic, wanted.partition).may_acquire(source)
        except MillraceError:
            return True

    async def _acquire(
        self,
        shard: ShareShard,
        group_id: str,
        member_id: str,
        wanted: ShareFetchPartition,
        records_max: int,
        bytes_max: int,
        *,
        whole_batches: bool,
    ) -> tuple[Sequence[InFlightBatch], bytes]:
        topic = self._partitions.topic(wanted.topic, wanted.topic_id)
        source = self._source(group_id, topic, wanted.partition)
        return await shard.partition(group_id, topic, wanted.partition).acquire(
            source,
            member_id,
            records_max=records_max,
            bytes_max=bytes_max,
            first_offset=lambda source: self._first_offset(group_id, source),
            whole_batches=whole_batches,
        )

    def _source(self, group_id: str, topic: TopicInfo, partition: int) -> Source:
        """Return the records of a partition that members of the group may get."""
        isolation = self._group_configs.get(group_id).share_isolation_level
        return self._sources.of(topic, partition, is_committed=isolation == "read_committed")

    async def _first_offset(self, group_id: str, source: Source) -> int:
        """Return the offset at which a group without a state begins (``share.auto.offset.reset``).

        If no record is new enough for ``by_duration``, this is the end. Kafka's members wait for such a record.
        """
        reset = self._group_configs.get(group_id).share_auto_offset_reset
        duration = duration_of(reset)
        if duration is not None:
            return await source.offset_for_time(max(0, self._clock.now_ms() - duration // _MS))
        start_offset, end_offset = await source.bounds()
        return end_offset if reset == "latest" else start_offset

    def _watch_sources(self, group_id: str, wanted: Sequence[ShareFetchPartition]) -> None:
        """Let records of other brokers wake the waiting fetches."""
        for each in wanted:
            try:
                topic = self._partitions.topic(each.topic, each.topic_id)
                self._source(group_id, topic, each.partition).watch()
            except MillraceError as error:
                _logger.debug("new records of %s-%d are not awaited: %s", each.topic, each.partition, error.message)

    def acknowledge(
        self,
        group_id: str,
        member_id: str,
        topic: str,
        partition: int,
        acknowledgements: Sequence[AcknowledgementBatch],
    ) -> asyncio.Future[int]:
        """Apply a member's acknowledgements; the result ends after the append.

        Raises ``InvalidRecordStateError``, ``InvalidRequestError``, ``GroupIdNotFoundError``, and the errors of
        ``shard_of`` and ``topic_with``; the result raises ``NotCoordinatorError``.
        """
        info = self.topic_with(topic, partition)
        return self.shard_of(group_id).partition(group_id, info, partition).acknowledge(member_id, acknowledgements)

    def release_acquired(self, group_id: str, member_id: str, topic: str, partition: int) -> None:
        """Release the records of a partition that a member has acquired.

        Raises ``GroupIdNotFoundError``, and the errors of ``shard_of`` and ``topic_with``.
        """
        info = self.topic_with(topic, partition)
        self.shard_of(group_id).partition(group_id, info, partition).release_member(member_id)

    async def end_offset(self, topic: TopicInfo, partition: int) -> int:
        """Return the high watermark of a partition, on any broker. Raises the errors of a call to the leader."""
        return (await self._sources.of(topic, partition).bounds())[1]

    def topic_with(self, name: str, partition: int) -> TopicInfo:
        """Return the topic with this partition, on any broker. Raises ``UnknownTopicOrPartitionError``."""
        topic = self._partitions.topic(name)
        topic.partition(partition)
        return topic

    # --- events --------------------------------------------------------------------------------------------

    def topic_deleted(self, topic: TopicInfo) -> None:
        """Delete the state of a deleted topic in the background."""
        self._sources.forget(topic)
        self._deletions.start(self._forget_topic(topic), name=f"millrace-forget-shared-{topic.name}")

    async def _forget_topic(self, topic: TopicInfo) -> None:
        for shard in self._shards.all():
            try:
                await shard.delete_topic(topic)
            except MillraceError as error:
                _logger.warning("states of topic %s, which was deleted, are kept: %s", topic.name, error.message)

    def statistics(self) -> ShareStatistics:
        """Return the present numbers."""
        groups = [group for shard in self._shards.all() for group in shard.groups.values()]
        return ShareStatistics(
            groups=len(groups),
            members=sum(len(group.members.members) for group in groups),
            acquired=sum(
                partition.in_flight.acquired_count
                for group in groups
                for partition in group.partitions.values()
                if partition.in_flight is not None
            ),
            heartbeats=self._heartbeats.statistics(),
        )


def _check_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupIdError("the group id is empty: set group.id")


def _arrival_keys(group_id: str, wanted: ShareFetchPartition) -> list[tuple[str, int]]:
    """Return the keys of new records of a partition, and of records that members of the group release."""
    return [(wanted.topic, wanted.partition), (f"{group_id}:{wanted.topic}", wanted.partition)]
