"""A partition of an internal topic as the memory of a coordinator: read from its start, then only appended to.

Invariants

- Appends reach the log in the order of the calls, and the calls return in that order.
- The records of one call are in one batch: they are all there after a crash, or none.
- A call that is cancelled leaves its append to be finished.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.errors import (
    CoordinatorNotAvailableError,
    MillraceError,
    NotCoordinatorError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
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
from millrace_broker.log import PartitionLog
from millrace_broker.log.producers import Origin
from millrace_broker.quotas import parked
from millrace_broker.replication.runtime import Appends, PartitionDirectory, ServedPartition
from millrace_broker.replication.runtime.delayed_produce import DelayedProduce
from millrace_broker.runtime import Clock, Executors

_READ_BYTES: Final = 4 * 2**20
_OVERHEAD_BYTES: Final = 32
"""The most that a record has beside its key and its value."""
_BATCH_OVERHEAD_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class StateRecord:
    """What a coordinator writes: a key and what is now true of it; without a value it is forgotten."""

    key: bytes
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        """The most that it takes of a batch."""
        return len(self.key) + len(self.value or b"") + _OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """A batch of the log. One of control records has a ``marker`` (the end of a transaction) and no records."""

    header: BatchHeader
    records: Sequence[StateRecord]
    marker: EndTransactionMarker | None = None


@dataclass(slots=True)
class _Append:
    records: Sequence[StateRecord]
    size_bytes: int
    producer: tuple[int, int] | None
    done: asyncio.Future[int]


async def written(appending: asyncio.Future[int]) -> int:
    """Wait for what was submitted to a ``StateLog``: until replicas have it the call is parked."""
    with parked():
        return await asyncio.shield(appending)


class StateLog:
    """One partition of an internal topic, led by this broker. For the event loop's thread."""

    def __init__(
        self,
        topic: str,
        number: int,
        *,
        partitions: PartitionDirectory,
        appends: Appends,
        waiting: DelayedProduce,
        executors: Executors,
        clock: Clock,
    ) -> None:
        self.topic: Final = topic
        self.number: Final = number
        self._partitions: Final = partitions
        self._appends: Final = appends
        self._waiting: Final = waiting
        self._executors: Final = executors
        self._clock: Final = clock
        self._pending: deque[_Append] = deque()
        self._writer: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """``topic-partition``."""
        return f"{self.topic}-{self.number}"

    @property
    def leader_epoch(self) -> int:
        """In which term this broker leads the partition."""
        return self._partition().leader_epoch

    def _partition(self) -> ServedPartition:
        return self._partitions.led(self._partitions.topic(self.topic), self.number)

    @property
    def end_offset(self) -> int:
        """The offset that the next record will have. Raises ``UnknownTopicOrPartitionError``, ``NotLeaderError``."""
        return self._partition().log.log_end_offset

    # --- reading -------------------------------------------------------------------------------------------

    async def load(self, visit: Callable[[LoadedBatch], None]) -> None:
        """Show ``visit`` every batch, in order. It is called in another thread, where nobody else may look on.

        Raises what reading a log does; what ``visit`` raises ends it as well.
        """
        partition = self._partition()
        log, end_offset = partition.log, partition.log.log_end_offset
        if log.durable_end < end_offset:
            # What was appended before a crash and never acknowledged is decided by being here.
            await self._executors.run_io(log.flush)
        if partition.replica is not None:
            await self._waiting.committed(partition.replica, end_offset)
        await self._executors.run_io(_load, log, visit)

    # --- appending -----------------------------------------------------------------------------------------

    async def append(self, records: Sequence[StateRecord]) -> int:
        """Append records; returns the offset of the first once they are as durable as the topic is to be.

        Calls that wait at the same time share batches. Raises ``MessageTooLargeError`` when the records do not fit
        into one batch of the topic, and what appending to any log does.
        """
        return await self._enqueue(records, None)

    async def append_transactional(self, records: Sequence[StateRecord], producer_id: int, producer_epoch: int) -> int:
        """Append records as part of a producer's transaction, in a batch of their own; see ``append``."""
        return await self._enqueue(records, (producer_id, producer_epoch))

    async def _enqueue(self, records: Sequence[StateRecord], producer: tuple[int, int] | None) -> int:
        return await written(self.submit(records, producer))

    def submit(self, records: Sequence[StateRecord], producer: tuple[int, int] | None = None) -> asyncio.Future[int]:
        """Take the place in the order of appends at once, and wait later: ``append`` and ``append_transactional``
        (with a producer's id and epoch) for those who must not be overtaken. Not to be cancelled.
        """
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        size_bytes = sum(record.size_bytes for record in records)
        self._pending.append(_Append(records, size_bytes, producer, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_pending(), name=f"millrace-write-{self.name}")
        return done

    async def close(self) -> None:
        """Wait until everything that was to be appended has been, or has failed."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_pending(self) -> None:
        while self._pending:
            appends = self._take()
            try:
                offset = await self._append(appends)
            except Exception as error:  # noqa: BLE001  it is those who wait whom it concerns
                _fail(appends, error)
                continue
            for append in appends:
                if not append.done.done():
                    append.done.set_result(offset)
                offset += len(append.records)
        self._writer = None

    def _take(self) -> list[_Append]:
        """The next appends that one batch can hold."""
        first = self._pending.popleft()
        taken, size_bytes = [first], first.size_bytes
        if first.producer is not None:
            return taken
        limit_bytes = self._batch_bytes_max()
        while self._pending and self._pending[0].producer is None:
            size_bytes += self._pending[0].size_bytes
            if size_bytes > limit_bytes:
                break
            taken.append(self._pending.popleft())
        return taken

    def _batch_bytes_max(self) -> int:
        try:
            topic = self._partitions.topic(self.topic)
        except MillraceError:
            return 0  # it is gone, which the append will say
        return topic.config.max_message_bytes - _BATCH_OVERHEAD_BYTES

    async def _append(self, appends: Sequence[_Append]) -> int:
        now_ms = self._clock.now_ms()
        records = [
            Record(key=record.key, value=record.value, timestamp_ms=now_ms)
            for append in appends
            for record in append.records
        ]
        producer = appends[0].producer
        producer_id, producer_epoch = producer or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        data = build_rows_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=NO_SEQUENCE if producer is None else 0,  # as Kafka writes it; nobody looks at it
            is_transactional=producer is not None,
        )
        try:
            result = await self._appends.append(
                self._partition(), data, in_transaction=producer is not None, origin=Origin.COORDINATOR
            )
        except NotLeaderError as error:
            raise NotCoordinatorError(f"{error.message}, and so coordinates what is in it") from error
        except (NotEnoughReplicasError, NotEnoughReplicasAfterAppendError) as error:
            raise CoordinatorNotAvailableError(error.message) from error
        return result.base_offset


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
            append.done.exception()  # seen, also where the caller was cancelled and nobody looks


def _loaded(data: bytes, position: int, header: BatchHeader) -> LoadedBatch:
    records = list(read_rows(data, position, header))
    if not header.is_control:
        return LoadedBatch(header, [StateRecord(record.key or b"", record.value) for record in records])
    is_end = bool(records) and read_control_type(records[0].key) in (ControlType.ABORT, ControlType.COMMIT)
    return LoadedBatch(header, (), read_end_marker(records[0]) if is_end else None)
