"""Spark's micro-batch reader for topics.

One instance lives in a process beside the driver as long as the query runs. Spark asks it for the end and the tasks of
each micro-batch. Another instance is pickled to the tasks and only reads. The topics are looked up while Spark does
other work, such as the start of the next source's planning process.

Invariants: the state of an instance (``_client``, ``_initial``, ``_newest``, ``_target``) only saves calls, or decides
when a batch is due (``_last_batch_s``). The offsets, which Spark logs before it reads, determine the records of a
batch. A planned range gives the same records when it is read again.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from millrace.errors import MillraceError, UnknownTopicOrPartitionError, UsageError
from pyspark_millrace.eventually import Eventually
from pyspark_millrace.options.source import IsolationLevel
from pyspark_millrace.origin import QueryOrigin, with_origin
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.backlog import Backlog
from pyspark_millrace.planning.data_loss import LossReport, losses_between, truncated
from pyspark_millrace.planning.log_divergence import epochs_of_replaced_leaders, epochs_to_look_up, find_divergences
from pyspark_millrace.planning.offsets import OffsetRange, StreamOffsets, ranges_between
from pyspark_millrace.planning.splits import STREAM_SIZING
from pyspark_millrace.planning.tombstones import late_for_tombstones
from pyspark_millrace.reading.references import plan_references, references
from pyspark_millrace.reading.task_planning import plan_tasks
from pyspark_millrace.reading.tasks import read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.broker_client import BrokerClient
    from pyspark_millrace.planning.topics import TopicSet
    from pyspark_millrace.reading.layout import ReadLayout

_log = logging.getLogger(__name__)

_LOOK_UP_S: Final = 10.0
"""Seconds for which topic look-ups are retried while the broker creates or deletes a topic."""
_LOOK_UP_PAUSE_S: Final = 0.02

_PLANNING_LOOP: Final = "pyspark.sql.streaming.python_streaming_source_runner"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is not typed
    """Micro-batch reader of topics (Spark's ``DataSourceStreamReader``).

    Spark's checkpoint is the only record of the reader's progress.
    """

    def __init__(self, options: SourceOptions, look_up: Callable[[], tuple[TopicSet, ReadLayout]]) -> None:
        """Create the reader; ``look_up`` finds topics and layout, and the first method call raises its error."""
        self._options = options
        self._start = options.stream_start()
        self._looked_up = Eventually(partial(_checked_ends, options, look_up))
        self._newer_topics: TopicSet | None = None
        self._client: BrokerClient | None = None
        self._initial: StreamOffsets | None = None
        self._newest: StreamOffsets | None = None
        self._target: StreamOffsets | None = None
        self._clock = time.monotonic
        self._last_batch_s: float | None = None

    # --- planning, in the process beside the driver --------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the start of a query without a checkpoint. Spark may call it twice and gets the same answer."""
        if self._initial is None:
            offsets = self._connected().offsets_at(
                self._start,
                self._topics.partitions,
                option="startingOffsets",
                no_match=self._options.starting_no_match,
            )
            self._initial = StreamOffsets(
                offsets, self._topics.topic_ids, is_initial=True, cluster_id=self._connected().cluster_id
            )
        return self._initial.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Return a read limit if micro-batches are limited, made from one of the limiting options.

        ``latestOffset`` applies all limits. Spark has no composite limit for Python sources. It passes only this limit
        on, or ``ReadAllAvailable`` for a trigger without limits.
        """
        limits = self._options.limits
        if limits.max_records is not None:
            return ReadMaxRows(limits.max_records)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadMinRows(limits.min_records or 1) if limits.has_minimum else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix the end of the query at the current latest offsets."""
        self._target = self._fetch_newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the end of the next micro-batch; ``start`` itself if there is nothing new.

        Raises ``OffsetsLostError`` if partitions were deleted or truncated, unless losses are accepted.
        """
        since = StreamOffsets.from_json(start)
        is_first = self._newest is None
        newest = self._newest = self._by_current_leaders(since, self._target or self._fetch_newest())
        if self._target is not None:
            self._target = newest
        report = LossReport(fail=self._options.fail_on_data_loss)
        for loss in losses_between(since, newest, self._options.subscription):
            report.add(loss)
        diverged = self._divergences(since, newest, report)
        backlog = self._backlog(replace(since, next_offsets={**since.next_offsets, **diverged}), newest, report)
        report.warn(_log)
        if is_first and not since.is_initial:
            self._warn_of_missed_tombstones(backlog)
        admitted = backlog if isinstance(limit, ReadAllAvailable) else self._limited(backlog, limit)
        # A truncated log is read on from its end. A partition without records is left out until it has some, because
        # naming it would start an empty micro-batch.
        ends = {
            key: end
            for key, offset in backlog.begin.items()
            if (end := min(admitted.end.get(key, offset), backlog.end[key])) != offset or key in since.next_offsets
        }
        topic_ids = {key.topic: newest.topic_ids[key.topic] for key in ends}
        return since.advanced_to(ends, topic_ids, newest.cluster_id, newest.leader_epochs, diverged).to_json()

    def _warn_of_missed_tombstones(self, backlog: Backlog) -> None:
        """Warn of partitions that may have lost tombstones. If the check itself fails, log a warning and raise
        nothing.
        """
        try:
            sentences = late_for_tombstones(self._connected(), backlog, time.time_ns() // 1_000_000)
        except MillraceError as error:
            sentences = [f"it is not known whether tombstones were missed: {error.message}"]
        for sentence in sentences:
            _log.warning("%s", sentence)

    def _limited(self, backlog: Backlog, limit: ReadLimit) -> Backlog:
        """Return the part of the backlog for the next batch; empty while the batch is not due."""
        limits = self._options.limits
        if isinstance(limit, ReadMaxRows):
            limits = replace(limits, max_records=limit.max_rows)
        # With availableNow the whole target is read, without waiting for a minimum.
        if self._target is None and limits.has_minimum:
            now_s = self._clock()
            waited_ms = None if self._last_batch_s is None else (now_s - self._last_batch_s) * 1000
            waiting_bytes = 0 if limits.min_bytes is None else backlog.measure(self._connected())
            if not limits.is_due(backlog.records, waiting_bytes, waited_ms):
                return backlog.nothing()
            self._last_batch_s = now_s
        if limits.max_records is not None:
            backlog = backlog.limited_to_records(limits.max_records)
        if limits.max_bytes is not None:
            backlog = backlog.limited_to_bytes(limits.max_bytes, self._connected())
        return backlog

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """Return the newest known offsets for progress reports; they are those of the trigger being planned.

        Spark shows them and does not store them. They also carry the brokers and the group of these offsets to
        listeners in the driver, which do not see a source's options.
        """
        if self._newest is None:
            return None
        return with_origin(
            replace(self._newest, is_initial=False).to_json(),
            QueryOrigin(self._options.bootstrap_servers, self._options.group_id, self._options.group_id_prefix),
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into tasks; repeated planning gives the same records."""
        until = StreamOffsets.from_json(end)
        ranges = ranges_between(StreamOffsets.from_json(start), until)
        if self._newest is None and until.leader_epochs:
            ranges = self._as_logged(ranges, until)
        client = self._connected()
        schemas = client.schemas(self._topics)
        if self._options.by_reference:
            return plan_references(client, ranges, schemas, self._options, self._layout)
        return plan_tasks(client, ranges, schemas, self._options, STREAM_SIZING, self._layout.row_filter)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the offsets to the group of ``group.id``, so that its lag is visible.

        Spark calls this one batch late, and never for the last batch of ``availableNow``. ``monitor`` commits at once;
        this method serves sessions without it. Spark's checkpoint is the record of the progress, so an error here is
        logged and the query continues.
        """
        group_id = self._options.group_id
        if group_id is None:
            return
        try:
            self._connected().commit(group_id, StreamOffsets.from_json(end).next_offsets)
        except MillraceError as error:
            _log.warning("the progress of the query was not committed to group %s: %s", group_id, error.message)

    def stop(self) -> None:
        """Close the connection. Spark calls it in the process beside the driver, after the query has ended."""
        if self._client is not None:
            self._client.close()
            self._client = None
        _end_process_if_spark_hung_up()

    def _connected(self) -> BrokerClient:
        if self._client is None:
            from pyspark_millrace.planning.broker_client import BrokerClient

            self._looked_up.get()  # raise the errors of topics and options first
            self._client = BrokerClient.connect(self._options)
        return self._client

    def _fetch_newest(self) -> StreamOffsets:
        """Return the current topics, including new topics and partitions, with their latest offsets."""
        from pyspark_millrace.reading.layout import check_layout

        client = self._connected()
        deadline = time.monotonic() + _LOOK_UP_S
        while True:
            found, _ = client.find(self._options.subscription)
            try:
                latest, epochs = client.latest(found.partitions)
            except UnknownTopicOrPartitionError:
                # The next look-up no longer finds a deleted topic, and then the lost records are reported.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_UP_PAUSE_S)
                continue
            break
        if found.topic_ids:
            # A running query reads one schema. New topics must have it. Topics that it reads may have evolved.
            known = {*self._topics.topic_ids.values(), *(self._newer_topics or self._topics).topic_ids.values()}
            for name, schema in found.schemas.items():
                check_layout(self._layout, schema, topic=name, is_new=found.topic_ids[name] not in known)
            self._newer_topics = found
        return StreamOffsets(latest, found.topic_ids, cluster_id=client.cluster_id, leader_epochs=epochs)

    def _by_current_leaders(self, since: StreamOffsets, newest: StreamOffsets) -> StreamOffsets:
        """Return ``newest``, fetched again from the current leaders if replaced leaders may have answered.

        The log of a replaced leader may end before offsets that the query has read from its successor.
        """
        epochs = epochs_of_replaced_leaders(since, newest)
        if not epochs:
            return newest
        self._connected().await_leader_epochs(epochs)
        return self._fetch_newest()

    def _backlog(self, since: StreamOffsets, newest: StreamOffsets, report: LossReport) -> Backlog:
        """Return the unread offsets of each partition of ``newest``; lost ones are reported."""
        begin, end = {}, dict(newest.next_offsets)
        for key, latest in newest.next_offsets.items():
            same_topic = since.topic_ids.get(key.topic) == newest.topic_ids[key.topic]
            begin[key] = since.next_offsets.get(key, 0) if same_topic else 0
            if begin[key] > latest:
                if self._is_undecided(key, begin[key]):
                    end[key] = begin[key]
                else:
                    report.add(truncated(key, begin[key], latest))
            elif key in self._options.stream_ending:
                end[key] = max(begin[key], min(latest, self._options.stream_ending[key]))
        return Backlog(begin, end, newest.topic_ids)

    def _divergences(self, since: StreamOffsets, newest: StreamOffsets, report: LossReport) -> dict[PartitionKey, int]:
        """Return the offsets at which to resume in diverged logs (see ``log_divergence``), and report them."""
        return find_divergences(since, self._connected().epoch_ends(epochs_to_look_up(since, newest)), report)

    def _as_logged(self, ranges: Sequence[OffsetRange], until: StreamOffsets) -> list[OffsetRange]:
        """Clip a batch that an earlier process planned to the offsets that the logs still hold unchanged.

        Records in the place of lost ones are read by the next batch, which begins there.
        """
        report = LossReport(fail=self._options.fail_on_data_loss)
        newest = self._by_current_leaders(until, self._fetch_newest())
        diverged = self._divergences(until, newest, report)
        report.warn(_log)
        return [replace(each, end=max(each.start, min(each.end, diverged.get(each.key, each.end)))) for each in ranges]

    def _is_undecided(self, key: PartitionKey, offset: int) -> bool:
        """Return whether a query that read uncommitted records before is beyond the first open transaction."""
        if self._options.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            return False
        return offset <= self._connected().log_ends([key])[key]

    @property
    def _topics(self) -> TopicSet:
        """Topics of the last look-up."""
        return self._newer_topics or self._looked_up.get()[0]

    @property
    def _layout(self) -> ReadLayout:
        return self._looked_up.get()[1]

    # --- reading, in the tasks -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task."""
        if self._options.by_reference:
            return references(partition, self._layout)
        return read_task(partition, self._layout, self._options)


def _checked_ends(
    options: SourceOptions, look_up: Callable[[], tuple[TopicSet, ReadLayout]]
) -> tuple[TopicSet, ReadLayout]:
    """Return the result of ``look_up``.

    Raises ``UsageError`` for the end of a partition that a topic lacks. A topic of a pattern may be created later.
    """
    topics, layout = look_up()
    there = set(topics.partitions)
    if absent := [str(key) for key in options.stream_ending if key.topic in topics.topic_ids and key not in there]:
        raise UsageError(f"streamEndingOffsets names {', '.join(absent)}: no such partition; leave it out")
    return topics, layout


def _end_process_if_spark_hung_up() -> None:
    """End the process beside the driver if Spark ended the query by closing the connection.

    PySpark's loop in this process ends only with the read error of that connection. It reports the error to the closed
    connection, and the log of a successful query ends with a traceback of a ``BrokenPipeError``. At that point no work
    is left, so the process exits instead.
    """
    error = sys.exc_info()[1]
    if not isinstance(error, EOFError) or error.__traceback__ is None:
        return
    # Spark runs the module as a program named __main__; only its spec has the real name.
    spec = error.__traceback__.tb_frame.f_globals.get("__spec__")
    if spec is not None and spec.name == _PLANNING_LOOP:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
