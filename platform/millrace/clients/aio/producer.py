"""Asyncio producer over one synchronous producer, without a thread for each call.

It awaits free ``buffer.memory`` and acknowledgements instead of blocking. Slow or blocking work (tables, unknown
topics, flush, transactions) runs in one of two helper threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from millrace.clients.model import (
    BatchMetadata,
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    PreparedTransaction,
    ProducerRecord,
    ProducerStatistics,
    RecordMetadata,
    TopicDescription,
    TopicPartition,
)
from millrace.clients.producer import Producer
from millrace.clients.producing.chunk import Headers, OnDelivery
from millrace.clients.producing.futures import SendFuture
from millrace.clients.producing.memory import BufferMemory, NoRoomError
from millrace.clients.producing.record_checks import as_headers
from millrace.clients.transactions.model import CommitOutcome
from millrace.errors import AbortableTransactionError, BufferExhaustedError, MillraceError, SchemaMismatchError

Result = TypeVar("Result")


class AsyncProducer:
    """``Producer`` for asyncio, with the same options, guarantees and errors. For the tasks of one event loop.

    ``future = await producer.send(...)`` waits for buffer memory only, and ``await future`` for the record's place.
    ``await producer.send_and_wait(...)`` does both. Use the producer in ``async with``, or close it. If a task is
    cancelled while it waits for memory, its record is not sent. Accepted records are always sent.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._core = _Core(config)
        self._deliveries = _Deliveries()
        # Tables keep their order in one thread; flushes and commits in the other do not block tables.
        self._worker = ThreadPoolExecutor(1, "millrace-producer-work")
        self._waiter = ThreadPoolExecutor(1, "millrace-producer-wait")

    # --- sending -------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | Mapping[str, bytes | None] | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Accept a record for sending and return the future of its place: see ``Producer.send``.

        Waits while ``buffer.memory`` is full, and for an unknown topic, at most ``max.block.ms``.
        """
        record = ProducerRecord(topic, value, key, as_headers(headers), timestamp_ms, partition)
        if not self._core.is_known(topic, partition):
            await self._run(self._worker, self._core.find, topic, partition)
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[RecordMetadata] = loop.create_future()
        accepted = self._core.intercepted(record, partial(self._deliveries.put, loop, outcome))
        was_looked_up = False
        while True:
            try:
                self._core.accept(*accepted)
            except NoRoomError as full:
                await self._room(full)
            except SchemaMismatchError:
                if was_looked_up or not await self._run(self._worker, self._core.has_new_schema, topic):
                    raise
                was_looked_up = True
            else:
                return outcome

    async def _room(self, full: NoRoomError) -> None:
        """Wait for memory and reserve it for the topic's records."""
        loop = asyncio.get_running_loop()
        served = asyncio.Event()
        waiter = self._core.memory.acquire_later(full.size_bytes, partial(_call_in, loop, served.set))
        granted = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._core.max_block_s):
                    await served.wait()
        finally:
            granted = self._core.memory.withdraw(waiter)
            if granted:
                full.reserved(full.size_bytes)
        if not granted:
            error = BufferExhaustedError(full.message)
            self._core.refused(error)
            raise error

    async def send_and_wait(self, topic: str, value: Any, **options: Any) -> RecordMetadata:
        """Send a record and wait until it is acknowledged; options as for ``send``."""
        return await (await self.send(topic, value, **options))

    async def send_batch(
        self, topic: str, records: Iterable[Any], *, partition: int | None = None
    ) -> list[RecordMetadata]:
        """Send many records and wait until all are acknowledged: see ``Producer.send_batch``."""
        send = partial(self._core.send_batch, topic, list(records), partition=partition)
        return await self._outcome(await self._run(self._worker, send))

    async def send_table(
        self, topic: str, table: Any, *, partition: Any = None, timestamps: Any = None
    ) -> list[BatchMetadata]:
        """Send a table and wait until all of it is acknowledged: see ``Producer.send_table``."""
        send = partial(self._core.send_table, topic, table, partition=partition, timestamps=timestamps)
        return await self._outcome(await self._run(self._worker, send))

    async def _outcome(self, future: SendFuture[Result]) -> Result:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        future.add_done_callback(lambda _: _call_in(loop, done.set))
        await done.wait()
        return future.result()

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic as this producer knows it; raises ``UnknownTopicOrPartitionError``."""
        return await self._run(self._worker, self._core.describe_topic, topic)

    async def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return await self._run(self._worker, self._core.partitions_for, topic)

    async def statistics(self) -> ProducerStatistics:
        """See ``Producer.statistics``."""
        return self._core.statistics()

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything is acknowledged or has failed: see ``Producer.flush``."""
        await self._run(self._waiter, self._core.flush, timeout)

    # --- transactions --------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """See ``Producer.init_transactions``."""
        await self._run(self._waiter, self._core.init_transactions)

    async def join_commit(
        self, external_epoch: int, *, attempt: str, owner: str = "", retention_ms: int = 0
    ) -> CommitOutcome:
        """See ``Producer.join_commit``."""
        join = partial(self._core.join_commit, owner=owner, retention_ms=retention_ms)
        return await self._run(self._waiter, partial(join, external_epoch, attempt=attempt))

    async def begin_transaction(self) -> None:
        """See ``Producer.begin_transaction``."""
        await self._run(self._waiter, self._core.begin_transaction)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """See ``Producer.send_offsets_to_transaction``."""
        await self._run(self._waiter, self._core.send_offsets_to_transaction, offsets, group_metadata)

    async def commit_transaction(self) -> None:
        """See ``Producer.commit_transaction``."""
        await self._run(self._waiter, self._core.commit_transaction)

    async def abort_transaction(self) -> None:
        """See ``Producer.abort_transaction``."""
        await self._run(self._waiter, self._core.abort_transaction)

    async def prepared_transaction(self) -> PreparedTransaction | None:
        """See ``Producer.prepared_transaction``."""
        return await self._run(self._waiter, self._core.prepared_transaction)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Begin a transaction and commit it, or abort it if the block fails or is cancelled, or if the commit fails.

        A task that is cancelled during the commit gets ``CancelledError`` when the transaction is committed, or the
        error of the commit.
        """
        try:
            await self._run_to_end(self._core.begin_transaction)
        except asyncio.CancelledError:
            await self._run_to_end(self._core.abort_after_failure)
            raise
        try:
            yield self
        except BaseException:
            await self._run_to_end(self._core.abort_after_failure)
            raise
        try:
            await self._run_to_end(self._core.commit_transaction)
        except AbortableTransactionError:
            await self._run_to_end(self._core.abort_after_failure)
            raise

    async def _run_to_end(self, call: Callable[[], None]) -> None:
        """Run a call in the helper thread. If the task is cancelled, raise that, or the call's error, at its end."""
        self._core.check_open()
        running = asyncio.get_running_loop().run_in_executor(self._waiter, call)
        cancellation = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancellation = error
        running.result()
        if cancellation is not None:
            raise cancellation

    # --- the end -------------------------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> None:
        """Send the remaining records for at most ``timeout`` seconds, and close: see ``Producer.close``. May be
        called twice.
        """
        # Do not use a helper thread, because both may be busy with work that the close ends.
        await asyncio.to_thread(self._core.close, timeout)
        self._worker.shutdown(wait=False)
        self._waiter.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, executor: ThreadPoolExecutor, call: Callable[..., Result], *arguments: Any) -> Result:
        self._core.check_open()
        return await asyncio.get_running_loop().run_in_executor(executor, partial(call, *arguments))


