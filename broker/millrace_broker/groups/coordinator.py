"""Group coordinator of this broker, Kafka's ``GroupCoordinator``.

Handlers call it. It finds the shard of a group, which does the rest. It also expires committed offsets.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidConfigError,
    InvalidGroupIdError,
    MillraceError,
    NotCoordinatorError,
)
from millrace_broker.coordinators import OFFSETS_TOPIC, ShardFactory, StateLog
from millrace_broker.groups.consumer.assignors import ASSIGNORS
from millrace_broker.groups.consumer.consumer_group import ConsumerSettings
from millrace_broker.groups.consumer.topics import CatalogTopics
from millrace_broker.groups.entries import GroupEntry
from millrace_broker.groups.requests import GroupSettings
from millrace_broker.groups.shard import GroupShard
from millrace_broker.groups.timers import GroupTimers
from millrace_broker.metadata import GroupConfigs, TopicCatalog
from millrace_broker.purgatory import PurgatoryStatistics, Timer
from millrace_broker.runtime import BackgroundTasks, Clock, Executors, cancel_and_wait

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Numbers of groups, offsets and timers.

    ``by_state`` has the number of groups by state, ``offsets`` is the number of committed offsets. ``rebalances`` and
    ``heartbeats`` have the timers for rebalances and for sessions.
    """

    by_state: Mapping[str, int]
    offsets: int
    rebalances: PurgatoryStatistics
    heartbeats: PurgatoryStatistics


