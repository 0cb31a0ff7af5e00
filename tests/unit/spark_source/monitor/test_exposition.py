"""Tests of metrics in Prometheus' format.

If brokers do not answer, only the lag is missing.
"""

import json
import uuid

import pytest
from prometheus_client import CollectorRegistry

from millrace.clients.groups.model import PartitionLag
from millrace.errors import BrokerUnavailableError
from pyspark_millrace.monitor.exposition import MonitorCollector
from pyspark_millrace.monitor.group_commits import CommitStatistics
from pyspark_millrace.monitor.lags import Lags
from pyspark_millrace.monitor.measurements import Measurements
from pyspark_millrace.monitor.progress import parse_progress
from pyspark_millrace.origin import QueryOrigin, with_origin
from pyspark_millrace.partition_key import PartitionKey
from pyspark_millrace.planning.offsets import StreamOffsets
from pyspark_millrace.reading.reports import ReadReport

END = StreamOffsets({PartitionKey("t", 0): 12}, {"t": uuid.UUID(int=7)}).to_json()
LABELS = {"query_id": "q-1", "query": "nightly"}


def progress(**changed):
    ours = {"endOffset": END, "latestOffset": with_origin(END, QueryOrigin("a:1", "g")), "numInputRows": 5}
    theirs = {"endOffset": {"logOffset": 3}, "latestOffset": None, "numInputRows": 100}
    report = {
        "id": "q-1",
        "runId": "r-1",
        "name": "nightly",
        "batchId": 4,
        "durationMs": {"addBatch": 250, "walCommit": 40},
        "sources": [theirs, ours],
    }
    return json.dumps(report | changed)


class Cluster:
    def __init__(self):
        self.asked, self.away, self.now = 0, False, 0.0
        self.measurements = Measurements()
        self.registry = CollectorRegistry()
        self.registry.register(
            MonitorCollector(
                self.measurements.snapshot,
                lambda: CommitStatistics(3, 1, 0.5),
                Lags(lambda _: self, lambda: self.now),
            )
        )

    def lag_of(self, offsets):
        self.asked += 1
        if self.away:
            raise BrokerUnavailableError("nobody answers")
        return [
            PartitionLag(
                group_id="",
                topic=topic,
                partition=partition,
                committed=offset,
                log_start=0,
                log_end=20,
                lag=20 - offset,
                lag_bytes=800,
                lag_seconds=None,
            )
            for (topic, partition), offset in offsets.items()
        ]

    def value(self, name, **labels):
        return self.registry.get_sample_value(f"millrace_spark_{name}", labels)


@pytest.fixture
def cluster():
    found = Cluster()
    found.measurements.started("q-1", "r-1", "nightly")
    found.measurements.progressed(parse_progress(progress()), now_s=1000.0)
    return found


def test_batches_are_added_up(cluster):
    cluster.measurements.progressed(parse_progress(progress(batchId=5)), now_s=1001.0)
    assert cluster.value("batches_total", **LABELS) == 2
    assert cluster.value("rows_total", **LABELS) == 10
    assert cluster.value("batch_id", **LABELS) == 5
    assert cluster.value("batch_finished_timestamp_seconds", **LABELS) == 1001
    assert cluster.value("batch_seconds_total", **LABELS, phase="addBatch") == 0.5
    assert cluster.value("group_commits_total", outcome="failed") == 1
    assert cluster.value("query_running", **LABELS) == 1
    # The query restarts at once: Spark reports the end of the first run after the start of the second.
    cluster.measurements.started("q-1", "r-2", "nightly")
    cluster.measurements.terminated("q-1", "r-1")
    assert cluster.value("query_running", **LABELS) == 1
    cluster.measurements.terminated("q-1", "r-2")
    assert cluster.value("query_running", **LABELS) == 0


def test_offsets_and_lag_are_those_of_now(cluster):
    partition = LABELS | {"topic": "t", "partition": "0"}
    assert cluster.value("offset", **partition) == 12
    assert cluster.value("lag_records", **partition) == 8
    assert cluster.value("lag_bytes", **partition) == 800
    assert cluster.value("lag_seconds", **partition) is None, "the lag is not known"
    assert cluster.asked == 1, "several metrics, one request"
    cluster.now, cluster.away = 2.0, True
    assert cluster.value("lag_records", **partition) is None
    assert cluster.value("offset", **partition) == 12


