"""Metrics in Prometheus' form, with the current lag at each scrape.

docs/spark.md has the table of metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.clients.groups.model import PartitionLag
from millrace.clients.model import TopicPartition
from pyspark_millrace.monitor.group_commits import CommitStatistics
from pyspark_millrace.monitor.lags import Lags
from pyspark_millrace.monitor.measurements import Totals
from pyspark_millrace.monitor.progress import SourceProgress

_QUERY: Final = ("query_id", "query")
_PARTITION: Final = (*_QUERY, "topic", "partition")
_READS: Final = (*_QUERY, "topic")


class MonitorCollector(Collector):
    """Prometheus collector that computes the metrics at each collection."""

    def __init__(self, totals: Callable[[], Totals], commits: Callable[[], CommitStatistics], lags: Lags) -> None:
        self._totals = totals
        self._commits = commits
        self._lags = lags

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. Lag metrics are absent for brokers that do not answer."""
        totals = self._totals()
        yield from _queries(totals)
        yield from _reads(totals)
        yield from _commits(self._commits())
        yield from self._positions(totals)

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration needs no broker."""
        return []

    def _positions(self, totals: Totals) -> Iterator[Metric]:
        offsets = GaugeMetricFamily("millrace_spark_offset", "Next offset that the query reads.", labels=_PARTITION)
        lags = [
            (GaugeMetricFamily(f"millrace_spark_lag_{unit}", text, labels=_PARTITION), name)
            for unit, name, text in (
                ("records", "lag", "Records that the query has not read."),
                ("bytes", "lag_bytes", "Size of the batches of unread records."),
                ("seconds", "lag_seconds", "Age of the first unread record."),
            )
        ]
        for query_id, query in totals.queries.items():
            for source in query.sources:
                for key, offset in source.end.next_offsets.items():
                    offsets.add_metric((query_id, query.name, key.topic, str(key.partition)), offset)
                for lag in self._lag(source):
                    labels = (query_id, query.name, lag.topic, str(lag.partition))
                    for family, name in lags:
                        if (value := getattr(lag, name)) is not None:
                            family.add_metric(labels, value)
        yield offsets
        yield from (family for family, _ in lags)

    def _lag(self, source: SourceProgress) -> list[PartitionLag]:
        if source.origin is None:
            return []
        wanted = {TopicPartition(*key): offset for key, offset in source.end.next_offsets.items()}
        return self._lags.of(source.origin.bootstrap_servers, wanted)


def _queries(totals: Totals) -> Iterator[Metric]:
    running = GaugeMetricFamily("millrace_spark_query_running", "1 while the query runs.", labels=_QUERY)
    newest = GaugeMetricFamily("millrace_spark_batch_id", "Number of the last batch.", labels=_QUERY)
    finished = GaugeMetricFamily(
        "millrace_spark_batch_finished_timestamp_seconds",
        "End of the last batch, in seconds since 1970.",
        labels=_QUERY,
    )
    batches = CounterMetricFamily("millrace_spark_batches", "Finished batches.", labels=_QUERY)
    rows = CounterMetricFamily("millrace_spark_rows", "Rows that Spark got from the source.", labels=_QUERY)
    phases = CounterMetricFamily(
        "millrace_spark_batch_seconds", "Time of batches, by phase.", labels=(*_QUERY, "phase")
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
            ("read_tasks", "tasks", "Read tasks, including repeated ones."),
            ("read_rows", "rows", "Records that tasks decoded."),
            ("read_batches", "batches", "Batches of the log that tasks decoded."),
            ("read_bytes", "read_bytes", "Size of these batches in the log."),
            ("skipped_bytes", "skipped_bytes", "Size of the batches that tasks read but did not decode."),
            ("skipped_batches", "skipped_batches", "Batches that a filter excluded by their statistics or header."),
            (
                "pruned_bytes",
                "pruned_bytes",
                "Size of the part of the log that a filter on timestamps excluded from the plan.",
            ),
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
    yield CounterMetricFamily("millrace_spark_group_commit_seconds", "Time of these commits.", value=statistics.seconds)
