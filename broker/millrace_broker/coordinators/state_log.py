"""Log of a coordinator, one partition of an internal topic.

The broker loads it once from its start, and then only appends, as long as it leads the partition without a break.

Invariants

- Appends reach the log in the order of the calls, and the calls return in that order.
- The records of one call are in one batch. After a crash all of them are there, or none.
- The append of a cancelled call is completed.
- An append fails only if its records are not in the log, or when this broker stops leading the partition. The latter
  holds even if the broker leads again by then. The state of the partition is then dropped, and loaded again from the
  log. The append waits for the replicas, however late they are. After an error its caller would continue with a state
  that the log no longer has. A client gets an answer in time all the same (``written`` and ``in_time``). Appends that
  have not begun by then fail, so that they do not pile up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from millrace.errors import (
    CoordinatorNotAvailableError,
    DiskFullError,
    MillraceError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderError,
    RequestTimedOutError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    EndTransactionMarker,
    Record,
    build_rows_batch,
    read_control_type,
    read_end_marker,
    read_rows,
    scan_headers,
)
from millrace.records.control import ControlType
from millrace_broker.log import PartitionLog, ProducedBatches
from millrace_broker.log.producer_states import Origin
from millrace_broker.log.transaction_guards import verified
from millrace_broker.quotas import parked
from millrace_broker.replication.core import Leader
from millrace_broker.replication.runtime import ACKNOWLEDGED_WITHIN_S, Appends, PartitionDirectory, ServedPartition
from millrace_broker.replication.runtime.delayed_produce import DelayedProduce
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.leadership_checks import LeadershipChecks
from millrace_broker.runtime import Clock, Executors
from millrace_broker.runtime.small_work import first_step, rest

_logger: Final = logging.getLogger(__name__)

_READ_BYTES: Final = 4 * 2**20
_OVERHEAD_BYTES: Final = 32
"""The largest size of a record without its key and its value."""
_BATCH_OVERHEAD_BYTES: Final = 128

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StateRecord:
    """Record of a coordinator; without a value it is a tombstone."""

    key: bytes
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        """The largest size of the record in a batch."""
        return len(self.key) + len(self.value or b"") + _OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """Batch of the log. A control batch that ends a transaction has a ``marker`` and no records."""

    header: BatchHeader
    records: Sequence[StateRecord]
    marker: EndTransactionMarker | None = None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Transaction of a producer in which records are appended. ``check`` raises if it has ended meanwhile."""

    producer_id: int
    epoch: int
    check: Callable[[], None]


@dataclass(slots=True)
class _Append:
    records: Sequence[StateRecord]
    size_bytes: int
    transaction: OpenTransaction | None
    done: asyncio.Future[int]
    since_s: float
    """The time of the event loop at the call."""


async def written(appending: asyncio.Future[int]) -> int:
    """Wait for an append of a ``StateLog``. The call is parked until the replicas have the records.

    Raises ``CoordinatorNotAvailableError`` after ``offsets.commit.timeout.ms``, and the append continues. State that
    depends on the outcome is therefore changed by a callback of the future.
    """
    if appending.done():
        return appending.result()
    with parked():
        await asyncio.wait([appending], timeout=ACKNOWLEDGED_WITHIN_S)
    if not appending.done():
        raise late()
    return appending.result()


def when_done(appending: asyncio.Future[int], finish: Callable[[asyncio.Future[int]], None]) -> None:
    """Call ``finish`` when an append of a ``StateLog`` has ended, before the caller of ``written`` continues."""
    if appending.done():
        finish(appending)
    else:
        appending.add_done_callback(finish)


async def in_time(change: Coroutine[Any, Any, T], executors: Executors) -> T:
    """Wait for a change of a coordinator's state, which appends to its log. The change continues without its caller.

    Raises ``CoordinatorNotAvailableError`` after ``offsets.commit.timeout.ms``. As in Kafka, the client finds the
    coordinator again, which may be another broker by then.
    """
    try:
        async with asyncio.timeout(ACKNOWLEDGED_WITHIN_S):
            return await executors.to_the_end(change)
    except TimeoutError:
        raise late() from None


def late() -> CoordinatorNotAvailableError:
    """Return the error of a call that has waited for ``offsets.commit.timeout.ms``."""
    return CoordinatorNotAvailableError(
        f"the call to the coordinator has not ended within {ACKNOWLEDGED_WITHIN_S:.0f} s, probably because replicas "
        "are late: find the coordinator again, and retry"
    )


@contextmanager
def coordinator_errors() -> Iterator[None]:
    """Convert the errors of a coordinator's partition, as Kafka does, so that clients find the coordinator again.

    Kafka's Java consumer stops for good after a ``StorageError``.
    """
    try:
        yield
    except (DiskFullError, NotEnoughReplicasError, UnknownTopicOrPartitionError) as error:
        raise CoordinatorNotAvailableError(error.message) from error
    except (NotLeaderError, StorageError) as error:
        raise NotCoordinatorError(f"{error.message}: find the coordinator again") from error