class GroupCoordinator:
    """Consumer groups that this broker coordinates, for the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        catalog: TopicCatalog,
        clock: Clock,
        timer: Timer,
        executors: Executors,
        group_configs: GroupConfigs,
        shards: ShardFactory,
    ) -> None:
        self._config: Final = config
        self._clock: Final = clock
        self._executors: Final = executors
        self._settings: Final = _settings(config)
        self._consumer_settings: Final = _consumer_settings(config)
        self._group_configs: Final = group_configs
        self.topics: Final = CatalogTopics(catalog)
        self._timers: Final = GroupTimers(timer)
        self._shards: Final = shards.shards(OFFSETS_TOPIC, self._make_shard)
        self._expiring: asyncio.Task[None] | None = None
        self._deletions: Final = BackgroundTasks()

    def _make_shard(self, log: StateLog) -> GroupShard:
        return GroupShard(
            log,
            self._settings,
            self._consumer_settings,
            self._timers,
            session_timeout_ms=lambda group_id: self._group_configs.get(group_id).consumer_session_timeout_ms,
            topics=self.topics,
            clock=self._clock,
            executors=self._executors,
        )

    def start(self) -> None:
        """Load the groups, and start the expiry of offsets."""
        self._shards.start()
        self._expiring = asyncio.create_task(self._expire(), name="millrace-expire-offsets")

    def release(self) -> None:
        """Answer all open calls, because the broker is about to stop."""
        for shard in self._shards.all():
            shard.release()

    async def close(self) -> None:
        """Answer all open calls, and wait for the appends that have begun."""
        await cancel_and_wait(self._expiring)
        await asyncio.gather(*self._deletions, return_exceptions=True)
        await self._shards.close()

    @property
    def consumer_settings(self) -> ConsumerSettings:
        """Options for consumer groups."""
        return self._consumer_settings

    # --- finding -------------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """The number of partitions of ``__consumer_offsets``.

        Raises ``CoordinatorNotAvailableError`` before its creation.
        """
        count = self._shards.partition_count
        if count is None:
            raise CoordinatorNotAvailableError(
                f"{OFFSETS_TOPIC} has not been created: send FindCoordinator first, which creates the topic"
            )
        return count

    def shard_of(self, group_id: str, *, may_be_empty: bool = False) -> GroupShard:
        """Return the shard of a group. Kafka accepts the empty group id in some requests (``may_be_empty``).

        Raises ``InvalidGroupIdError``, ``CoordinatorLoadInProgressError``, ``CoordinatorNotAvailableError``,
        ``NotCoordinatorError``.
        """
        _check_id(group_id, may_be_empty=may_be_empty)
        return self._shards.shard_of(group_id)

    async def wait_for_shard(self, group_id: str, *, may_be_empty: bool = False) -> GroupShard:
        """Return the shard of a group, after a short wait if it is being loaded, for the first calls of clients.

        Raises the errors of ``shard_of``.
        """
        _check_id(group_id, may_be_empty=may_be_empty)
        return await self._shards.wait_for_shard(self._shards.number_of(group_id))

    async def shard_to_read(self, group_id: str) -> GroupShard:
        """Return the shard of a group when it has all that was committed before the call, by any coordinator.

        Raises the errors of ``shard_of`` and of ``StateLog.check_leads``.
        """
        _check_id(group_id, may_be_empty=True)
        return await self._shards.shard_to_read(self._shards.number_of(group_id))

    def find(self, group_id: str) -> GroupEntry | None:
        """Return the group, if it exists. Raises ``CoordinatorLoadInProgressError``, ``NotCoordinatorError``."""
        if self._shards.partition_count is None:
            return None
        return self._shards.shard_of(group_id).entries.get(group_id)

    def has_group(self, group_id: str) -> bool:
        """Return whether a loaded consumer group has this id."""
        try:
            entry = self.find(group_id)
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            return False
        return entry is not None

    def groups(self) -> Iterable[tuple[str, GroupEntry]]:
        """Yield all loaded groups by id. Raises ``CoordinatorLoadInProgressError`` while others are being loaded."""
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("groups are being loaded: retry")
        for shard in self._shards.all():
            yield from shard.entries.items()

    # --- events --------------------------------------------------------------------------------------------

    async def complete_transaction(self, partition_of_offsets_topic: int, producer_id: int, *, committed: bool) -> None:
        """Commit or drop a producer's pending offsets. Its marker is in a partition of ``__consumer_offsets``."""
        try:
            shard = await self._shards.wait_until_loaded(partition_of_offsets_topic)
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            return  # the next load of the partition reads the marker
        shard.complete_transaction(producer_id, is_committed=committed)

    def topic_deleted(self, name: str) -> None:
        """Delete the offsets of a deleted topic in the background. A new topic of that name starts without offsets."""
        self._deletions.start(self._forget_topic(name), name=f"millrace-forget-offsets-{name}")

    async def _forget_topic(self, name: str) -> None:
        for shard in self._shards.all():
            try:
                await shard.delete_topics(frozenset((name,)))
            except MillraceError as error:
                _logger.warning("the offsets of topic %s, which was deleted, are kept: %s", name, error.message)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            await self.expire_offsets()

    async def expire_offsets(self) -> None:
        """Delete offsets that are older than ``offsets.retention.minutes``."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        for shard in self._shards.all():
            try:
                count = await shard.expire(retention_ms)
            except MillraceError as error:
                _logger.warning("expired offsets could not be deleted, the next check retries: %s", error.message)
            except Exception:
                _logger.exception("expired offsets could not be deleted, the next check retries")
            else:
                if count:
                    _logger.info("%d offsets have expired", count)

    def statistics(self) -> GroupStatistics:
        """Return the present numbers."""
        entries = [entry for shard in self._shards.all() for entry in shard.entries.values()]
        return GroupStatistics(
            by_state=Counter(entry.group.state.value for entry in entries),
            offsets=sum(len(entry.offsets.committed) for entry in entries),
            rebalances=self._timers.rebalances,
            heartbeats=self._timers.heartbeats,
        )


def _check_id(group_id: str, *, may_be_empty: bool) -> None:
    if not group_id and not may_be_empty:
        raise InvalidGroupIdError("the group id is empty: set group.id")


def _settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        max_size=config.group_max_size,
    )


def _consumer_settings(config: BrokerConfig) -> ConsumerSettings:
    assignors = tuple(name.strip() for name in config.group_consumer_assignors.split(","))
    unknown = [name for name in assignors if name not in ASSIGNORS]
    if unknown:
        raise InvalidConfigError(
            f"group.consumer.assignors has {', '.join(unknown) or 'an empty name'}: name some of {', '.join(ASSIGNORS)}"
        )
    policy = config.group_consumer_migration_policy
    return ConsumerSettings(
        max_size=config.group_consumer_max_size,
        assignors=assignors,
        may_upgrade=policy in ("bidirectional", "upgrade"),
        may_downgrade=policy in ("bidirectional", "downgrade"),
    )
