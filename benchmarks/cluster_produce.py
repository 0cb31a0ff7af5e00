"""Writes of 1 KiB records with acks=all to three replicas.

One row is at full speed and one at half of Kafka's full speed. At full speed our side is ``Producer.send_table``, as in
``produce``. At half load both sides send record by record, each with its performance tool.
"""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import clusters
from benchmarks.clusters import Cluster, MillraceCluster
from benchmarks.harness import Context, Measure, Sample
from benchmarks.peers.kafka_cluster import KafkaCluster
from benchmarks.produce import Performance, run_producer_performance
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError, Workspace
from millrace.clients import Producer

RECORD_BYTES = 1024
PARTITIONS = 6
OPTIONS = {"batch.size": "262144", "linger.ms": "5"}
OUR_SETTINGS = f"millrace, {clusters.SETTINGS}; producer: batch.size=262144, linger.ms=5, acks=all"
TOPIC = "produced"
_PAYLOAD = ["--record-size", str(RECORD_BYTES)]
_LATENCY_SECONDS = 30
_RUN_SECONDS_MAX = 900
_P99 = re.compile(r"^\d+ steady state records sent, ([\d.]+) records/sec.* ([\d.]+) ms 99th", re.MULTILINE)


def records_of(context: Context) -> int:
    """Return a tenth of the data set's number, because these records are ten times as large."""
    return max(context.records // 10, 10_000)


@contextlib.contextmanager
def open_ours(context: Context) -> Iterator[Measure]:
    """Measure ``send_table`` of all records into a new topic, until all are acknowledged."""
    records = records_of(context)
    with MillraceCluster(context.workspace) as cluster:
        arguments = {"bootstrap": cluster.bootstrap, "records": records}
        with worker(context.workspace, "cluster-producer", "benchmarks.cluster_produce:serve", arguments) as run:

            def measure() -> Sample:
                with cluster.topic(TOPIC, PARTITIONS):
                    seconds = run()["seconds"]
                    return Sample(figure=records / seconds, answer=cluster.count(TOPIC))

            measure()  # brokers and producer are warm from here on
            yield measure


@contextlib.contextmanager
def serve(*, bootstrap: str, records: int) -> Iterator[Run]:
    """Run the worker.

    Its values in memory are random letters, as the peer's are, and are sent as tables of a mebibyte.
    """
    rows = 1024
    letters = pa.py_buffer(bytes(range(65, 91)) * (rows * RECORD_BYTES // 26 + 1))
    offsets = pa.array(range(0, (rows + 1) * RECORD_BYTES, RECORD_BYTES), pa.int32())
    table = pa.table({"value": pa.Array.from_buffers(pa.binary(), rows, [None, offsets.buffers()[1], letters])})

    def run() -> dict[str, Any]:
        with Producer({"bootstrap.servers": bootstrap, **OPTIONS}) as producer:
            started = time.perf_counter()
            for sent in range(0, records, rows):
                producer.send_table(TOPIC, table.slice(0, min(rows, records - sent)))
            producer.flush()
            return {"seconds": time.perf_counter() - started}

    yield run


@contextlib.contextmanager
def open_peer(context: Context) -> Iterator[Measure]:
    """Measure ProducerPerformance of all records into a new topic, after as many untimed ones, as on our side."""
    with KafkaCluster(context.workspace) as cluster:

        def measure() -> Sample:
            with cluster.topic(TOPIC, PARTITIONS):
                records = records_of(context)
                performance = _run_peer(cluster, records, warm_up=records)
                return Sample(figure=performance.records_per_s, answer=cluster.count(TOPIC) - records)

        measure()
        yield measure


def _run_peer(cluster: KafkaCluster, records: int, *, warm_up: int, throughput: float = -1) -> Performance:
    command = cluster.java("org.apache.kafka.tools.ProducerPerformance")
    return run_producer_performance(
        command, cluster.bootstrap, TOPIC, records, _PAYLOAD, OPTIONS, throughput=throughput, warm_up=warm_up
    )


# --- at half load ----------------------------------------------------------------------------------------------


@functools.cache
def half_load(workspace: Workspace, records: int) -> float:
    """Return half of the records/s of a warm Kafka at full speed, measured once."""
    with KafkaCluster(workspace) as cluster, cluster.topic(TOPIC, PARTITIONS):
        rate = _run_peer(cluster, records, warm_up=records).records_per_s / 2
    print(f"  half of Kafka's full speed: {rate:,.0f} records/s", flush=True)
    return rate


@contextlib.contextmanager
def open_ours_at_half_load(context: Context) -> Iterator[Measure]:
    """Measure the 99th percentile of acknowledgements by ``millrace perf produce``."""
    rate = half_load(context.workspace, records_of(context))
    with MillraceCluster(context.workspace) as cluster:
        yield _at_half_load(cluster, context, rate, lambda records: _run_ours(cluster, records, rate))


@contextlib.contextmanager
def open_peer_at_half_load(context: Context) -> Iterator[Measure]:
    """Measure the same by ProducerPerformance."""
    rate = half_load(context.workspace, records_of(context))
    with KafkaCluster(context.workspace) as cluster:

        def run(records: int) -> Performance:
            warm_up = records // 10
            return _run_peer(cluster, records - warm_up, warm_up=warm_up, throughput=rate)

        yield _at_half_load(cluster, context, rate, run)


def _at_half_load(cluster: Cluster, context: Context, rate: float, run: Any) -> Measure:
    records = min(records_of(context), round(rate * _LATENCY_SECONDS))

    def measure() -> Sample:
        with cluster.topic(TOPIC, PARTITIONS):
            performance: Performance = run(records)
            if performance.records_per_s < rate * 0.9:
                print(f"  only {performance.records_per_s:,.0f} of {rate:,.0f} records/s", flush=True)
            return Sample(figure=performance.p99_ms, answer=cluster.count(TOPIC))

    measure()
    return measure


def _run_ours(cluster: MillraceCluster, records: int, rate: float) -> Performance:
    command: list[str | Path] = [Path(sys.executable).parent / "millrace", "perf", "produce", "--topic", TOPIC]
    command += ["--num-records", str(records), *_PAYLOAD, "--throughput", f"{rate:.0f}", "-b", cluster.bootstrap]
    command += ["--warmup-records", str(records // 10)]
    for name, value in OPTIONS.items():
        command += ["-o", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS_MAX, check=False)
    found = _P99.findall(done.stdout)
    if done.returncode or not found:
        raise BenchmarkError(f"millrace perf produce failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    rate_reached, p99_ms = found[-1]
    return Performance(float(rate_reached), float(p99_ms))
