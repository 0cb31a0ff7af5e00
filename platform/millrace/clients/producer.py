"""Producer of records and tables, with or without transactions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import pyarrow as pa

from millrace.clients.connections import Connections
from millrace.clients.metadata import MetadataCache, check_partition
from millrace.clients.model import (
    BatchMetadata,
    ProducerRecord,
    ProducerStatistics,
    RecordMetadata,
    TopicDescription,
)
from millrace.clients.producing.accumulator import Accumulator
from millrace.clients.producing.adaptive import AdaptiveChoice
from millrace.clients.producing.batch_making import BatchMaker
from millrace.clients.producing.batch_sending import ManyFuture, gather
from millrace.clients.producing.batching import Fitted, fit_table
from millrace.clients.producing.chunk import Chunk, Headers, OnDelivery
from millrace.clients.producing.futures import Outcomes, SendFuture
from millrace.clients.producing.interceptors import Interceptors, ProducerInterceptor
from millrace.clients.producing.memory import BufferMemory
from millrace.clients.producing.outgoing import part_error
from millrace.clients.producing.partitioning import Partitioner, check_choice, instances
from millrace.clients.producing.record_buffer import RecordBuffer
from millrace.clients.producing.record_checks import as_headers, check_timestamp
from millrace.clients.producing.sender import Sender
from millrace.clients.producing.table_sending import TableSender
from millrace.clients.producing.transaction_calls import TransactionCalls
from millrace.clients.producing.transactions import Transactions
from millrace.config.client import ProducerConfig
from millrace.errors import (
    BufferExhaustedError,
    ClientClosedError,
    MillraceError,
    RequestTimedOutError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
    UsageError,
)
from millrace.schemas import to_table

logger = logging.getLogger(__name__)
_ABORT_ON_CLOSE_S: Final = 10.0
"""Time that ``close`` waits for the abort of an open transaction, if it has no timeout of its own."""
_STOP_S: Final = 0.5
"""Minimum time that ``close`` waits for the end of the sender's thread, which needs none unless it connects."""


