"""Sending records and tables to topics, in transactions or without."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
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
from millrace.clients.producing.batching import fit_table
from millrace.clients.producing.chunk import Headers, OnDelivery
from millrace.clients.producing.futures import Outcomes, SendFuture
from millrace.clients.producing.interceptors import Interceptors, ProducerInterceptor
from millrace.clients.producing.memory import BufferMemory
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
    UnknownTopicOrPartitionError,
    UsageError,
)
from millrace.schemas import to_table

logger = logging.getLogger(__name__)
_ABORT_ON_CLOSE_S: Final = 10.0
"""How long closing waits for an open transaction to be aborted, where it has no time-out of its own."""


class Producer(TransactionCalls):
    """Sends records one by one (``send``), many at once (``send_batch``) or as tables (``send_table``). Thread safe.

    ``config`` is ``bootstrap.servers`` or a mapping of ``ProducerConfig``'s options. Records of one thread to one
    partition keep their order; with ``enable.idempotence`` (the default) retries do not duplicate them. With
    ``transactional.id`` it sends in transactions only: ``init_transactions`` first, then ``with transaction():``. Close
    it, or use it in ``with``: what has not been sent is lost when the process ends.
    """

    _may_block: ClassVar[bool] = True
    """Whether the thread that sends may be kept waiting; asyncio's may not."""

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
        self._connections = Connections(config)
        self._metadata = MetadataCache(self._connections, may_create=True)
        self._closing = threading.Lock()
        # Topics whose records take the short way: none of them wherever a record needs to be looked at more closely.
        self._direct: dict[str, RecordBuffer] = {}
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
            may_block=self._may_block,
        )
        self._tables = TableSender(
            config, self._connections, self._memory, self._condition, maker, self._sender, self._interceptors
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
        """Send a record: bytes or text to an opaque topic (``None`` is a tombstone), a dict of columns to a typed one.

        Returns at once, unless ``buffer.memory`` is full. Without ``partition`` the ``partitioner.class`` decides, by
        default the key, and without a key about a batch goes to each partition in turn. The future has the record's
        place or its error; ``on_delivery(metadata, error)`` is told the same, in the order of each partition's records,
        in a thread of the producer's: it must not block.

        Raises ``SchemaMismatchError`` naming the column, ``UnknownTopicOrPartitionError``, ``BufferExhaustedError``
        after ``max.block.ms``, ``ClientClosedError``; in transactions ``InvalidTxnStateError`` outside of one,
        ``AbortableTransactionError`` once a part of it has failed, ``ProducerFencedError``.
        """
        buffer = self._direct.get(topic)
        if buffer is not None and headers is None and timestamp_ms is None and partition is None:
            if key is None and on_delivery is None and type(value) is bytes and buffer.is_opaque:
                return buffer.append_value(value)
            if buffer.is_opaque or (type(value) is dict and buffer.has_columns(value)):
                return buffer.append(key, value, (), None, -1, on_delivery)
        record = ProducerRecord(topic, value, key, as_headers(headers), timestamp_ms, partition)
        return self._append(*self._intercepted(record, on_delivery))

    def _intercepted(
        self, record: ProducerRecord, on_delivery: OnDelivery | None
    ) -> tuple[ProducerRecord, OnDelivery | None]:
        """What interceptors make of a record, and what is told its outcome then."""
        self._check_can_send()
        if not self._interceptors:
            return record, on_delivery
        return self._interceptors.on_send(record), self._acknowledged(on_delivery)

    def _append(self, record: ProducerRecord, on_delivery: OnDelivery | None) -> SendFuture[RecordMetadata]:
        self._check_can_send()
        if record.timestamp_ms is not None:
            check_timestamp(record.timestamp_ms)
        topic = self._topic(record.topic)
        buffer = self._records.buffer(topic)
        partition = self._place(record)
        if not buffer.is_opaque and isinstance(record.value, Mapping) and not buffer.has_columns(record.value):
            buffer.use(self._metadata.topic(topic.name, fresh=True))  # columns that were added since, perhaps
        if self._partitioner is None and not self._interceptors:
            self._direct[topic.name] = buffer
            if not self._may_send:  # the transaction ended, or the producer was closed, meanwhile
                self._direct.clear()
        return buffer.append(record.key, record.value, record.headers, record.timestamp_ms, partition, on_delivery)

    def _acknowledged(self, on_delivery: OnDelivery | None) -> OnDelivery:
        def tell(metadata: RecordMetadata | None, error: MillraceError | None) -> None:
            self._interceptors.on_acknowledgement(metadata, error)
            if on_delivery is not None:
                on_delivery(metadata, error)

        return tell

    def _place(self, record: ProducerRecord) -> int:
        """The partition that a record names, or that the partitioner chooses; -1 where the key or the producer does."""
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

        To an opaque topic each is a value (bytes, text or ``None``), a tuple of key and value, or a dict with some of
        ``value``, ``key``, ``headers``, ``timestamp_ms`` and ``partition``; to a typed topic a dict of its columns; to
        both a ``ProducerRecord``. The future has the place of each record, in the order given, or the first error.

        Raises what ``send`` raises, naming the record's number.
        """
        self._check_can_send()
        if self._interceptors:
            records = self._interceptors.on_send_table(topic, list(records))
        description = self._topic(topic)
        buffer = self._records.buffer(description)
        limit_bytes = self._records.limit_bytes(description)
        chunks = gather(
            description, records, self._condition, partition=partition, place=self._place, chunk_bytes=limit_bytes
        )
        future = ManyFuture(chunks, self._condition)
        for number, chunk in enumerate(chunks):
            if self._interceptors:
                for row in range(chunk.num_rows):
                    chunk.add_callback(row, self._interceptors.on_acknowledgement)
            try:
                self._memory.acquire(chunk.reserved_bytes, self._config.max_block_ms / 1000)
            except BufferExhaustedError as error:
                for unsent in chunks[number:]:
                    unsent.refuse_rest(error)
                raise BufferExhaustedError(f"{error.message} (earlier records of the list are on their way)") from None
            self._records.send_chunk(buffer, chunk)
        return future

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
        ``__partition``, ``__tombstone`` beside them. An opaque topic takes ``value`` and, if wanted, ``key``,
        ``headers``, ``timestamp``, ``partition``.

        ``timestamps`` are one for all in ms, the name of a column, or an array; otherwise the present time.
        ``partition`` is a number, the name of a column, or an array; otherwise the ``partitioner.class`` decides, by
        default the keys, and of rows without a key about a batch goes to each partition in turn. All rows are checked
        before the first is sent. Blocks while ``buffer.memory`` is full. The future has the batches in the order in
        which they were made.

        Raises ``SchemaMismatchError`` naming column and row, ``UnknownTopicOrPartitionError``,
        ``MessageTooLargeError``, ``BufferExhaustedError``, ``ClientClosedError``; in transactions what ``send`` raises.
        """
        self._check_can_send()
        if self._interceptors:
            table = self._interceptors.on_send_table(topic, table)
        rows = to_table(table)
        description = self._topic_for(topic, rows)
        self._records.drain(topic)
        now_ms = time.time_ns() // 1_000_000
        try:
            fitted = fit_table(description, rows, now_ms=now_ms, timestamps=timestamps, partition=partition)
        except UnknownTopicOrPartitionError:  # a partition that was added since, perhaps
            description = self._metadata.topic(topic, fresh=True)
            fitted = fit_table(description, rows, now_ms=now_ms, timestamps=timestamps, partition=partition)
        return self._tables.send(fitted)

    def _topic_for(self, name: str, table: pa.Table) -> TopicDescription:
        """Describe a topic, anew when the table has columns that its known schema lacks: it may have been evolved."""
        topic = self._topic(name)
        if topic.schema is not None and not set(table.column_names) <= set(topic.schema.names):
            topic = self._metadata.topic(name, fresh=True)
        return topic

    # --- topics --------------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicDescription:
        self._connections.check_open()
        known = self._metadata.known(name)
        if known is not None:
            return known
        if not self._config.max_block_ms:
            self._sender.look_up(name)
            raise RequestTimedOutError(
                f"topic {name} is not known yet, and max.block.ms=0 forbids waiting: it is being asked for, try again"
            )
        return self._metadata.topic(name, timeout_ms=self._config.max_block_ms)

    def _topic_with(self, name: str, partition: int) -> TopicDescription:
        """Describe a topic that has a partition, anew when it does not: it may have been added since."""
        topic = self._topic(name)
        if not 0 <= partition < topic.num_partitions:
            topic = self._metadata.topic(name, fresh=True, timeout_ms=max(self._config.max_block_ms, 1))
            check_partition(topic, partition)
        return topic

    def describe_topic(self, topic: str) -> TopicDescription:
        """Describe a topic as this producer knows it; raises ``UnknownTopicOrPartitionError``."""
        return self._topic(topic)

    def partitions_for(self, topic: str) -> int:
        """How many partitions a topic has."""
        return self._topic(topic).num_partitions

    # --- state -----------------------------------------------------------------------------------------------------

    @property
    def is_transactional(self) -> bool:
        """Whether it has a ``transactional.id``, and so sends in transactions only."""
        return self._transactions is not None

    def statistics(self) -> ProducerStatistics:
        """What this producer has done so far, and what it holds now."""
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

    # --- the end ---------------------------------------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Send everything and wait until it is acknowledged or has failed; failures are in the futures.

        Callbacks have been called then. Raises ``RequestTimedOutError`` when it takes longer than ``timeout`` seconds,
        ``UsageError`` in a callback, which would wait for itself.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._records.drain_all()
        remaining = None if deadline is None else max(deadline - time.monotonic(), 0)
        if not self._sender.wait_until_sent(remaining):
            raise RequestTimedOutError(
                f"not all records were acknowledged within {timeout} s; they are still being sent"
            )

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, at most for ``timeout`` seconds, and end; what is left then fails. May be called twice.

        With 0 nothing is waited for. A transaction that is open is aborted, unless it is prepared. Raises
        ``UsageError`` in a callback.
        """
        if self._sender.is_in_callback:
            raise UsageError("a producer's callback cannot close the producer: close it elsewhere")
        with self._closing:
            if self._connections.is_closed:
                return
            try:
                self._end_sending(timeout)
            except RequestTimedOutError:
                # Asked for by the caller, who learns from the futures what was not sent.
                pass
            finally:
                self._sender.stop()
                self._connections.close()
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
                "the transaction of %s is left to its time-out: %s", self._config.transactional_id, error.message
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
