"""Consumer of topics, alone or in a group.

Polls return records or Arrow tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, cast

import pyarrow as pa

from millrace.clients.consuming.assignment import Assignment
from millrace.clients.consuming.connections import ConsumerConnections
from millrace.clients.consuming.fetcher import Fetcher
from millrace.clients.consuming.group import ConsumerGroup
from millrace.clients.consuming.interceptors import ConsumerInterceptors
from millrace.clients.consuming.polling import Poller
from millrace.clients.consuming.records import ConsumerRecords
from millrace.clients.loading import load_objects
from millrace.clients.membership.commits import OnCommit
from millrace.clients.membership.listener import RebalanceListener
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    ConsumerStatistics,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from millrace.clients.offsets import list_offsets
from millrace.clients.schema_cache import SchemaCache
from millrace.clients.signal import Signal
from millrace.clients.subscription import Subscription
from millrace.clients.tables import METADATA_COLUMNS, TableShape, batch_to_records, batch_to_table
from millrace.config.client import ConsumerConfig
from millrace.errors import ClientClosedError, UnknownTopicOrPartitionError, UsageError, WakeupError

_OFFSET_MAX: Final = 2**63 - 1
_ROWS_MAX: Final = _OFFSET_MAX
_POLL_BYTES_MAX: Final = 256 * 2**20
"""Maximum bytes of fetched batches in one table of ``poll_table``."""
Partitions = Iterable[TopicPartition | tuple[str, int]]
Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]
P = ParamSpec("P")
R = TypeVar("R")


def _in_use(
    method: Callable[Concatenate[Consumer, P], R],
) -> Callable[Concatenate[Consumer, P], R]:
    """Guard a method against concurrent use and use after ``close``."""

    @wraps(method)
    def guarded(self: Consumer, *args: P.args, **kwargs: P.kwargs) -> R:
        self._signal.enter()
        try:
            if self._is_closed:
                raise ClientClosedError("the consumer is closed: make a new one")
            return method(self, *args, **kwargs)
        finally:
            self._signal.leave()

    return cast("Callable[Concatenate[Consumer, P], R]", guarded)


def _place_of(partition: TopicPartition | tuple[str, int], given: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """Return a given offset with its metadata. Raises ``UsageError`` for a value that no offset can have."""
    place = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(offset=given)
    if not isinstance(place.offset, int) or not 0 <= place.offset <= _OFFSET_MAX:
        raise UsageError(
            f"offset {place.offset!r} of {TopicPartition(*partition)}: offsets start at 0 and are whole numbers up to "
            f"{_OFFSET_MAX}; seek_to_beginning and seek_to_end find the ends of the log"
        )
    return place


class Consumer:
    """Consumer of topics (Kafka's ``KafkaConsumer``). One thread at a time; only ``wakeup`` is thread safe.

    ``config`` is ``bootstrap.servers`` or a mapping of ``ConsumerConfig``'s options. Partitions come from the group
    (``subscribe`` with ``group.id``) or from ``assign``. Reading starts at the offset of ``seek``, else at the
    group's committed offset, else at the offset of ``auto.offset.reset``.

    Every method raises ``ConcurrentUseError`` while another thread uses the consumer, and ``ClientClosedError`` after
    ``close``. A method that waits raises ``WakeupError``. In a process that is forked from the consumer's own, every
    method but ``close`` raises ``UsageError``.
    """

    def __init__(self, config: str | Mapping[str, Any]) -> None:
        self._config = ConsumerConfig.of(config)
        self._signal = Signal()
        self._connections = ConsumerConnections(self._config, self._signal)
        self._metadata = MetadataCache(self._connections)
        schemas = SchemaCache(self._connections)
        self._assignment = Assignment(self._config, schemas)
        self._fetcher = Fetcher(self._config, self._connections, self._metadata, self._signal)
        self._interceptors = ConsumerInterceptors(
            load_objects("interceptor.classes", self._config.interceptor_classes),
            self._config.model_dump(by_alias=True, exclude={"interceptor_classes"}),
        )
        self._group = ConsumerGroup(self._config, self._connections, self._assignment, self._signal, self._interceptors)
        self._poller = Poller(
            self._config, self._connections, self._metadata, self._assignment, self._fetcher, self._group, self._signal
        )
        self._polls = self._records = 0
        self._is_closed = False

    # --- subscription and assignment ------------------------------------------------------------------------------

    @_in_use
    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, for ``assign``; raises ``UnknownTopicOrPartitionError``."""
        return [TopicPartition(topic, number) for number in range(self._metadata.topic(topic).num_partitions)]

    @_in_use
    def assign(self, partitions: Partitions) -> None:
        """Assign exactly these partitions; those that were assigned already keep their positions.

        Raises ``UnknownTopicOrPartitionError``, ``UsageError`` while the consumer is subscribed to topics.
        """
        if self._group.subscription is not None:
            raise UsageError("the consumer is subscribed to topics: unsubscribe before you assign partitions by hand")
        wanted = [TopicPartition(*partition) for partition in partitions]
        for partition in wanted:
            self._metadata.topic_with(partition)
        if self._group.commits_automatically and len(self._assignment):
            self._group.commit_now(self._assignment.consumed(), self._api_timeout_s)
        self._assignment.replace(wanted)

    @_in_use
    def subscribe(
        self, topics: str | Iterable[str] | re.Pattern[str], listener: RebalanceListener | None = None
    ) -> None:
        """Subscribe to topics by name, or by a pattern that matches whole names.

        Later polls join the group and get its assignment. New partitions, and new topics that match, are added within
        ``metadata.max.age.ms``. Without topics this is ``unsubscribe``. Raises ``InvalidGroupIdError`` without a
        ``group.id``, ``UsageError`` if partitions were assigned manually.
        """
        if self._group.subscription is None and len(self._assignment):
            raise UsageError("partitions were assigned by hand: unsubscribe before you subscribe to topics")
        subscription = Subscription.of(topics, with_internal=not self._config.exclude_internal_topics)
        if subscription.pattern is None and not subscription.names:
            self._group.unsubscribe("the consumer unsubscribed", self._api_timeout_s)
        else:
            self._group.subscribe(subscription, listener)

    @_in_use
    def unsubscribe(self) -> None:
        """Leave the group, or drop the manual assignment, so that nothing is read."""
        self._group.unsubscribe("the consumer unsubscribed", self._api_timeout_s)

    @_in_use
    def subscription(self) -> frozenset[str]:
        """Return the subscribed names; the topics of a pattern appear in ``assignment``."""
        subscription = self._group.subscription
        return frozenset() if subscription is None else subscription.names

    @_in_use
    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions."""
        return self._assignment.partitions()

    @_in_use
    def rejoin(self, reason: str = "the application asked for it") -> None:
        """Request a rebalance at the next poll (Kafka's ``enforceRebalance``)."""
        self._group.rejoin(reason)

    @_in_use
    def pause(self, partitions: Partitions) -> None:
        """Return no records of these partitions until ``resume``. A rebalance that revokes them resets this."""
        for partition in list(partitions):
            self._assignment.reader(partition).state.is_paused = True

    @_in_use
    def resume(self, partitions: Partitions) -> None:
        """Return records of these partitions again."""
        for partition in list(partitions):
            self._assignment.reader(partition).state.is_paused = False

    @_in_use
    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions."""
        return [state.partition for state in self._assignment.states() if state.is_paused]

    # --- positions ------------------------------------------------------------------------------------------------

    @_in_use
    def seek(self, partition: TopicPartition | tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Continue at ``offset``, which the next fetch checks; with a leader epoch, also for truncation."""
        place = _place_of(partition, offset)
        self._assignment.reader(partition).move_to(place.offset, place.leader_epoch)

    @_in_use
    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue at the first remaining record, in these partitions or in all."""
        self._reset(partitions, "earliest")

    @_in_use
    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue with records after this call (exactly: after the next poll or ``position``)."""
        self._reset(partitions, "latest")

    @_in_use
    def seek_to_time(self, when: int | datetime, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue at the first record at or after a time (ms, or a datetime with zone); without one, at the end."""
        wanted = [TopicPartition(*partition) for partition in partitions] or self._assignment.partitions()
        for partition, place in self.offsets_for_times(dict.fromkeys(wanted, when)).items():
            if place is None:
                self._reset([partition], "latest")
            else:
                self.seek(partition, place.offset)

    def _reset(self, partitions: Sequence[TopicPartition | tuple[str, int]], where: str) -> None:
        for partition in partitions or self._assignment.partitions():
            self._assignment.reader(partition).reset(where)

    @_in_use
    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Return the offset of the next record that a poll will return."""
        state = self._assignment.reader(partition).state
        self._poller.find_position(state)
        assert state.seen_to is not None
        return state.seen_to

    @_in_use
    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the first remaining offset of each partition."""
        return self._offsets(partitions, "earliest")

    @_in_use
    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition that this consumer may read."""
        return self._offsets(partitions, "latest")

    def _offsets(self, partitions: Partitions, where: str) -> dict[TopicPartition, int]:
        wanted = {TopicPartition(*partition): where for partition in partitions}
        found = list_offsets(self._connections, self._metadata, wanted, isolation_level=self._config.isolation_level)
        return {partition: place.offset for partition, place in found.items()}

    @_in_use
    def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Find the first record of each partition at or after a time (ms, or a datetime with zone), ``None`` without
        one. Raises ``UsageError`` for a negative number, which the broker would take for a special value.
        """
        for when in times.values():
            if isinstance(when, int) and when < 0:
                raise UsageError(f"time {when} ms is negative: give a time since 1970, or use seek_to_end")
        found = list_offsets(self._connections, self._metadata, times, isolation_level=self._config.isolation_level)
        return {partition: place if place.offset >= 0 else None for partition, place in found.items()}

    @_in_use
    def high_watermark(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Return the partition's high watermark at the last fetch; -1 before the first."""
        return self._assignment.reader(partition).state.high_watermark

    @_in_use
    def current_lag(self, partition: TopicPartition | tuple[str, int]) -> int | None:
        """Return the number of readable records not yet returned, as of the last fetch; ``None`` if unknown."""
        state = self._assignment.reader(partition).state
        end = state.readable_end(self._config.isolation_level)
        return None if end < 0 or state.seen_to is None else max(end - state.seen_to, 0)

    # --- committing -----------------------------------------------------------------------------------------------

    @_in_use
    def commit(self, offsets: Offsets | None = None, timeout_ms: int | None = None) -> None:
        """Commit offsets (of the next record to read), by default of all returned records, and wait.

        Retries until it succeeds or ``timeout_ms`` (``default.api.timeout.ms``) has passed.

        Errors:

        - ``CommitFailedError`` if the group has assigned the partitions to others;
        - ``RebalanceInProgressError`` while the group is about to do so: poll, then commit again;
        - ``InvalidGroupIdError`` without a ``group.id``;
        - ``FencedInstanceIdError``, ``OffsetMetadataTooLargeError``, ``UnknownTopicOrPartitionError``, ``UsageError``.
        """
        timeout_s = self._api_timeout_s if timeout_ms is None else timeout_ms / 1000
        self._group.commit(self._to_commit(offsets), timeout_s)

    @_in_use
    def commit_async(self, offsets: Offsets | None = None, on_commit: OnCommit | None = None) -> None:
        """Commit without waiting. A later ``poll``, ``commit`` or ``close`` calls ``on_commit(offsets, error)``.

        An error is not retried; without ``on_commit`` it is logged. Commits are made in the order of the calls.
        Raises the errors of ``commit`` that occur before anything is sent.
        """
        self._group.commit_async(self._to_commit(offsets), on_commit)

    def _to_commit(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._assignment.consumed()
        return {TopicPartition(*key): _place_of(key, given) for key, given in offsets.items()}

    @_in_use
    def committed(self, partitions: Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets of these partitions; ``None`` without a commit."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        found = self._group.committed(wanted)
        return {partition: found.get(partition) for partition in wanted}

    @_in_use
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group metadata for ``Producer.send_offsets_to_transaction``, which fences former members.

        Raises ``InvalidGroupIdError`` without a ``group.id``.
        """
        return self._group.metadata

    @property
    def _api_timeout_s(self) -> float:
        return self._config.default_api_timeout_ms / 1000

    # --- reading --------------------------------------------------------------------------------------------------

    @_in_use
    def poll(self, timeout_ms: int = 0, *, max_records: int | None = None) -> ConsumerRecords:
        """Return the next records, at most ``max_records`` (``max.poll.records``), waiting for the first of them.

        The result is empty if no records come within ``timeout_ms``. Members of a group must poll at least every
        ``max.poll.interval.ms``; polls process rebalances and call listeners. While no broker is reachable, the poll
        retries and raises ``BrokerUnavailableError`` after ``default.api.timeout.ms``. An error behind some records is
        raised by the next poll. ``CorruptBatchError`` is raised until you seek past the batch, and
        ``UnreadableValueError`` until you seek past the record at its ``offset``. Raises
        ``OffsetOutOfRangeError`` (``LogTruncationError`` if the log lost records that were read) with
        ``auto.offset.reset=none``, ``UnknownTopicOrPartitionError``, ``CorruptBatchError``, ``WakeupError``,
        ``FencedInstanceIdError`` and other fatal errors of the group.
        """
        by_partition: dict[TopicPartition, list[ConsumerRecord]] = {}
        left = self._config.max_poll_records if max_records is None else max_records
        with self._poller.ready(timeout_ms) as ready:
            with self._postponing_errors(by_partition):
                for reader in ready:
                    reader.read_columns(None)
                    keys = self._metadata.topic(reader.partition.topic).key_columns
                    convert = partial(batch_to_records, reader.partition, key_columns=keys)
                    while left > 0 and (read := reader.next(left, convert)) is not None:
                        left -= read[0].num_rows
                        by_partition.setdefault(reader.partition, []).extend(read[1])
            self._handed_out(sum(map(len, by_partition.values())), timeout_ms)
            return self._interceptors.on_consume(ConsumerRecords(by_partition))

    @_in_use
    def poll_table(
        self,
        timeout_ms: int = 0,
        *,
        max_records: int | None = None,
        columns: Sequence[str] | None = None,
        metadata: Sequence[str] | bool = False,
    ) -> pa.Table:
        """Return the next records as a table, waiting for the first of them; without rows after the timeout.

        The table holds all fetched records, or at most ``max_records``. Its columns are those of the topic's newest
        schema (``key`` and ``value`` of an opaque topic), or only those in ``columns``. The columns of ``metadata``
        follow. They are ``__topic``, ``__partition``, ``__offset``, ``__timestamp``, ``__headers`` and ``__tombstone``.
        ``True`` stands for the first four. Batches of older versions have nulls in newer columns. A member that has no
        partitions yet gets a table of the topics it is subscribed to by name, or one without columns.

        Raises the errors of ``poll``, and ``UsageError`` if the topics have different schemas.
        """
        beside = METADATA_COLUMNS[:4] if metadata is True else metadata or ()
        if len(self._assignment):
            TableShape.of(self._topics(), columns, beside)  # report wrong arguments before waiting
        with self._poller.ready(timeout_ms) as ready:
            topics = self._topics()
            if not topics:
                return pa.table({})
            shape = TableShape.of(topics, columns, beside)
            batches: list[pa.RecordBatch] = []
            left = _ROWS_MAX if max_records is None else max_records
            left_bytes = _POLL_BYTES_MAX
            with self._postponing_errors(batches):
                for reader in ready:
                    reader.read_columns(shape.columns_to_read)
                    convert = partial(batch_to_table, shape, reader.partition)
                    while left > 0 and left_bytes > 0 and (read := reader.next(left, convert)) is not None:
                        left -= read[0].num_rows
                        left_bytes -= read[0].header.size_bytes
                        batches.append(read[1])
            self._handed_out(sum(batch.num_rows for batch in batches), timeout_ms)
            return pa.Table.from_batches(batches, schema=shape.schema)

    @contextmanager
    def _postponing_errors(self, collected: Collection[object]) -> Iterator[None]:
        """Leave an error to the next poll if this one has collected records, which would be lost with the error.

        The next poll reads from the same position, and meets the error again.
        """
        try:
            yield
        except Exception as error:
            if not collected:
                raise
            if isinstance(error, WakeupError):
                self._signal.wakeup()

    def _handed_out(self, records: int, timeout_ms: int) -> None:
        """Count returned records, and fetch the next ones."""
        self._polls += 1
        self._records += records
        self._fetcher.send(self._assignment.states(), timeout_ms)

    def _topics(self) -> list[Any]:
        names = dict.fromkeys(partition.topic for partition in self._assignment.partitions())
        subscription = self._group.subscription
        if names or subscription is None:
            return [self._metadata.topic(name) for name in names]
        topics = []
        for name in sorted(subscription.names):
            try:
                topics.append(self._metadata.topic(name))
            except UnknownTopicOrPartitionError:
                continue  # the topic may be created later
        return topics

    @_in_use
    def statistics(self) -> ConsumerStatistics:
        """Return counters of the consumer, and its waiting data."""
        fetches, fetched_bytes, mapped_bytes = self._fetcher.counts
        return ConsumerStatistics(
            polls=self._polls,
            records=self._records,
            fetches=fetches,
            fetched_bytes=fetched_bytes,
            mapped_bytes=mapped_bytes,
            waiting_bytes=sum(state.held_bytes for state in self._assignment.states()),
            asked_bytes=self._fetcher.asked_bytes,
            assigned_partitions=len(self._assignment),
            rebalances=self._group.rebalances,
        )

    # --- life -----------------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End the wait of a ``poll`` (or of any other call) with ``WakeupError``, now or next time. Thread safe."""
        self._signal.wakeup()

    def forget_wakeup(self) -> None:
        """Cancel a ``wakeup`` that has not taken effect. Thread safe."""
        self._signal.forget_wakeup()

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Iterate over records without end. Commits, and polls after the loop, go on after the loop's last record."""
        while True:
            yield from self._assignment.passed_on(self.poll(self._config.fetch_max_wait_ms))

    @property
    def is_forked(self) -> bool:
        """True if this process was forked from the consumer's own, so that the consumer cannot be used."""
        return self._connections.is_forked

    def close(self, timeout_ms: int = 30_000) -> None:
        """Commit (with auto commit), leave the group, and close the connections. May be called twice.

        Waits at most ``timeout_ms`` for brokers. Raises the listener's exceptions after everything is closed. In a
        forked process it does nothing, because the membership belongs to the other process.
        """
        if self.is_forked:
            return
        with self._signal.in_use():
            if self._is_closed:
                return
            self._signal.ignore_wakeups()
            try:
                self._group.close(timeout_ms / 1000)
            finally:
                self._is_closed = True
                self._connections.close()
                self._interceptors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
