"""Appends to the partitions that this broker leads.

Invariants

- Batches of one partition are appended in the order in which ``append`` was called. After an append the call may wait
  for an fsync (if the topic requires one) and for other replicas. No other append waits for that.
- An append that has begun is finished and wakes its readers, also when its call is cancelled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from millrace.records import EndTransactionMarker
from millrace_broker.log import AppendResult, LogManager, ProducedBatches
from millrace_broker.log.fsync_batching import FsyncBatching
from millrace_broker.log.producer_states import Origin
from millrace_broker.replication.runtime.manager import ReplicaManager
from millrace_broker.replication.runtime.partitions import ServedPartition
from millrace_broker.replication.runtime.waiters import Waiters
from millrace_broker.runtime import Executors

_MARKER_BYTES: Final = 78
"""Size of the batch with the end marker of a transaction."""
_TICK_S: Final = 1.0
"""The interval of the log's periodic work. An fsync that is due sooner is scheduled here."""
ACKNOWLEDGED_WITHIN_S: Final = 5.0
"""The longest wait of a coordinator for the replicas of its appends (``offsets.commit.timeout.ms``)."""


class Appends:
    """Appends as a leader, Kafka's ``ReplicaManager.appendRecords``. For the event loop's thread."""

    def __init__(
        self,
        executors: Executors,
        logs: LogManager,
        fsyncs: FsyncBatching,
        waiters: Waiters,
        replicas: ReplicaManager,
    ) -> None:
        self._executors: Final = executors
        self._logs: Final = logs
        self._fsyncs: Final = fsyncs
        self._waiters: Final = waiters
        self._replicas: Final = replicas

    async def append(
        self,
        partition: ServedPartition,
        batches: ProducedBatches,
        *,
        check: Callable[[], None] | None = None,
        origin: Origin = Origin.CLIENT,
        acks_all: bool = True,
        timeout_s: float = ACKNOWLEDGED_WITHIN_S,
    ) -> AppendResult:
        """Append batches with the durability of the topic, and wake the calls that wait for them.

        ``check`` raises if the batches may no longer be appended; nothing changes the log between the check and the
        append. An ``origin`` other than a client skips some checks. With ``acks_all`` the call returns once all
        replicas in sync have the batches.

        Raises the errors of the log, and ``NotLeaderError``; with ``acks_all`` also ``NotEnoughReplicasError``,
        ``NotEnoughReplicasAfterAppendError`` and ``RequestTimedOutError``.
        """
        write = functools.partial(partition.log.append_unsynced, batches, origin=origin)
        return await self._append(partition, len(batches.data), write, acks_all, timeout_s, check)

    async def append_end_marker(
        self,
        partition: ServedPartition,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        is_epoch_raised: bool,
    ) -> None:
        """Append the end marker of a producer's transaction like ``append`` with ``acks_all``, with the same errors."""
        write = functools.partial(
            partition.log.append_end_marker_unsynced,
            producer_id,
            producer_epoch,
            marker,
            is_epoch_raised=is_epoch_raised,
        )
        await self._append(partition, _MARKER_BYTES, write, True, ACKNOWLEDGED_WITHIN_S)

    async def _append(
        self,
        partition: ServedPartition,
        size_bytes: int,
        write: Callable[..., AppendResult | None],
        acks_all: bool,
        timeout_s: float,
        check: Callable[[], None] | None = None,
    ) -> AppendResult:
        executors, key, log, replica = self._executors, partition.key, partition.log, partition.replica
        async with self._waiters.locks[key]:
            epoch = partition.leader_epoch  # since the look-up the epoch, or the leader, may have changed
            if acks_all:
                replica.leader.check_enough_in_sync()
            if check is not None:
                check()
            result = None
            if executors.small_work.includes(size_bytes):
                result = executors.small_work.do(write, leader_epoch=epoch, may_wait=False)
            if result is None:
                result = await executors.run_io(write, leader_epoch=epoch)
        assert result is not None, "it may wait in a thread"
        self._waiters.appends.arrived(key, size_bytes)
        if log.must_sync(result):
            await self._fsyncs.synced(log, result.last_offset + 1)
        elif log.config.flush_ms < _TICK_S * 1000:
            self._fsyncs.sync_within(log, log.config.flush_ms / 1000)
        if replica.is_alone:
            self._waiters.readable(key, log, size_bytes)
            return result
        self._replicas.appended(replica, size_bytes)
        if acks_all:
            await self._replicas.waiting.acknowledged(replica, result.last_offset + 1, timeout_s)
        return result

    async def delete_records(
        self, partition: ServedPartition, before_offset: int, timeout_s: float = ACKNOWLEDGED_WITHIN_S
    ) -> int:
        """Delete the records before an offset on all replicas; returns the new log start offset.

        Raises the errors of the log, ``NotLeaderError``, and ``RequestTimedOutError`` when replicas take too long.
        """
        replicas, replica = self._replicas, partition.replica
        try:
            start_offset = await self._executors.run_io(self._logs.delete_records, *partition.key, before_offset)
        finally:
            self._waiters.start_moved(partition.key)
        if not replica.is_alone:
            replicas.announce(replica)
            await replicas.waiting.deleted(replica, before_offset, replicas.is_alive, timeout_s)
        return start_offset
