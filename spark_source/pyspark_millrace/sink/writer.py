"""Spark's data source writers for topics.

Spark creates a writer on the driver for each write or micro-batch and pickles it to the tasks. So each execution has a
name (``attempt``), which is new when Spark restarts it. Every attempt of a task appends in its own transaction and
prepares it. The driver receives the transactions of the successful attempts and commits them together. It has all
others of the execution aborted.

Invariants: a write is committed once, however often it is repeated. Before the commit nothing of it is visible. Records
of attempts that were not committed are never visible.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from millrace.errors import InvalidTxnStateError, MillraceError, ProducerFencedError, UsageError
from pyspark_millrace.sink.identity import WriteIdentity, identity_of_batch, identity_of_stream
from pyspark_millrace.worker_garbage import settle_worker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from millrace.clients import PreparedTransaction, Producer
    from pyspark_millrace.sink.options import SinkOptions

_log = logging.getLogger(__name__)

_Identify = Callable[["SinkOptions", str, Callable[[str], "str | None"]], WriteIdentity]


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed here
    """Commit message of a task. Without ``identity`` there is nothing to commit."""

    rows: int
    identity: WriteIdentity | None = None
    prepared: PreparedTransaction | None = None


class _Writer:
    """Common part of the batch and stream writers."""

    _identify: _Identify

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._attempt = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of a task. After an error its transaction is aborted and the error raised."""
        first = next((batch for batch in iterator if batch.num_rows), None)
        if first is None:
            return TaskMessage(0)
        batches = chain([first], iterator)
        if self._options.is_exactly_once:
            message = self._send_once(batches, self._identity())
        else:
            message = self._send_at_least_once(batches)
        settle_worker()
        return message

    def _identity(self) -> WriteIdentity:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "a task that began has one"
        return type(self)._identify(self._options, self._attempt, context.getLocalProperty)

    def _send_at_least_once(self, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
        from pyspark_millrace.sink.clients import PRODUCERS
        from pyspark_millrace.sink.sending import TaskSender

        with PRODUCERS.lend(self._options, None) as producer:
            sender = TaskSender(producer, self._options, self._schema)
            sender.send(batches)
            sender.wait()
            return TaskMessage(sender.rows)

    def _send_once(self, batches: Iterator[pa.RecordBatch], identity: WriteIdentity) -> TaskMessage:
        from pyspark_millrace.sink.clients import PRODUCERS
        from pyspark_millrace.sink.sending import TaskSender

        with PRODUCERS.lend(self._options, identity.external_id) as producer:
            if _was_committed(producer, identity):
                _log.info("%s was committed before, and is not written again", identity)
                return TaskMessage(0, identity)
            producer.begin_transaction()
            try:
                sender = TaskSender(producer, self._options, self._schema)
                sender.send(batches)
                return TaskMessage(sender.rows, identity, producer.prepared_transaction())
            except BaseException:
                _abort(producer, identity)
                raise

    def _commit(self, messages: Sequence[TaskMessage | None]) -> None:
        """Commit the transactions of the successful tasks."""
        from pyspark_millrace.sink.clients import admin_of

        told = [message for message in messages if message is not None and message.identity is not None]
        prepared = [message.prepared for message in told if message.prepared is not None]
        if not prepared:
            return  # no rows, or already written
        identity = told[0].identity
        assert identity is not None
        try:
            outcome = admin_of(self._options).commit_transactions(
                identity.external_id, identity.epoch, committed=prepared, attempt=identity.attempt
            )
        except InvalidTxnStateError as error:
            raise InvalidTxnStateError(
                f"{identity} was not committed, because the transaction of a task was no longer open. If the write "
                "took longer than kafka.transaction.timeout.ms, raise that setting (and the broker's "
                "transaction.max.timeout.ms), or write fewer rows at a time, for example with maxOffsetsPerTrigger "
                f"({error.message})"
            ) from None
        if outcome.was_committed_before:
            _log.info("%s was committed before, and is not written again", identity)

    def _abort(self, messages: Sequence[TaskMessage | None]) -> None:
        """Abort the open transactions of a failed write, if a task has sent its identity."""
        from pyspark_millrace.sink.clients import admin_of

        identity = next((message.identity for message in messages if message is not None and message.identity), None)
        if identity is None:
            return
        try:
            admin_of(self._options).abort_commit(identity.external_id, identity.epoch, attempt=identity.attempt)
        except ProducerFencedError as error:
            _log.info("%s: %s", identity, error.message)
        except MillraceError as error:
            # Spark is about to raise the cause. The next attempt or the timeout aborts open transactions.
            _log.warning("%s could not be aborted: %s", identity, error.message)


class TopicBatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is not typed here
    """Writer of a batch DataFrame (Spark's ``DataSourceArrowWriter``), in one transaction."""

    _identify = staticmethod(identity_of_batch)

    def commit(self, messages: list[TaskMessage | None]) -> None:
        """Commit on the driver after all tasks. After an error of the coordinator nothing is visible."""
        self._commit(messages)

    def abort(self, messages: list[TaskMessage | None]) -> None:
        """Abort on the driver after a failed job."""
        self._abort(messages)


class TopicStreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is not typed here
    """Writer of micro-batches (Spark's ``DataSourceStreamArrowWriter``), each in one transaction and once."""

    _identify = staticmethod(identity_of_stream)

    def commit(self, messages: list[TaskMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Commit on the driver after all tasks. After an error of the coordinator nothing is visible."""
        self._commit(messages)

    def abort(self, messages: list[TaskMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Abort on the driver after a failed micro-batch."""
        self._abort(messages)


def _was_committed(producer: Producer, identity: WriteIdentity) -> bool:
    """Join the common commit; returns whether the write was already committed.

    Raises ``UsageError`` if another query owns the name, and ``ProducerFencedError`` for an outdated execution.
    """
    from millrace.errors import CommitOwnerError

    try:
        outcome = producer.join_commit(
            identity.epoch, attempt=identity.attempt, owner=identity.owner, retention_ms=identity.retention_ms
        )
    except CommitOwnerError as error:
        raise UsageError(
            f"txnAppId={identity.external_id!r} belongs to another query or series of writes, so this write would be "
            "taken for a repeated one and skipped. Give a txnAppId that is not in use (in foreachBatch one for each "
            f"topic). A stream needs none: it gets a new one with each checkpoint ({error.message})"
        ) from None
    return outcome.was_committed_before


def _abort(producer: Producer, identity: WriteIdentity) -> None:
    """Abort without hiding the original error."""
    try:
        producer.abort_transaction()
    except MillraceError as error:
        _log.warning(
            "a transaction of %s could not be aborted; the driver or the transaction timeout aborts it: %s",
            identity,
            error.message,
        )


# --- before anything is written ---------------------------------------------------------------------------------

_CHECKED_MAX: Final = 32


def check_write(options: SinkOptions, schema: StructType) -> None:
    """Check columns, their types and the topic of the option, before there are rows.

    Raises ``UsageError``, ``SchemaMismatchError`` with the column and both types, and ``UnknownTopicOrPartitionError``.
    """
    from pyspark_millrace.sink.columns import topic_column

    topic_column(schema, has_option=options.topic is not None)
    if options.topic is not None:
        # Spark creates a writer for each micro-batch, and one request to the broker is enough.
        _check_topic(options, schema.json())


@lru_cache(maxsize=_CHECKED_MAX)
def _check_topic(options: SinkOptions, schema_json: str) -> None:
    import json

    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from millrace.clients.producing.batching import fit_table
    from pyspark_millrace.sink.clients import describe_topic
    from pyspark_millrace.sink.columns import route_to

    schema = StructType.fromJson(json.loads(schema_json))
    assert options.topic is not None
    topic = describe_topic(options, options.topic)
    route = route_to(topic.name, topic.schema, schema, topic_from=None, include_headers=options.include_headers)
    fit_table(topic, route.apply(to_arrow_schema(schema, timezone="UTC").empty_table()), now_ms=0)