class StateLog:
    """Log of one partition of an internal topic that this broker leads.

    The class is for the event loop's thread.
    """

    def __init__(
        self,
        topic: str,
        number: int,
        *,
        partitions: PartitionDirectory,
        appends: Appends,
        waiting: DelayedProduce,
        leadership_checks: LeadershipChecks,
        executors: Executors,
        clock: Clock,
    ) -> None:
        self.topic: Final = topic
        self.number: Final = number
        self._partitions: Final = partitions
        self._appends: Final = appends
        self._waiting: Final = waiting
        self._leadership_checks: Final = leadership_checks
        self._executors: Final = executors
        self._clock: Final = clock
        self._pending: deque[_Append] = deque()
        self._writer: asyncio.Task[None] | None = None
        """Task of an append that has to wait."""
        self._is_writing = False
        """True while appends are written, by ``_writer`` or in the call that began them."""
        self._is_closing = False
        self._leader: Leader | None = None
        """The leadership of this broker in which the log was loaded."""

    @property
    def name(self) -> str:
        """The name ``topic-partition``."""
        return f"{self.topic}-{self.number}"

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the partition."""
        return self._partition().leader_epoch

    def _partition(self) -> ServedPartition:
        return self._partitions.led(self._partitions.topic(self.topic), self.number)

    @property
    def end_offset(self) -> int:
        """The log end offset. Raises ``UnknownTopicOrPartitionError``, ``NotLeaderError``."""
        return self._partition().log.log_end_offset

    # --- reading -------------------------------------------------------------------------------------------

    async def load(self, visit: Callable[[LoadedBatch], None]) -> None:
        """Call ``visit`` with each batch, in order, in an I/O thread. No other thread may read its results meanwhile.

        Raises the errors of a read, and those of ``visit``.
        """
        partition = self._partition()
        self._leader = partition.replica.leader
        log, end_offset = partition.log, partition.log.log_end_offset
        if log.durable_end < end_offset:
            # Records that were appended before a crash without an answer count now, so they must be durable.
            await self._executors.run_io(log.flush)
        await self._waiting.committed(partition.replica, end_offset)
        await self._executors.run_io(_load, log, visit)

    async def check_leads(self) -> None:
        """Return when it is known that no other broker led the partition when the call began.

        The state that was loaded from the log, and what was appended since, is then up to date. Raises
        ``NotCoordinatorError``, and ``CoordinatorNotAvailableError`` after ``offsets.commit.timeout.ms``.
        """
        with coordinator_errors():
            replica = self._partition().replica
            if replica.leader is not self._leader:
                raise NotLeaderError(f"{self.name} has been loaded again, because its leader has changed")
            try:
                async with asyncio.timeout(ACKNOWLEDGED_WITHIN_S):
                    await self._leadership_checks.check(replica)
            except TimeoutError:
                raise late() from None

    # --- appending -----------------------------------------------------------------------------------------

    async def append(self, records: Sequence[StateRecord]) -> int:
        """Append records; return the offset of the first one when they are as durable as the topic requires.

        The call may take as long as this broker leads the partition: clients wait with ``in_time``. Calls that wait at
        the same time share batches. Raises ``MessageTooLargeError`` for records that do not fit into one batch of the
        topic, ``NotCoordinatorError``, and ``CoordinatorNotAvailableError`` if replicas or disk space are missing.
        """
        appending = self.submit(records)
        with parked():
            return await asyncio.shield(appending)

    async def transaction(
        self, producer_id: int, epoch: int, verify: Callable[[], Awaitable[None]], *, begins: bool
    ) -> OpenTransaction:
        """Return a producer's transaction, after its verification at its coordinator; see ``verified``.

        Raises ``NotCoordinatorError``, ``CoordinatorNotAvailableError``, and the errors of ``verify``.
        """
        with coordinator_errors():
            log = self._partition().log
        return OpenTransaction(producer_id, epoch, await verified(log, producer_id, epoch, verify, begins=begins))

    def submit(
        self, records: Sequence[StateRecord], transaction: OpenTransaction | None = None, *, at_once: bool = False
    ) -> asyncio.Future[int]:
        """Enqueue an append, for callers that wait later and must keep their order. The result must not be cancelled.

        In a transaction the records are a batch of their own. The result raises ``InvalidTxnStateError`` if the
        transaction has ended. With ``at_once`` the append begins before the method returns, unless another one waits.
        Without it, all appends of this iteration of the event loop may share a batch.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        size_bytes = sum(record.size_bytes for record in records)
        self._pending.append(_Append(records, size_bytes, transaction, done, loop.time()))
        if not self._is_writing:
            self._is_writing = True
            self._start(at_once=at_once)
        return done

    def _start(self, *, at_once: bool) -> None:
        """Write what is pending. Most appends never wait, and then need no task if they begin at once."""
        work = self._write_pending()
        if at_once:
            try:
                work = rest(first_step(work))
            except StopIteration:
                return
        self._writer = asyncio.create_task(work, name=f"millrace-write-{self.name}")

    async def close(self) -> None:
        """Wait until all enqueued appends have ended or failed. Late replicas are not waited for."""
        self._is_closing = True
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_pending(self) -> None:
        while self._pending:
            appends = self._take()
            try:
                offset = await self._append(appends)
            except Exception as error:  # noqa: BLE001 - the callers get the error
                _fail(appends, error)
                continue
            for append in appends:
                if not append.done.done():
                    append.done.set_result(offset)
                offset += len(append.records)
        self._writer = None
        self._is_writing = False

    def _take(self) -> list[_Append]:
        """Return the next appends that fit into one batch."""
        first = self._pending.popleft()
        taken, size_bytes = [first], first.size_bytes
        if first.transaction is not None:
            return taken
        limit_bytes = self._batch_bytes_max()
        while self._pending and self._pending[0].transaction is None:
            size_bytes += self._pending[0].size_bytes
            if size_bytes > limit_bytes:
                break
            taken.append(self._pending.popleft())
        return taken

    def _batch_bytes_max(self) -> int:
        try:
            topic = self._partitions.topic(self.topic)
        except MillraceError:
            return 0  # the append raises the error
        return topic.config.max_message_bytes - _BATCH_OVERHEAD_BYTES

    async def _append(self, appends: Sequence[_Append]) -> int:
        now_ms = self._clock.now_ms()
        records = [
            Record(key=record.key, value=record.value, timestamp_ms=now_ms)
            for append in appends
            for record in append.records
        ]
        transaction = appends[0].transaction
        data = build_rows_batch(
            records,
            producer_id=NO_PRODUCER_ID if transaction is None else transaction.producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if transaction is None else transaction.epoch,
            base_sequence=NO_SEQUENCE if transaction is None else 0,  # as in Kafka, where no reader uses it
            is_transactional=transaction is not None,
        )
        with coordinator_errors():
            partition = self._partition()
            batches = ProducedBatches(data, partition.log.config, in_transaction=transaction is not None)
            result = await self._appends.append(
                partition,
                batches,
                check=lambda: self._check(partition.replica.leader, transaction),
                origin=Origin.COORDINATOR,
                acks_all=False,
            )
            if not partition.replica.is_alone:
                await self._acknowledged(partition.replica, result.last_offset + 1)
        return result.base_offset

    def _check(self, leader: Leader, transaction: OpenTransaction | None) -> None:
        """Check that an append may begin.

        Raises ``NotLeaderError`` if this broker has led again since the load. The partition has been loaded again then,
        and its present state does not have what is appended here. Raises ``NotEnoughReplicasError``,
        ``InvalidTxnStateError``.
        """
        if leader is not self._leader:
            raise NotLeaderError(f"{self.name} has been loaded again, because its leader has changed")
        leader.check_enough_in_sync()
        if transaction is not None:
            transaction.check()

    async def _acknowledged(self, replica: HostedReplica, end_offset: int) -> None:
        """Wait as long as this broker leads the partition until enough replicas in sync have the records."""
        while True:
            try:
                await self._waiting.acknowledged(replica, end_offset, ACKNOWLEDGED_WITHIN_S, waits_for_isr=True)
            except RequestTimedOutError as error:
                if self._is_closing:
                    raise NotCoordinatorError(f"{error.message}: find the coordinator again") from error
                _logger.warning("%s: %s", self.name, error.message)
                self._fail_late()
            else:
                return

    def _fail_late(self) -> None:
        """Fail the appends that have waited too long for their turn. Nothing of them is in the log."""
        limit_s = asyncio.get_running_loop().time() - ACKNOWLEDGED_WITHIN_S
        while self._pending and self._pending[0].since_s <= limit_s:
            _fail([self._pending.popleft()], late())


def _load(log: PartitionLog, visit: Callable[[LoadedBatch], None]) -> None:
    offset = log.log_start_offset
    while data := log.read(offset, _READ_BYTES):
        for position, header in scan_headers(data):
            visit(_loaded(data, position, header))
            offset = header.last_offset + 1


def _fail(appends: Sequence[_Append], error: Exception) -> None:
    for append in appends:
        if not append.done.done():
            append.done.set_exception(error)
            append.done.exception()  # marks the exception as retrieved, because the caller may be cancelled


def _loaded(data: bytes, position: int, header: BatchHeader) -> LoadedBatch:
    records = list(read_rows(data, position, header))
    if not header.is_control:
        return LoadedBatch(header, [StateRecord(record.key or b"", record.value) for record in records])
    is_end = bool(records) and read_control_type(records[0].key) in (ControlType.ABORT, ControlType.COMMIT)
    return LoadedBatch(header, (), read_end_marker(records[0]) if is_end else None)
