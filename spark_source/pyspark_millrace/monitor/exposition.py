"""Measurements in Prometheus' form, with the lag as it is when asked for. docs/spark.md has the table of metrics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.clients.groups.model import PartitionLag
from millrace.clients.model import TopicPartition
from millrace.errors import MillraceError
from pyspark_millrace.monitor.group_commits import CommitStatistics
from pyspark_millrace.monitor.measurements import QueryTotals, Totals

_log = logging.getLogger(__name__)

_QUERY: Final = ("query_id", "query")
_PARTITION: Final = (*_QUERY, "topic", "partition")
_READS: Final = (*_QUERY, "topic")
_LAG_AGE_S: Final = 1.0
"""Lag costs two calls for each partition that is behind; who asks more often gets it again."""


class _MeasuredLag(NamedTuple):
    """The lag of offsets at a time of the clock."""

    of: Mapping[TopicPartition, int]
    at_s: float
    lags: list[PartitionLag]


class Brokers(Protocol):
    """What is asked of an ``Admin``."""

    def lag_of(self, offsets: Mapping[TopicPartition, int]) -> list[PartitionLag]:
        """How far offsets are behind."""


class MonitorCollector(Collector):
    """Makes the metrics whenever they are collected."""

    def __init__(
        self,
        totals: Callable[[], Totals],
        commits: Callable[[], CommitStatistics],
        connect: Callable[[str], Brokers],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._totals = totals
        self._commits = commits
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._lags: dict[tuple[str, int], _MeasuredLag] = {}

    def collect(self) -> Iterator[Metric]:
        """All metrics. Those of lag are left out for brokers that do not answer."""
        totals = self._totals()
        yield from _queries(totals)
        yield from _reads(totals)
        yield from _commits(self._commits())
        yield from self._positions(totals)

    def describe(self) -> list[Metric]:
        """Nothing, so that registering asks no broker."""
        return []

    def _positions(self, totals: Totals) -> Iterator[Metric]:
        offsets = GaugeMetricFamily("millrace_spark_offset", "Next offset that the query reads.", labels=_PARTITION)
        lags = [
            (GaugeMetricFamily(f"millrace_spark_lag_{unit}", text, labels=_PARTITION), name)
            for unit, name, text in (
                ("records", "lag", "Records that the query has not read."),
                ("bytes", "lag_bytes", "Size of the batches that hold them."),
                ("seconds", "lag_seconds", "Age of the first of them."),
            )
        ]
        for query_id, query in totals.queries.items():
            for index, source in enumerate(query.sources):
                for key, offset in source.end.next_offsets.items():
                    offsets.add_metric((query_id, query.name, key.topic, str(key.partition)), offset)
                for lag in self._lag(query_id, index, query):
                    labels = (query_id, query.name, lag.topic, str(lag.partition))
                    for family, name in lags:
                        if (value := getattr(lag, name)) is not None:
                            family.add_metric(labels, value)
        yield offsets
        yield from (family for family, _ in lags)

    def _lag(self, query_id: str, index: int, query: QueryTotals) -> list[PartitionLag]:
        source = query.sources[index]
        if source.origin is None:
            return []
        wanted = {TopicPartition(*key): offset for key, offset in source.end.next_offsets.items()}
        with self._lock:
            known = self._lags.get((query_id, index))
            if known is not None and known.of == wanted and self._clock() - known.at_s < _LAG_AGE_S:
                return known.lags
            try:
                lags = self._connect(source.origin.bootstrap_servers).lag_of(wanted)
            except MillraceError as error:
                _log.warning("the lag of query %s is not known: %s", query.name or query_id, error.message)
                lags = []
            self._lags[(query_id, index)] = _MeasuredLag(wanted, self._clock(), lags)
            return lags


def _queries(totals: Totals) -> Iterator[Metric]:
    running = GaugeMetricFamily("millrace_spark_query_running", "1 while the query runs.", labels=_QUERY)
    newest = GaugeMetricFamily("millrace_spark_batch_id", "Number of the last batch.", labels=_QUERY)
    finished = GaugeMetricFamily(
        "millrace_spark_batch_finished_timestamp_seconds", "When the last batch was done.", labels=_QUERY
    )
    batches = CounterMetricFamily("millrace_spark_batches", "Batches that are done.", labels=_QUERY)
    rows = CounterMetricFamily("millrace_spark_rows", "Rows that Spark got from the source.", labels=_QUERY)
    phases = CounterMetricFamily(
        "millrace_spark_batch_seconds", "Time of batches by what Spark did in it.", labels=(*_QUERY, "phase")
    )
    for query_id, query in totals.queries.items():
        labels = (query_id, query.name)
        running.add_metric(labels, float(bool(query.runs)))
        batches.add_metric(labels, query.batches)
        rows.add_metric(labels, query.rows)
        if query.batches:
            newest.add_metric(labels, query.batch_id)
            finished.add_metric(labels, query.finished_at_s)
        for phase, took_ms in sorted(query.phases_ms.items()):
            phases.add_metric((*labels, phase), took_ms / 1000)
    yield from (running, newest, finished, batches, rows, phases)


def _reads(totals: Totals) -> Iterator[Metric]:
    families = [
        (CounterMetricFamily(f"millrace_spark_{name}", text, labels=_READS), attribute)
        for name, attribute, text in (
            ("read_tasks", "tasks", "Tasks that have read, repeated ones among them."),
            ("read_rows", "rows", "Records that tasks have decoded."),
            ("read_batches", "batches", "Batches of the log that tasks have decoded."),
            ("read_bytes", "read_bytes", "Size of these batches in the log."),
            ("skipped_bytes", "skipped_bytes", "Size of batches that tasks had at hand and passed over."),
            ("skipped_batches", "skipped_batches", "Batches that a filter ruled out, by their statistics or header."),
            ("decode_seconds", "seconds", "Time that tasks took to read and decode."),
        )
    ]
    for (query_id, topic), totals_of_topic in totals.reads.items():
        name = totals.queries[query_id].name if query_id in totals.queries else ""
        for family, attribute in families:
            family.add_metric((query_id, name, topic), getattr(totals_of_topic, attribute))
    yield from (family for family, _ in families)


def _commits(statistics: CommitStatistics) -> Iterator[Metric]:
    outcomes = CounterMetricFamily("millrace_spark_group_commits", "Commits to groups.", labels=("outcome",))
    outcomes.add_metric(("succeeded",), statistics.succeeded)
    outcomes.add_metric(("failed",), statistics.failed)
    yield outcomes
    yield CounterMetricFamily("millrace_spark_group_commit_seconds", "Time that they took.", value=statistics.seconds)