def test_a_broker_that_is_away_is_asked_once_for_all_its_queries(cluster):
    for number in range(20):
        cluster.measurements.progressed(parse_progress(progress(id=f"q-{number}", name=f"query {number}")), 1000.0)
    cluster.away = True
    list(cluster.registry.collect())
    cluster.now = 29.0
    list(cluster.registry.collect())
    assert cluster.asked == 1
    cluster.away, cluster.now = False, 31.0
    assert cluster.value("lag_records", query_id="q-7", query="query 7", topic="t", partition="0") == 8


def test_metrics_of_the_last_ended_queries_are_kept(cluster):
    for number in range(150):
        cluster.measurements.started(f"e-{number}", "r", "ended")
        cluster.measurements.read(ReadReport(f"e-{number}", "t", 5, 2, 300, 64, 0.25, 3))
        cluster.measurements.terminated(f"e-{number}", "r")
    totals = cluster.measurements.snapshot()
    assert list(totals.queries) == ["q-1", *(f"e-{number}" for number in range(50, 150))]
    assert {query_id for query_id, _ in totals.reads} == {f"e-{number}" for number in range(50, 150)}


def test_records_read_by_tasks_are_summed_by_topic(cluster):
    for query in ("q-1", "q-1", ""):
        cluster.measurements.read(ReadReport(query, "t", 5, 2, 300, 64, 0.25, 3, 1000))
    topic = LABELS | {"topic": "t"}
    assert cluster.value("read_tasks_total", **topic) == 2
    assert cluster.value("read_rows_total", **topic) == 10
    assert cluster.value("read_bytes_total", **topic) == 600
    assert cluster.value("skipped_bytes_total", **topic) == 128
    assert cluster.value("skipped_batches_total", **topic) == 6
    assert cluster.value("pruned_bytes_total", **topic) == 2000
    assert cluster.value("decode_seconds_total", **topic) == 0.5
    assert cluster.value("read_rows_total", query_id="", query="", topic="t") == 5


def test_offsets_as_text_within_text_are_read_as_well():
    # Spark Connect sends offsets as text within text.
    source = {"endOffset": json.dumps(END), "latestOffset": json.dumps(END), "numInputRows": 1}
    batch = parse_progress(progress(sources=[source]))
    assert batch.sources[0].end == StreamOffsets.from_json(END)
    assert batch.sources[0].origin is None
    assert parse_progress(progress(sources=[source | {"endOffset": None}])) is None


def test_the_lag_of_other_offsets_is_measured_at_once(cluster):
    partition = LABELS | {"topic": "t", "partition": "0"}
    assert cluster.value("lag_records", **partition) == 8
    end = END | {"t": {"0": 20}}
    source = {"endOffset": end, "latestOffset": with_origin(end, QueryOrigin("a:1", "g")), "numInputRows": 8}
    cluster.measurements.progressed(parse_progress(progress(sources=[source])), now_s=1001.0)
    assert cluster.value("lag_records", **partition) == 0


def test_the_dashboard_and_the_document_name_metrics_that_there_are(cluster):
    import re
    from pathlib import Path

    cluster.measurements.read(ReadReport("q-1", "t", 5, 2, 300, 64, 0.25))
    there = {sample.name for family in cluster.registry.collect() for sample in family.samples}
    lacking = {"millrace_spark_lag_seconds"}  # not known here
    docs = Path(__file__).parents[4] / "docs"
    in_dashboard = set(re.findall(r"millrace_spark_\w+", (docs / "grafana.json").read_text()))
    assert in_dashboard <= there | lacking
    _, table = (docs / "spark.md").read_text().split("| metric `millrace_spark_…`", 1)
    rows = [line.split("|")[1] for line in table.split("\n\n", 1)[0].splitlines()[2:]]
    in_table = {f"millrace_spark_{name}" for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert in_table == there | lacking
