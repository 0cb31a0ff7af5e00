"""Spark's micro-batch reader over topics.

One instance lives in a process beside the driver for as long as the query runs; Spark asks it for each trigger's end
and tasks. Another instance is pickled to the tasks and only reads. Its topics are looked up while Spark does other
things, such as to start the planning process of the next source.

Invariants: the state kept here (``_cluster``, ``_initial``, ``_newest``, ``_target``) only saves calls, or says when a
batch is due (``_last_batch_s``): what decides what is read is in the offsets, which Spark logs before it reads. A
planned range, read again, gives the same records.
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
from pyspark_millrace.partitions import PartitionKey
from pyspark_millrace.planning.backlog import Backlog
from pyspark_millrace.planning.offsets import (
    LossReport,
    OffsetRange,
    StreamOffsets,
    losses_between,
    ranges_between,
    truncated,
)
from pyspark_millrace.planning.parting import epochs_to_look_up, find_partings
from pyspark_millrace.planning.splits import STREAM_SIZING
from pyspark_millrace.planning.tombstones import late_for_tombstones
from pyspark_millrace.reading.references import plan_references, references
from pyspark_millrace.reading.task_planning import plan_tasks
from pyspark_millrace.reading.tasks import read_task

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_millrace.options.source import SourceOptions
    from pyspark_millrace.planning.cluster import Cluster
    from pyspark_millrace.planning.topics import TopicSet
    from pyspark_millrace.reading.layout import ReadLayout

_log = logging.getLogger(__name__)

_LOOK_UP_S: Final = 10.0
"""Seconds for which topics are looked up again while the broker creates or deletes one of them."""
_LOOK_UP_PAUSE_S: Final = 0.02

_PLANNING_LOOP: Final = "pyspark.sql.streaming.python_streaming_source_runner"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark is not typed
    """Reads topics in micro-batches, with Spark's checkpoint as the only record of how far it is."""

    def __init__(self, options: SourceOptions, look_up: Callable[[], tuple[TopicSet, ReadLayout]]) -> None:
        """``look_up`` finds the topics and what is read of them; what it raises, the first method called raises."""
        self._options = options
        self._start = options.stream_start()
        self._looked_up = Eventually(partial(_checked_ends, options, look_up))
        self._newer_topics: TopicSet | None = None
        self._cluster: Cluster | None = None
        self._initial: StreamOffsets | None = None
        self._newest: StreamOffsets | None = None
        self._target: StreamOffsets | None = None
        self._clock = time.monotonic
        self._last_batch_s: float | None = None

    # --- planning: in the process beside the driver --------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Where a query without a checkpoint starts. Spark may ask twice and gets the same answer."""
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
        """That micro-batches are limited, by one of the options that limit them.

        ``latestOffset`` applies them all. Spark has no limit made of several for Python sources, and only ever hands
        this one on, or ``ReadAllAvailable`` where the trigger knows no limits.
        """
        limits = self._options.limits
        if limits.max_records is not None:
            return ReadMaxRows(limits.max_records)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadMinRows(limits.min_records or 1) if limits.has_minimum else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix the end of the query at what is there now."""
        self._target = self._fetch_newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The end of the next micro-batch; ``start`` itself when there is nothing new.

        Raises ``OffsetsLostError`` when partitions went away or back, unless losses are accepted.
        """
        since = StreamOffsets.from_json(start)
        is_first = self._newest is None
        newest = self._newest = self._target or self._fetch_newest()
        report = LossReport(fail=self._options.fail_on_data_loss)
        for loss in losses_between(since, newest, self._options.subscription):
            report.add(loss)
        parted = self._partings(since, newest, report)
        backlog = self._backlog(replace(since, next_offsets={**since.next_offsets, **parted}), newest, report)
        report.warn(_log)
        if is_first and not since.is_initial:
            self._warn_of_missed_tombstones(backlog)
        admitted = backlog if isinstance(limit, ReadAllAvailable) else self._limited(backlog, limit)
        # A log that went back is read on from its end. A partition without records is left out until it has some:
        # naming it would be an empty micro-batch.
        ends = {
            key: end
            for key, offset in backlog.begin.items()
            if (end := min(admitted.end.get(key, offset), backlog.end[key])) != offset or key in since.next_offsets
        }
        topic_ids = {key.topic: newest.topic_ids[key.topic] for key in ends}
        return since.advanced_to(ends, topic_ids, newest.cluster_id, newest.leader_epochs, parted).to_json()

    def _warn_of_missed_tombstones(self, backlog: Backlog) -> None:
        """Say which partitions may have lost some. A warning that cannot be had is one itself, and no error."""
        try:
            sentences = late_for_tombstones(self._connected(), backlog, time.time_ns() // 1_000_000)
        except MillraceError as error:
            sentences = [f"whether tombstones were missed is not known: {error.message}"]
        for sentence in sentences:
            _log.warning("%s", sentence)

    def _limited(self, backlog: Backlog, limit: ReadLimit) -> Backlog:
        """What of the backlog the limits let into the next batch: nothing while it is not due."""
        limits = self._options.limits
        if isinstance(limit, ReadMaxRows):
            limits = replace(limits, max_records=limit.max_rows)
        # Of what is there "now" everything is read: there is no more to wait for.
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
        """The newest offsets known, for progress reports; they are those of the trigger being planned.

        Spark shows them and stores them nowhere, so they also tell listeners in the driver, which are not told a
        source's options, which brokers and which group these offsets belong to.
        """
        if self._newest is None:
            return None
        return with_origin(
            replace(self._newest, is_initial=False).to_json(),
            QueryOrigin(self._options.bootstrap_servers, self._options.group_id, self._options.group_id_prefix),
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a micro-batch into tasks, the same records whenever it is planned."""
        until = StreamOffsets.from_json(end)
        ranges = ranges_between(StreamOffsets.from_json(start), until)
        if self._newest is None and until.leader_epochs:
            ranges = self._as_logged(ranges, until)
        cluster = self._connected()
        schemas = cluster.schemas(self._topics)
        if self._options.by_reference:
            return plan_references(cluster, ranges, schemas, self._options, self._layout)
        return plan_tasks(cluster, ranges, schemas, self._options, STREAM_SIZING, self._layout.row_filter)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the group of ``group.id`` how far the query is, for its lag to be seen.

        Spark calls this a batch late, and never for the last one of ``availableNow``: ``monitor`` tells the group at
        once, and this is for sessions without it.
        Spark's checkpoint is the record of what was read: what goes wrong here is logged, and the query goes on.
        """
        group_id = self._options.group_id
        if group_id is None:
            return
        try:
            self._connected().commit(group_id, StreamOffsets.from_json(end).next_offsets)
        except MillraceError as error:
            _log.warning("group %s was not told how far the query is: %s", group_id, error.message)

    def stop(self) -> None:
        """Close the connection. Spark calls this in the process beside the driver, when the query has ended."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        _end_process_if_spark_hung_up()

    def _connected(self) -> Cluster:
        if self._cluster is None:
            from pyspark_millrace.planning.cluster import Cluster

            self._looked_up.get()  # topics or options that are wrong are told before anything is asked of them
            self._cluster = Cluster.connect(self._options)
        return self._cluster

    def _fetch_newest(self) -> StreamOffsets:
        """The topics as they are now, new ones and new partitions among them, with their latest offsets."""
        cluster = self._connected()
        deadline = time.monotonic() + _LOOK_UP_S
        while True:
            found, _ = cluster.find(self._options.subscription)
            try:
                latest, epochs = cluster.latest(found.partitions)
            except UnknownTopicOrPartitionError:
                # The next look-up finds a deleted topic no more, and then the lost records can be reported.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_UP_PAUSE_S)
                continue
            break
        if found.topic_ids:
            self._newer_topics = self._checked(found)
        return StreamOffsets(latest, found.topic_ids, cluster_id=cluster.cluster_id, leader_epochs=epochs)

    def _checked(self, found: TopicSet) -> TopicSet:
        """A running query reads one schema: newer versions pass, other topics must fit."""
        from pyspark_millrace.reading.layout import check_layout

        check_layout(self._layout, found.schema, topics=found.description)
        return found

    def _backlog(self, since: StreamOffsets, newest: StreamOffsets, report: LossReport) -> Backlog:
        """What each partition of ``newest`` has that was not read; what is lost of it is reported."""
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

    def _partings(self, since: StreamOffsets, newest: StreamOffsets, report: LossReport) -> dict[PartitionKey, int]:
        """Where to go on in logs that lost what was read of them and have grown again; they are reported."""
        return find_partings(since, self._connected().epoch_ends(epochs_to_look_up(since, newest)), report)

    def _as_logged(self, ranges: Sequence[OffsetRange], until: StreamOffsets) -> list[OffsetRange]:
        """Of a batch that a process before this one planned, what the logs still have as they were then.

        What came in the place of lost records is read by the next batch, which begins there.
        """
        report = LossReport(fail=self._options.fail_on_data_loss)
        parted = self._partings(until, self._fetch_newest(), report)
        report.warn(_log)
        return [replace(each, end=max(each.start, min(each.end, parted.get(each.key, each.end)))) for each in ranges]

    def _is_undecided(self, key: PartitionKey, offset: int) -> bool:
        """Whether a query that read uncommitted records before is past the first transaction that is open now."""
        if self._options.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            return False
        return offset <= self._connected().log_ends([key])[key]

    @property
    def _topics(self) -> TopicSet:
        """The topics as they were last seen."""
        return self._newer_topics or self._looked_up.get()[0]

    @property
    def _layout(self) -> ReadLayout:
        return self._looked_up.get()[1]

    # --- reading: in the tasks -----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task."""
        if self._options.by_reference:
            return references(partition, self._layout)
        return read_task(partition, self._layout, self._options)


def _checked_ends(
    options: SourceOptions, look_up: Callable[[], tuple[TopicSet, ReadLayout]]
) -> tuple[TopicSet, ReadLayout]:
    """What ``look_up`` finds.

    Raises ``UsageError`` for the end of a partition that a topic has not; a topic of a pattern may come later.
    """
    topics, layout = look_up()
    there = set(topics.partitions)
    if absent := [str(key) for key in options.stream_ending if key.topic in topics.topic_ids and key not in there]:
        raise UsageError(f"streamEndingOffsets names {', '.join(absent)}: no such partition; leave it out")
    return topics, layout


def _end_process_if_spark_hung_up() -> None:
    """End the process beside the driver where Spark ends a query: by closing the connection to it.

    PySpark's loop there knows no other end than the error of reading from it. It answers that error, nobody listens,
    and the log of a query that went well ends with the traceback of a ``BrokenPipeError``. There is nothing left to do
    or to tell anybody at that point, so the process ends instead.
    """
    error = sys.exc_info()[1]
    if not isinstance(error, EOFError) or error.__traceback__ is None:
        return
    # Spark runs the module as a program: its name is __main__, and only its spec says which it is.
    spec = error.__traceback__.tb_frame.f_globals.get("__spec__")
    if spec is not None and spec.name == _PLANNING_LOOP:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
