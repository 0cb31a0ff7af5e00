"""A tuned Kafka producer that fills topics with the data set.

The topics are those of either broker.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from confluent_kafka import KafkaError, Producer

from benchmarks import data
from benchmarks.ours import PARTITIONS
from benchmarks.workspace import BenchmarkError


def fill(bootstrap: str, topic: str, tables: Iterable[pa.Table], *, skewed: bool = False) -> None:
    """Produce the data set, keyed by word, with the partitioner and batch size of a tuned Java producer."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "partitioner": "murmur2_random",
            "batch.size": 262144,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262144,
            "log_level": 0,
        }
    )
    for chunk in tables:
        columns = [chunk[name].to_pylist() for name in ("key", "value", "timestamp")]
        # -1: by the key
        columns.append(data.skewed_partitions(chunk, PARTITIONS).tolist() if skewed else [-1] * len(chunk))
        for number, (key, value, timestamp, partition) in enumerate(zip(*columns, strict=True)):
            while True:
                try:
                    producer.produce(topic, value, key, partition, timestamp=timestamp, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
    producer.flush(120)
    if failures:
        raise BenchmarkError(f"{len(failures)} records were not written to {topic}, the first because of {failures[0]}")
