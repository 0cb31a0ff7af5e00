"""The catch-up of a follower with an empty disk.

The follower fetches a topic from its leader. The figure is bytes per second, with both brokers on the same cores.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer as KafkaProducer

from benchmarks.clusters import Cluster, MillraceCluster
from benchmarks.harness import Context, Measure, Sample
from benchmarks.peers.kafka_cluster import KafkaCluster
from benchmarks.workspace import BenchmarkError
from millrace.clients import Producer

BROKERS = (1, 2)
TOPIC = "followed"
PARTITIONS = 4
RECORD_BYTES = 1024
CONFIGS = {"min_insync_replicas": "1"}
OPTIONS = {"batch.size": 262144, "linger.ms": 10, "acks": "all"}
_LOOK_S = 0.01


def records_of(context: Context) -> int:
    """Return a fifth of the data set's number of records, which is 2 GiB in records of 1 KiB."""
    return max(context.records // 5, 20_000)


@contextlib.contextmanager
def open_ours(context: Context) -> Iterator[Measure]:
    """Start two brokers with a filled topic."""
    records = records_of(context)
    with MillraceCluster(context.workspace, brokers=BROKERS) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, factor=2, **CONFIGS)
        with Producer({"bootstrap.servers": cluster.bootstrap, **OPTIONS}) as producer:
            value = bytes(RECORD_BYTES)
            for _ in range(records):
                producer.send(TOPIC, value)
        yield _measuring(cluster, records)


@contextlib.contextmanager
def open_peer(context: Context) -> Iterator[Measure]:
    """Start the same with Kafka."""
    records = records_of(context)
    with KafkaCluster(context.workspace, brokers=BROKERS) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS, factor=2, **CONFIGS)
        producer = KafkaProducer({"bootstrap.servers": cluster.bootstrap, "log_level": 0, **OPTIONS})
        value = bytes(RECORD_BYTES)
        for _ in range(records):
            while True:
                try:
                    producer.produce(TOPIC, value)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        if producer.flush(300):
            raise BenchmarkError("Kafka did not take all records")
        yield _measuring(cluster, records)


def _measuring(cluster: Cluster, records: int) -> Measure:
    if cluster.count(TOPIC) != records:
        raise BenchmarkError(f"{TOPIC} holds {cluster.count(TOPIC)} records instead of {records}")
    leader, follower = BROKERS

    def measure() -> Sample:
        cluster.wait_until_in_sync(TOPIC, len(BROKERS))
        cluster.stop(follower)
        cluster.wipe(follower)
        wanted_bytes = _log_bytes(cluster.data(leader))
        cluster.launch(follower)
        cluster.wait_until("first records", lambda: _log_bytes(cluster.data(follower)) > 0, every_s=_LOOK_S)
        started, before = time.perf_counter(), _log_bytes(cluster.data(follower))
        cluster.wait_until(
            "the last record", lambda: _log_bytes(cluster.data(follower)) >= wanted_bytes, every_s=_LOOK_S
        )
        seconds = time.perf_counter() - started
        return Sample(figure=(wanted_bytes - before) / 1e6 / seconds)

    return measure


def _log_bytes(data: Path) -> int:
    """Return the bytes of the topic's segments in a broker's folder. Both sides use the same file names."""
    return sum(path.stat().st_size for path in data.glob(f"{TOPIC}-*/*.log"))
