"""Reads of columnar batches with Kafka's consumer in Java.

The broker converts the batches to rows.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from benchmarks import consume, kafka_clients
from benchmarks.harness import Context, Durability, Measure
from benchmarks.kafka_clients import Broker


def _open(context: Context, broker: Broker) -> AbstractContextManager[Measure]:
    return consume.open_peer(context, broker, broker.filled_topic(context.records))


BENCHMARK = kafka_clients.benchmark(
    "kafka_consume_columnar",
    title="Kafka's consumer in Java, 100-byte records of columnar batches",
    client="KafkaConsumer.poll in a new group, of a topic that each side's own producer filled",
    settings="consumer: the options of ConsumerPerformance, otherwise its defaults",
    target_ratio=0.5,
    durability=Durability.NOTHING_WRITTEN,
    open_on=_open,
)
