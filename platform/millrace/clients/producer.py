"""Sending records and tables to topics."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from millrace.clients.batching import PARTITION, BuiltBatch, Fitted, RefusedRow, build_batches, divide, fit_table
from millrace.clients.connections import Connections
from millrace.clients.futures import SendFuture
from millrace.clients.memory import BufferMemory
from millrace.clients.metadata import MetadataCache, check_partition
from millrace.clients.model import BatchMetadata, RecordMetadata, TopicDescription
from millrace.clients.record_buffer import Chunk, Headers, RecordBuffer
from millrace.clients.sender import Completion, Sender
from millrace.config.client import ProducerConfig
from millrace.errors import BufferExhaustedError, MillraceError, RequestTimedOutError, SchemaMismatchError
from millrace.records import Compression
from millrace.schemas import to_table

_DIVIDED_BYTES_MAX: Final = 32 * 2**20
"""Most bytes that are divided among partitions at once."""
_CHUNK_BATCHES_MAX: Final = 4
"""Single records are gathered to at most so many batches' worth."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Producer:
    """Sends records one by one (``send``) or as tables (``send_table``). Thread safe.

    ``config`` is ``bootstrap.servers`` or a mapping of ``ProducerConfig``'s options. Records of one thread to one
    partition keep their order; with ``enable.idempotence`` (the default) retries do not duplicate them. Close it, or
    use it in ``with``: what has not been sent is lost when the process ends.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._config = ProducerConfig.of(config)
        self._compression = Compression.parse(self._config.compression_type.value)
        self._connections = Connections(self._config)
        self._metadata = MetadataCache(self._connections)
        self._memory = BufferMemory(self._config.buffer_memory)
        self._buffers: dict[str, RecordBuffer] = {}
        self._turns: dict[str, int] = {}
        self._closing = threading.Lock()
        # Shared by all futures and the sender.
        self._condition = threading.Condition()
        self._sender = Sender(self._config, self._connections, self._metadata, self._condition, self._drain_due)

    # --- single records --------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | Mapping[str, bytes | None] | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> SendFuture[RecordMetadata]:
        """Send a record: bytes or text to an opaque topic (``None`` is a tombstone), a dict of columns to a typed one.

        Returns at once, unless ``buffer.memory`` is full. Without ``partition`` the key decides, and without a key the
        records take turns, a batch each. The future has the record's offset or its error.

        Raises ``SchemaMismatchError`` naming the column, ``UnknownTopicOrPartitionError``, ``BufferExhaustedError``
        after ``max.block.ms``, ``ClientClosedError``.
        """
        self._connections.check_open()
        buffer = self._buffers.get(topic) or self._open_buffer(topic)
        if partition is not None:
            check_partition(self._metadata.topic(topic), partition)
        if buffer.size_bytes >= buffer.limit_bytes:
            self._drain(buffer, wait=True)
        future: SendFuture[RecordMetadata] = SendFuture(self._condition)
        items: Headers = ()
        if headers:
            items = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        stamp = _now_ms() if timestamp_ms is None else timestamp_ms
        if buffer.append(future, key, value, items, stamp, partition):
            self._sender.wake()
        return future

    def _open_buffer(self, name: str) -> RecordBuffer:
        topic = self._topic(name)
        batches = min(topic.num_partitions, _CHUNK_BATCHES_MAX)
        limit_bytes = min(self._config.batch_size * batches, self._config.buffer_memory // 2)
        return self._buffers.setdefault(name, RecordBuffer(topic, limit_bytes))

    def _drain_due(self) -> float | None:
        """Drain buffers whose records have waited for ``linger.ms``; the seconds until the next one is due."""
        linger_s = self._config.linger_ms / 1000
        waits = []
        for buffer in list(self._buffers.values()):
            age_s = buffer.age_s
            if age_s is None:
                continue
            if age_s < linger_s:
                waits.append(linger_s - age_s)
            elif not self._sender.is_busy(buffer.name):  # else the answer under way wakes the sender again
                self._drain(buffer, wait=False)
        return min(waits) if waits else None

    def _drain(self, buffer: RecordBuffer, *, wait: bool) -> None:
        """Make batches of what a buffer holds; the sender never waits, neither for memory nor for another drain."""
        if not buffer.drain_lock.acquire(blocking=wait):
            return
        try:
            size_bytes = buffer.size_bytes
            if wait:
                self._memory.acquire(size_bytes, self._config.max_block_ms / 1000)
            chunk = buffer.take()
            try:
                if chunk is not None:
                    self._encode(buffer, chunk)
            finally:
                if wait:
                    self._memory.release(size_bytes)
        finally:
            buffer.drain_lock.release()

    def _encode(self, buffer: RecordBuffer, chunk: Chunk) -> None:
        try:
            topic = self._metadata.topic(buffer.name)
            buffer.use(topic)
            fitted = fit_table(topic, chunk.table(topic), now_ms=_now_ms())
            for partition, part, numbers in divide(
                fitted, self._turn(topic), self._config.batch_size, number_rows=True
            ):
                for batch in self._build(partition, part, numbers):
                    rows = [] if batch.rows is None else batch.rows.tolist()
                    if isinstance(batch, RefusedRow):
                        self._settle(chunk, rows, error=batch.error)
                    else:
                        self._memory.take(len(batch.records))
                        self._sender.enqueue(topic.name, batch, self._record_completion(chunk, batch, rows))
        except SchemaMismatchError as error:
            self._refuse_misfits(buffer, chunk, error)
        except MillraceError as error:
            self._settle(chunk, range(len(chunk.rows)), error=error)

    def _refuse_misfits(self, buffer: RecordBuffer, chunk: Chunk, error: SchemaMismatchError) -> None:
        """Something in a chunk does not fit: find out which records, and send the others."""
        good = Chunk(chunk.created)
        topic = self._metadata.topic(buffer.name)
        for number, row in enumerate(chunk.rows):
            try:
                fit_table(topic, Chunk(chunk.created, [row]).table(topic), now_ms=0)
            except SchemaMismatchError as misfit:
                self._settle(chunk, [number], error=misfit)
            else:
                good.rows.append(row)
        if len(good.rows) == len(chunk.rows):  # each fits alone: then it is not the records
            self._settle(chunk, range(len(chunk.rows)), error=error)
        elif good.rows:
            self._encode(buffer, good)

    def _record_completion(self, chunk: Chunk, batch: BuiltBatch, rows: list[int]) -> Completion:
        def complete(metadata: BatchMetadata | None, append_time_ms: int, error: MillraceError | None) -> None:
            self._memory.release(len(batch.records))
            self._settle(chunk, rows, metadata, append_time_ms, error)

        return complete

    def _settle(
        self,
        chunk: Chunk,
        rows: list[int] | range,
        metadata: BatchMetadata | None = None,
        append_time_ms: int = -1,
        error: MillraceError | None = None,
    ) -> None:
        callbacks = []
        with self._condition:
            for position, number in enumerate(rows):
                row, result = chunk.rows[number], None
                if metadata is not None:
                    offset = metadata.base_offset + position if metadata.base_offset >= 0 else -1
                    stamp = append_time_ms if append_time_ms >= 0 else row.timestamp_ms
                    result = RecordMetadata(metadata.topic, metadata.partition, offset, stamp)
                if (callback := row.future.complete(result, error)) is not None:
                    callbacks.append(callback)
            self._condition.notify_all()
        for callback in callbacks:
            callback()

    # --- tables ----------------------------------------------------------------------------------------------

    def send_table(
        self,
        topic: str,
        table: Any,
        *,
        partition: int | str | Any = None,
        timestamps: int | str | Any = None,
    ) -> SendFuture[list[BatchMetadata]]:
        """Send the rows of an Arrow, pandas or polars table (anything that ``to_table`` takes).

        A typed topic takes its schema's columns (nullable ones may be missing), and ``__timestamp``, ``__headers``,
        ``__partition``, ``__tombstone`` beside them. An opaque topic takes ``value`` and, if wanted, ``key``,
        ``headers``, ``timestamp``, ``partition``.

        ``timestamps`` are one for all in ms, the name of a column, or an array; otherwise the present time.
        ``partition`` is a number, the name of a column, or an array; otherwise keys decide, and rows without a key take
        turns, a batch each. All rows are checked before the first is sent. Blocks while ``buffer.memory`` is full.
        The future has the batches in the order in which they were made.

        Raises ``SchemaMismatchError`` naming column and row, ``UnknownTopicOrPartitionError``,
        ``MessageTooLargeError``, ``BufferExhaustedError``, ``ClientClosedError``.
        """
        self._connections.check_open()
        rows = to_table(table)
        description = self._topic_for(topic, rows)
        if (buffer := self._buffers.get(topic)) is not None:
            self._drain(buffer, wait=True)
        fitted = fit_table(description, rows, now_ms=_now_ms(), timestamps=timestamps, partition=partition)
        sending = _TableSend(self._condition, self._memory)
        try:
            for chunk in self._chunks(fitted):
                for target, part, _ in divide(
                    chunk, self._turn(description), self._config.batch_size, number_rows=False
                ):
                    for batch in self._build(target, part, None):
                        self._send_batch(topic, batch, sending)
        except BaseException as error:
            sending.seal(error if isinstance(error, MillraceError) else None)
            raise
        sending.seal()
        return sending.future

    def _topic_for(self, name: str, table: pa.Table) -> TopicDescription:
        """Describe a topic, anew when the table has columns that its known schema lacks: it may have been evolved."""
        topic = self._topic(name)
        if topic.schema is not None and not set(table.column_names) <= set(topic.schema.names):
            topic = self._metadata.topic(name, fresh=True)
        return topic

    def _chunks(self, fitted: Fitted) -> Iterator[Fitted]:
        """Slices that give every partition about a batch, where rows are divided by key; else of one batch."""
        if not fitted.num_rows:
            return
        chunk_bytes = self._config.batch_size
        is_divided = (
            bool(fitted.topic.key_columns) or "key" in fitted.columns.column_names or PARTITION in fitted.beside
        )
        if fitted.partition is None and is_divided:
            limit = min(_DIVIDED_BYTES_MAX, self._config.buffer_memory // 2)
            chunk_bytes = max(min(chunk_bytes * fitted.topic.num_partitions, limit), chunk_bytes)
        row_bytes = max(fitted.columns.nbytes / fitted.num_rows, 1)
        length = max(int(chunk_bytes / row_bytes), 1)
        for start in range(0, fitted.num_rows, length):
            yield fitted.slice(start, min(length, fitted.num_rows - start))

    def _build(self, partition: int, part: Fitted, numbers: Any) -> Iterator[BuiltBatch | RefusedRow]:
        return build_batches(
            partition, part, numbers, compression=self._compression, max_bytes=self._config.max_request_size
        )

    def _send_batch(self, topic: str, batch: BuiltBatch | RefusedRow, sending: _TableSend) -> None:
        if sending.error is not None:
            raise sending.error
        if isinstance(batch, RefusedRow):
            raise batch.error
        self._connections.check_open()
        try:
            self._memory.acquire(len(batch.records), self._config.max_block_ms / 1000)
        except BufferExhaustedError as error:
            raise BufferExhaustedError(f"{error.message} (earlier rows of the table are on their way)") from None
        try:
            self._sender.enqueue(topic, batch, sending.completion(batch))
        except MillraceError:
            sending.withdraw(batch)
            raise

    # --- common ----------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicDescription:
        self._connections.check_open()
        return self._metadata.topic(name)

    def _turn(self, topic: TopicDescription) -> int:
        """Where rows without a key begin to take turns: at a random partition first, so that producers differ."""
        turn = self._turns.get(topic.name)
        if turn is None:
            turn = random.randrange(topic.num_partitions)
        self._turns[topic.name] = turn + 1
        return turn

    def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic as this producer knows it; raises ``UnknownTopicOrPartitionError``."""
        return self._topic(topic)

    def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has."""
        return self._topic(topic).num_partitions

    def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait until it is acknowledged or has failed; failures are in the futures.

        Raises ``RequestTimedOutError`` when that takes longer than ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for buffer in list(self._buffers.values()):
            self._drain(buffer, wait=True)
        remaining = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not self._sender.wait_until_sent(remaining):
            raise RequestTimedOutError(
                f"not all records were acknowledged within {timeout} s; they are still being sent"
            )

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, at most for ``timeout`` seconds, and end; what is left then fails. May be called twice."""
        with self._closing:
            if self._connections.is_closed:
                return
            try:
                self.flush(timeout)
            except (RequestTimedOutError, BufferExhaustedError):
                # Asked for by the caller, who learns from the futures what was not sent.
                pass
            finally:
                self._sender.stop()
                self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _TableSend:
    """Gathers what becomes of a table's batches into one future."""

    def __init__(self, condition: threading.Condition, memory: BufferMemory) -> None:
        self.future: SendFuture[list[BatchMetadata]] = SendFuture(condition)
        self.error: MillraceError | None = None
        self._condition = condition
        self._memory = memory
        self._results: list[BatchMetadata | None] = []
        self._left = 1  # the table itself, until sealed

    def completion(self, batch: BuiltBatch) -> Completion:
        """What the sender calls for a batch, whose place among the results is taken now."""
        with self._condition:
            position = len(self._results)
            self._results.append(None)
            self._left += 1

        def complete(metadata: BatchMetadata | None, append_time_ms: int, error: MillraceError | None) -> None:
            self._memory.release(len(batch.records))
            with self._condition:
                self._results[position] = metadata
            self._finish_one(error)

        return complete

    def withdraw(self, batch: BuiltBatch) -> None:
        """A batch whose completion will never be called."""
        self._memory.release(len(batch.records))
        self._finish_one(None)

    def seal(self, error: MillraceError | None = None) -> None:
        """No more batches come."""
        self._finish_one(error)

    def _finish_one(self, error: MillraceError | None) -> None:
        callback: Callable[[], None] | None = None
        with self._condition:
            self._left -= 1
            self.error = self.error or error
            if not self._left:
                results = [result for result in self._results if result is not None]
                callback = self.future.complete(results, self.error)
                self._condition.notify_all()
        if callback is not None:
            callback()