class Producer(TransactionCalls):
    """Producer of single records (``send``), lists (``send_batch``) or tables (``send_table``). Thread safe.

    ``config`` is ``bootstrap.servers`` or a mapping of ``ProducerConfig``'s options. Records of one thread to one
    partition keep their order; with ``enable.idempotence`` (the default) retries do not duplicate them. With
    ``transactional.id`` all sends are transactional: call ``init_transactions`` first, then use ``with
    transaction():``. Close the producer, or use it in ``with``, because unsent records are lost when the process
    ends. In a process that is forked from the producer's own, every method but ``close`` raises ``UsageError``.
    """

    _may_block: ClassVar[bool] = True
    """True if the sending thread may block. The event loop of asyncio must not block."""

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._config = ProducerConfig.of(config)
        self._make(self._config)

    def _make(self, config: ProducerConfig) -> None:
        options = config.model_dump(by_alias=True)
        given = () if config.partitioner_class is None else (config.partitioner_class,)
        partitioners = instances("partitioner.class", given, Partitioner, options)
        self._partitioner: Partitioner | None = partitioners[0] if partitioners else None
        self._interceptors = Interceptors(
            instances("interceptor.classes", config.interceptor_classes, ProducerInterceptor, options)
        )
        # Buffers of topics with the fast path. Without an entry, each record is checked fully.
        self._direct: dict[str, RecordBuffer] = {}
        self._next_schema_look_ups: dict[str, float] = {}
        self._connections = Connections(config, on_fork=self._direct.clear)
        self._metadata = MetadataCache(self._connections, may_create=True)
        self._closing = threading.Lock()
        # Shared by all futures and the sender.
        self._condition = Outcomes(self._connections.helper)
        if self._interceptors:
            self._condition.will_call()
        self._transactions: Transactions | None = None
        if config.transactional_id:
            self._transactions = Transactions(config, self._connections, on_leaving=self._direct.clear)
        self._sender = Sender(config, self._connections, self._metadata, self._condition, self._transactions)
        self._memory = BufferMemory(config.buffer_memory, on_wait=self._sender.wake)
        maker = BatchMaker(config, self._partitioner, AdaptiveChoice(config, self._sender.queues))
        self._records = Accumulator(
            config,
            self._metadata,
            self._memory,
            self._condition,
            maker,
            self._sender,
            check_can_send=self._check_can_drain,
            on_refusal=self._note_refusal,
            may_block=self._may_block,
        )
        self._tables = TableSender(
            config,
            self._connections,
            self._memory,
            self._condition,
            maker,
            self._sender,
            self._interceptors,
            on_part_refused=self._note_refusal,
        )
        self._sender.start(self._records.drain_due, self._records.has_records)

    # --- records -------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | Mapping[str, bytes | None] | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendFuture[RecordMetadata]:
        """Send a record: bytes or text to an opaque topic (``None`` is a tombstone), a dict of columns to a typed
        one.

        Returns at once, unless ``buffer.memory`` is full. Without ``partition`` the ``partitioner.class`` decides. By
        default the key decides, and records without a key go to each partition in turn, about a batch at a time. The
        future has the record's place or its error. ``on_delivery(metadata, error)`` receives the same, in the order
        of each partition's records, in a thread of the producer. It must not block.

        Raises ``SchemaMismatchError`` naming the column, ``UnknownTopicOrPartitionError``, ``BufferExhaustedError``
        after ``max.block.ms``, ``ClientClosedError``; in transactions ``InvalidTxnStateError`` outside of one,
        ``AbortableTransactionError`` after a part of it has failed, ``ProducerFencedError``.
        """
        buffer = self._direct.get(topic)
        if buffer is not None and headers is None and timestamp_ms is None and partition is None:
            try:
                if key is None and on_delivery is None and type(value) is bytes and buffer.is_opaque:
                    return buffer.append_value(value)
                if buffer.is_opaque or type(value) is dict:
                    return buffer.append(key, value, (), None, -1, on_delivery)
            except SchemaMismatchError:
                pass  # below the topic is looked up again
        record = ProducerRecord(topic, value, key, as_headers(headers), timestamp_ms, partition)
        return self._append(*self._intercepted(record, on_delivery))

    def _intercepted(
        self, record: ProducerRecord, on_delivery: OnDelivery | None
    ) -> tuple[ProducerRecord, OnDelivery | None]:
        """Pass a record through the interceptors; returns it with the callback for its outcome."""
        self._check_can_send()
        if not self._interceptors:
            return record, on_delivery
        return self._interceptors.on_send(record), self._acknowledged(on_delivery)

    def _append(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> SendFuture[RecordMetadata]:
        self._check_can_send()
        if record.timestamp_ms is not None:
            check_timestamp(record.timestamp_ms)
        try:
            buffer = self._records.buffer(self._topic(record.topic))
            partition = self._place(record)
        except MillraceError as error:
            self._note_refused_send(error)
            raise
        if self._partitioner is None and not self._interceptors:
            self._direct[record.topic] = buffer
            if not self._may_send:  # the transaction ended, or the producer was closed, meanwhile
                self._direct.clear()
        append = partial(
            buffer.append, record.key, record.value, record.headers, record.timestamp_ms, partition, on_delivery
        )
        try:
            return append()
        except SchemaMismatchError:
            if not (self._may_block and self._has_new_schema(record.topic)):
                raise
        return append()

    def _has_new_schema(self, name: str) -> bool:
        """Look up a topic that a record does not fit, and return whether it has another schema now.

        After a failed look-up the next one follows at the earliest after ``retry.backoff.max.ms``, because each may
        wait for brokers that do not answer.
        """
        if time.monotonic() < self._next_schema_look_ups.get(name, 0.0):
            return False
        buffer = self._records.buffer(self._topic(name))
        schema_id = buffer.topic.schema_id
        try:
            buffer.use(self._look_up_again(name))
        except MillraceError:
            self._next_schema_look_ups[name] = time.monotonic() + self._config.retry_backoff_max_ms / 1000
        return buffer.topic.schema_id != schema_id

    def _acknowledged(self, on_delivery: OnDelivery | None) -> OnDelivery:
        def tell(metadata: RecordMetadata | None, error: MillraceError | None) -> None:
            self._interceptors.on_acknowledgement(metadata, error)
            if on_delivery is not None:
                on_delivery(metadata, error)

        return tell

    def _place(self, record: ProducerRecord) -> int:
        """Return the record's explicit partition or the partitioner's choice; -1 if the key or the producer decides."""
        if record.partition is not None:
            self._topic_with(record.topic, record.partition)
            return record.partition
        if self._partitioner is None:
            return -1
        topic = self._topic(record.topic)
        return check_choice(self._partitioner, topic, int(self._partitioner.partition(record, topic)))

    def send_batch(
        self, topic: str, records: Iterable[Any], *, partition: int | None = None
    ) -> SendFuture[list[RecordMetadata]]:
        """Send many records, faster than one by one. All are checked before the first is sent.

        In an opaque topic a record is a value (bytes, text or ``None``), a tuple of key and value, or a dict. The dict
        has some of ``value``, ``key``, ``headers``, ``timestamp_ms`` and ``partition``. In a typed topic a record is a
        dict of its columns. Both accept a ``ProducerRecord``. The future has the place of each record, in the given
        order, or the first error. Raises the errors of ``send``, with the record's number. If ``buffer.memory`` stays
        full, the earlier records of the list are sent nevertheless, but their transaction can only be aborted.
        """
        self._check_can_send()
        if self._interceptors:
            records = self._interceptors.on_send_table(topic, list(records))
        try:
            description = self._topic(topic)
            buffer = self._records.buffer(description)
            limit_bytes = self._records.limit_bytes(description)
            chunks = gather(
                description, records, self._condition, partition=partition, place=self._place, chunk_bytes=limit_bytes
            )
        except MillraceError as error:
            if isinstance(error, SchemaMismatchError):
                self._sender.look_up(topic)  # the schema may have evolved: the next call finds the present one
            self._note_refused_send(error)
            raise
        future = ManyFuture(chunks, self._condition)
        self._send_chunks(buffer, chunks)
        return future

    def _send_chunks(self, buffer: RecordBuffer, chunks: list[Chunk]) -> None:
        for number, chunk in enumerate(chunks):
            if self._interceptors:
                for row in range(chunk.num_rows):
                    chunk.add_callback(row, self._interceptors.on_acknowledgement)
            try:
                self._memory.acquire(chunk.reserved_bytes, self._config.max_block_ms / 1000)
                self._records.send_chunk(buffer, chunk)
            except BaseException as error:
                failure = part_error(error, f"a list to {buffer.name}")
                self._note_refusal(failure)
                for unsent in chunks[number:]:
                    unsent.refuse_rest(failure)
                if isinstance(error, BufferExhaustedError):
                    sent = "the producer sends the earlier records of the list"
                    raise BufferExhaustedError(f"{error.message} ({sent})") from None
                raise

    # --- tables --------------------------------------------------------------------------------------------------

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
        ``__partition``, ``__tombstone``. An opaque topic takes ``value`` and optionally ``key``, ``headers``,
        ``timestamp``, ``partition``.

        ``timestamps`` are one for all in ms, the name of a column, or an array; the default is the current time.
        ``partition`` is a number, the name of a column, or an array. By default the ``partitioner.class`` decides.
        Without it the keys decide. Rows without a key then go to each partition in turn, about a batch at a time. The
        future has the batches in the order in which they were built.

        All rows are checked before the first is sent, also their size. Blocks while ``buffer.memory`` is full. If the
        memory stays full, or a batch fails meanwhile, the earlier batches are sent nevertheless. In a transaction a
        table is sent as a whole or not at all, because after such an error the transaction can only be aborted.

        Raises ``SchemaMismatchError`` naming column and row, ``UnknownTopicOrPartitionError``,
        ``MessageTooLargeError``, ``BufferExhaustedError``, ``ClientClosedError``; in transactions the errors of
        ``send``.
        """
        self._check_can_send()
        if self._interceptors:
            table = self._interceptors.on_send_table(topic, table)
        try:
            return self._tables.send(self._fitted(topic, to_table(table), partition, timestamps))
        except MillraceError as error:
            self._note_refused_send(error)
            raise

    def _fitted(self, topic: str, rows: pa.Table, partition: Any, timestamps: Any) -> Fitted:
        description = self._topic(topic)
        if description.schema is not None and not set(rows.column_names) <= set(description.schema.names):
            # The schema may have evolved.
            description = self._look_up_again(topic)
        self._records.drain(topic)
        fit = partial(
            fit_table, table=rows, now_ms=time.time_ns() // 1_000_000, timestamps=timestamps, partition=partition
        )
        try:
            return fit(description)
        except UnknownTopicOrPartitionError:
            pass  # the partition may have been added
        except SchemaMismatchError:
            if self._metadata.known(topic) is not None:
                raise
        return fit(self._look_up_again(topic))

    # --- topics --------------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicDescription:
        """Describe a topic for a send. The last known description is enough, also while no broker answers, because
        the sender looks up the leaders.
        """
        self._connections.check_open()
        return self._metadata.last_known(name) or self._look_up(name)

    def _look_up(self, name: str) -> TopicDescription:
        if not self._config.max_block_ms:
            self._sender.look_up(name)
            raise RequestTimedOutError(
                f"topic {name} has no metadata yet, and max.block.ms=0 does not wait for it: the producer is "
                "fetching it, try again"
            )
        return self._metadata.topic(name, timeout_ms=self._config.max_block_ms)

    def _topic_with(self, name: str, partition: int) -> TopicDescription:
        """Describe a topic with a partition, fetched again if the partition is unknown, because it may have been
        added.
        """
        topic = self._topic(name)
        if not 0 <= partition < topic.num_partitions:
            topic = self._look_up_again(name)
            check_partition(topic, partition)
        return topic

    def _look_up_again(self, name: str) -> TopicDescription:
        return self._metadata.topic(name, fresh=True, timeout_ms=max(self._config.max_block_ms, 1))

    def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic as this producer knows it; raises ``UnknownTopicOrPartitionError``."""
        self._connections.check_open()
        return self._metadata.known(topic) or self._look_up(topic)

    def partitions_for(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return self.describe_topic(topic).num_partitions

    # --- state -----------------------------------------------------------------------------------------------------

    @property
    def is_transactional(self) -> bool:
        """True if the producer has a ``transactional.id``, so that all sends are transactional."""
        return self._transactions is not None

    def statistics(self) -> ProducerStatistics:
        """Return counters of this producer, and its current buffer."""
        self._connections.check_process()
        return self._sender.statistics(self._memory.used_bytes)

    @property
    def _may_send(self) -> bool:
        try:
            self._check_can_send()
        except MillraceError:
            return False
        return True

    def _check_can_send(self) -> None:
        self._connections.check_open()
        if self._transactions is not None:
            self._transactions.check_can_send()

    def _check_can_drain(self) -> None:
        if self._transactions is not None:
            self._transactions.check_can_drain()

    def _note_refusal(self, error: MillraceError) -> None:
        if self._transactions is not None:
            self._transactions.batch_failed(error)

    def _note_refused_send(self, error: MillraceError) -> None:
        if self._transactions is not None:
            self._transactions.send_refused(error)

    # --- the end ---------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send all records so far and wait until they are acknowledged or have failed; the futures hold failures.

        Their callbacks have been called at the return. Records that other threads send meanwhile are not waited for.
        Raises ``RequestTimedOutError`` after ``timeout`` seconds, ``UsageError`` in a callback, which would wait for
        itself.
        """
        self._connections.check_process()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._records.drain_all()
        remaining = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not self._sender.wait_until_sent(remaining):
            raise RequestTimedOutError(
                f"not all records were acknowledged within {timeout} s; the producer continues to send them"
            )

    def close(self, timeout: float | None = None) -> None:
        """Send the remaining records for at most ``timeout`` seconds, and close; later records fail. May be called
        twice.

        With 0 it does not wait. An open transaction is aborted, unless it is prepared. In a forked process it does
        nothing, because the records and the transaction belong to the other process. Raises ``UsageError`` in a
        callback.
        """
        if self._connections.is_forked:
            return
        if self._sender.is_in_callback:
            raise UsageError("a producer's callback cannot close the producer: close it elsewhere")
        with self._closing:
            if self._connections.is_closed:
                return
            deadline = None if timeout is None else time.monotonic() + timeout
            try:
                self._end_sending(timeout)
            except RequestTimedOutError:
                # The caller chose the timeout, and the futures show the unsent records.
                pass
            finally:
                self._connections.close()  # also ends the calls that the sender's thread waits for
                self._sender.stop(None if deadline is None else max(deadline - time.monotonic(), _STOP_S))
                self._direct.clear()
                self._records.close(ClientClosedError("the producer was closed before these records were sent"))
                self._interceptors.close()
                if self._partitioner is not None:
                    self._partitioner.close()

    def _end_sending(self, timeout: float | None) -> None:
        transactions = self._transactions
        if transactions is None or not transactions.state.is_open:
            self.flush(timeout)
            return
        try:
            self._abort(transactions, _ABORT_ON_CLOSE_S if timeout is None else timeout)
        except MillraceError as error:
            logger.warning(
                "the transaction of %s could not be aborted and stays open until transaction.timeout.ms: %s",
                self._config.transactional_id,
                error.message,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
