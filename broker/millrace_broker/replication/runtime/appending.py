"""Appending to the partitions that this broker leads, and telling those who wait for what was appended.

Invariants
* Batches of one partition are appended in the order in which ``append`` was called. Waiting for the disk, where the
  topic wants that, and for other replicas comes after the append and keeps no other one waiting.
* An append that has begun is finished and its readers are told, also when the call that asked for it is cancelled.
* Who changes a partition's log, or this broker's role in it, holds its lock: what was begun as a leader is appended
  before the partition is followed.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millrace.records import EndTransactionMarker
from millrace_broker.log import AppendResult, PartitionLog
from millrace_broker.log.producers import Origin
from millrace_broker.purgatory import PartitionKey

if TYPE_CHECKING:
    from millrace_broker.broker import Broker, ServedPartition

_MARKER_BYTES: Final = 78
"""Size of a batch with the end of a transaction."""
_TICK_S: Final = 1.0
"""What is to be synced within less than that is not left to the log's periodic work."""
ACKNOWLEDGED_WITHIN_S: Final = 5.0
"""How long a coordinator waits for the replicas of what it appends (``offsets.commit.timeout.ms``)."""


class Appending:
    """What a broker does with the logs that it leads. For the event loop's thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker: Final = broker
        self.locks: Final[defaultdict[PartitionKey, asyncio.Lock]] = defaultdict(asyncio.Lock)
        self._stable_offsets: dict[PartitionKey, int] = {}
        self._unstable_bytes: dict[PartitionKey, int] = {}

    async def append(
        self,
        partition: ServedPartition,
        records: bytes,
        *,
        in_transaction: bool = False,
        origin: Origin = Origin.CLIENT,
        acks_all: bool = True,
        timeout_s: float = ACKNOWLEDGED_WITHIN_S,
    ) -> AppendResult:
        """Append whole batches, as durably as the topic wants it, and tell those who wait for them.

        ``in_transaction`` says that a coordinator knows the transaction that the batch says it is in; with another
        ``origin`` less is checked. With ``acks_all`` it returns once all replicas in sync have them.

        Raises what the log raises, and ``NotLeaderError``; with ``acks_all`` also ``NotEnoughReplicasError``,
        ``NotEnoughReplicasAfterAppendError`` and ``RequestTimedOutError``.
        """
        write = functools.partial(partition.log.append_unsynced, records, in_transaction=in_transaction, origin=origin)
        write_at_once = functools.partial(
            partition.log.append_at_once, records, in_transaction=in_transaction, origin=origin
        )
        return await self._append(partition, len(records), write, write_at_once, acks_all, timeout_s)

    async def append_end_marker(
        self,
        partition: ServedPartition,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        is_epoch_raised: bool,
    ) -> None:
        """Append the end of a producer's transaction, as ``append`` with ``acks_all``. Raises what that raises."""
        write = functools.partial(
            partition.log.append_end_marker_unsynced,
            producer_id,
            producer_epoch,
            marker,
            is_epoch_raised=is_epoch_raised,
        )
        write_at_once = functools.partial(write, may_wait=False)
        await self._append(partition, _MARKER_BYTES, write, write_at_once, True, ACKNOWLEDGED_WITHIN_S)

    async def _append(
        self,
        partition: ServedPartition,
        size_bytes: int,
        write: Callable[..., AppendResult | None],
        write_at_once: Callable[..., AppendResult | None],
        acks_all: bool,
        timeout_s: float,
    ) -> AppendResult:
        broker, replica = self._broker, partition.replica
        async with self.locks[partition.key]:
            epoch = partition.leader_epoch  # it may have changed, or another broker lead, since the partition was found
            if acks_all and replica is not None:
                replica.leader.check_enough_in_sync()
            result = None
            if broker.executors.small_work.includes(size_bytes):
                result = broker.executors.small_work.do(write_at_once, leader_epoch=epoch)
            if result is None:
                result = await broker.executors.run_io(write, leader_epoch=epoch)
        assert result is not None, "it may wait in a thread"
        await self._appended(partition, result, size_bytes)
        if acks_all and replica is not None and not replica.is_alone:
            await broker.replicas.waiting.acknowledged(replica, result.last_offset + 1, timeout_s)
        return result

    async def _appended(self, partition: ServedPartition, result: AppendResult, size_bytes: int) -> None:
        """Wait for the disk where the topic wants that, and tell those who wait for what was appended."""
        broker, key, log, replica = self._broker, partition.key, partition.log, partition.replica
        broker.appends.arrived(key, size_bytes)
        if log.must_sync(result):
            await broker.commits.synced(log, result.last_offset + 1)
        elif log.config.flush_ms < _TICK_S * 1000:
            broker.commits.sync_within(log, log.config.flush_ms / 1000)
        if replica is None or replica.is_alone:
            self.readable(key, log, size_bytes)
        else:
            broker.replicas.appended(replica, size_bytes)

    def readable(self, key: PartitionKey, log: PartitionLog, size_bytes: int) -> None:
        """Tell consumers that so much more may be read: the high watermark has risen."""
        broker = self._broker
        broker.arrivals.arrived(key, size_bytes)
        unstable_bytes = self._unstable_bytes.pop(key, 0) + size_bytes
        stable_offset = log.last_stable_offset
        if stable_offset > self._stable_offsets.get(key, -1):
            self._stable_offsets[key] = stable_offset
            broker.stable_arrivals.arrived(key, unstable_bytes)
        if stable_offset < log.high_watermark:
            self._unstable_bytes[key] = unstable_bytes

    async def delete_records(
        self, partition: ServedPartition, before_offset: int, timeout_s: float = ACKNOWLEDGED_WITHIN_S
    ) -> int:
        """Delete the records before an offset, on all replicas; returns where the log starts then.

        Raises what the log raises, ``NotLeaderError``, and ``RequestTimedOutError`` when replicas take too long.
        """
        broker, replica = self._broker, partition.replica
        try:
            start_offset = await broker.executors.run_io(broker.logs.delete_records, *partition.key, before_offset)
        finally:
            broker.arrivals.changed(partition.key)
            broker.stable_arrivals.changed(partition.key)
        if replica is not None and not replica.is_alone:
            broker.replicas.announce(replica)
            await broker.replicas.waiting.deleted(replica, before_offset, broker.replicas.is_alive, timeout_s)
        return start_offset

    def changed(self, key: PartitionKey) -> None:
        """A partition is gone, or this broker's role in it another: whoever waits there looks at once."""
        broker = self._broker
        for arrivals in (broker.arrivals, broker.stable_arrivals, broker.appends):
            arrivals.changed(key)
        self._stable_offsets.pop(key, None)
        self._unstable_bytes.pop(key, None)
