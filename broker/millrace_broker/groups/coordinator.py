"""The coordinator of groups: what handlers call, and what happens by the clock.

It finds the shard that a group belongs to; everything else is the shard's.
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
    InvalidGroupIdError,
    MillraceError,
    NotCoordinatorError,
)
from millrace_broker.coordinators import OFFSETS_TOPIC, ShardFactory, StateLog
from millrace_broker.groups.model import GroupSettings
from millrace_broker.groups.shard import Entry, GroupShard
from millrace_broker.groups.timers import GroupTimers
from millrace_broker.purgatory import PurgatoryStatistics, Timer
from millrace_broker.runtime import BackgroundTasks, Clock, Executors

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Groups by the names of their states, and what waits: rebalances, and members that must be heard of."""

    by_state: Mapping[str, int]
    offsets: int
    rebalances: PurgatoryStatistics
    heartbeats: PurgatoryStatistics


class GroupCoordinator:
    """The groups that this broker coordinates. For the event loop's thread."""

    def __init__(
        self, config: BrokerConfig, *, clock: Clock, timer: Timer, executors: Executors, shards: ShardFactory
    ) -> None:
        self._config: Final = config
        self._clock: Final = clock
        self._executors: Final = executors
        self._settings: Final = _settings(config)
        self._timers: Final = GroupTimers(timer)
        self._shards: Final = shards.shards(OFFSETS_TOPIC, self._make_shard)
        self._expiring: asyncio.Task[None] | None = None
        self._deletions: Final = BackgroundTasks()

    def _make_shard(self, log: StateLog) -> GroupShard:
        return GroupShard(log, self._settings, self._timers, clock=self._clock, executors=self._executors)

    def start(self) -> None:
        """Begin to read what groups there are, and to look for offsets that expire."""
        self._shards.start()
        self._expiring = asyncio.create_task(self._expire(), name="millrace-expire-offsets")

    def release(self) -> None:
        """Answer all who wait, now that the broker is about to stop."""
        for shard in self._shards.all():
            shard.release()

    async def close(self) -> None:
        """Answer all who wait, and finish what is being written."""
        if self._expiring is not None:
            self._expiring.cancel()
            await asyncio.gather(self._expiring, return_exceptions=True)
        await asyncio.gather(*self._deletions, return_exceptions=True)
        await self._shards.close()

    # --- finding -------------------------------------------------------------------------------------------

    @property
    def partition_count(self) -> int:
        """Partitions of ``__consumer_offsets``. Raises ``CoordinatorNotAvailableError`` while it is not there."""
        count = self._shards.partition_count
        if count is None:
            raise CoordinatorNotAvailableError(f"{OFFSETS_TOPIC} has not been created yet: find the coordinator first")
        return count

    def shard_of(self, group_id: str, *, may_be_empty: bool = False) -> GroupShard:
        """The shard of a group. Kafka lets only some requests name the group without a name.

        Raises ``InvalidGroupIdError``, ``CoordinatorLoadInProgressError``, ``CoordinatorNotAvailableError``,
        ``NotCoordinatorError``.
        """
        _check_id(group_id, may_be_empty=may_be_empty)
        return self._shards.shard_of(group_id)

    async def soon(self, group_id: str, *, may_be_empty: bool = False) -> GroupShard:
        """The shard of a group, for calls that clients begin with: waits a moment for one that is being read.

        Raises what ``shard_of`` does.
        """
        _check_id(group_id, may_be_empty=may_be_empty)
        return await self._shards.soon(self._shards.number_of(group_id))

    def find(self, group_id: str) -> Entry | None:
        """The group, if it is there. Raises ``CoordinatorLoadInProgressError``, ``NotCoordinatorError``."""
        if self._shards.partition_count is None:
            return None
        return self._shards.shard_of(group_id).entries.get(group_id)

    def has_members(self, group_id: str) -> bool:
        """Whether the id is that of a group with members, as far as that has been read."""
        try:
            entry = self.find(group_id)
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            return False
        return entry is not None and len(entry.group.roster) > 0

    def groups(self) -> Iterable[tuple[str, Entry]]:
        """All groups that have been read, by id.

        Raises ``CoordinatorLoadInProgressError`` while others are still being read.
        """
        if self._shards.is_loading:
            raise CoordinatorLoadInProgressError("groups are being read: try again")
        for shard in self._shards.all():
            yield from shard.entries.items()

    # --- what others tell ----------------------------------------------------------------------------------

    async def complete_transaction(self, partition_of_offsets_topic: int, producer_id: int, *, committed: bool) -> None:
        """A marker has been appended to a partition of ``__consumer_offsets``: the producer's offsets count, or not."""
        try:
            shard = await self._shards.loaded(partition_of_offsets_topic)
        except (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError):
            return  # whoever reads the partition next reads the marker as well
        shard.complete_transaction(producer_id, is_committed=committed)

    def topic_deleted(self, name: str) -> None:
        """Offsets in a topic that is gone are forgotten, soon: one of the same name begins anew."""
        self._deletions.start(self._forget_topic(name), name=f"millrace-forget-offsets-{name}")

    async def _forget_topic(self, name: str) -> None:
        for shard in self._shards.all():
            try:
                await shard.delete_topics(frozenset((name,)))
            except MillraceError as error:
                _logger.warning("offsets in topic %s, which is gone, are kept: %s", name, error.message)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_interval_ms / 1000)
            await self.expire_offsets()

    async def expire_offsets(self) -> None:
        """Forget what has outlived ``offsets.retention.minutes``."""
        retention_ms = self._config.offsets_retention_minutes * 60_000
        for shard in self._shards.all():
            try:
                count = await shard.expire(retention_ms)
            except MillraceError as error:
                _logger.warning("offsets could not be expired, and are tried again: %s", error.message)
            except Exception:
                _logger.exception("offsets could not be expired, and are tried again")
            else:
                if count:
                    _logger.info("%d offsets have expired", count)

    def statistics(self) -> GroupStatistics:
        """The present numbers."""
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