class _Core(Producer):
    """The underlying producer, whose ``accept`` never waits."""

    _may_block = False

    @property
    def memory(self) -> BufferMemory:
        """Limit of unacknowledged bytes."""
        return self._memory

    @property
    def max_block_s(self) -> float:
        """Time limit of a task's wait for memory."""
        return self._config.max_block_ms / 1000

    def check_open(self) -> None:
        """Raise ``ClientClosedError`` after ``close``."""
        self._connections.check_open()

    def is_known(self, topic: str, partition: int | None) -> bool:
        """Return whether a record can be accepted without a topic lookup."""
        known = self._metadata.last_known(topic)
        return known is not None and (partition is None or 0 <= partition < known.num_partitions)

    def find(self, topic: str, partition: int | None) -> None:
        """Ask the broker for a topic; raises ``UnknownTopicOrPartitionError``."""
        try:
            if partition is None:
                self._topic(topic)
            else:
                self._topic_with(topic, partition)
        except MillraceError as error:
            self.refused(error)
            raise

    def has_new_schema(self, topic: str) -> bool:
        """Look up a topic that a record does not fit, and return whether it has another schema now."""
        return self._has_new_schema(topic)

    def refused(self, error: MillraceError) -> None:
        """Fail the transaction, because a record is not sent."""
        self._note_refused_send(error)

    def intercepted(self, record: ProducerRecord, on_delivery: OnDelivery) -> tuple[ProducerRecord, OnDelivery | None]:
        """Pass a record through the interceptors."""
        return self._intercepted(record, on_delivery)

    def accept(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> None:
        """Append a record; raises ``NoRoomError``."""
        self._append(record, on_delivery)

    def abort_after_failure(self) -> None:
        """Abort the open transaction without raising."""
        self._abort_after_failure(self._needed_transactions())


class _Deliveries:
    """Transfer of outcomes from the producer's thread to the event loop.

    One call of the event loop transfers many outcomes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[asyncio.Future[RecordMetadata], RecordMetadata | None, MillraceError | None]] = (
            deque()
        )
        self._is_scheduled = False

    def put(
        self,
        loop: asyncio.AbstractEventLoop,
        outcome: asyncio.Future[RecordMetadata],
        metadata: RecordMetadata | None,
        error: MillraceError | None,
    ) -> None:
        """Complete ``outcome`` in its loop."""
        with self._lock:
            self._waiting.append((outcome, metadata, error))
            is_first, self._is_scheduled = not self._is_scheduled, True
        if is_first:
            _call_in(loop, self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            self._is_scheduled = False
        for outcome, metadata, error in waiting:
            if outcome.done():  # cancelled: the outcome is discarded
                continue
            if error is not None:
                outcome.set_exception(error)
            elif metadata is not None:
                outcome.set_result(metadata)


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], Any]) -> None:
    """Call a function in a loop from another thread; a closed loop has no waiting tasks."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
