"""Reads of row batches from either broker with Kafka's consumer.

The batches are stored as a Kafka producer sent them. The consumer is the one in Java.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from benchmarks import consume, kafka_clients
from benchmarks.harness import Context, Durability, Measure
from benchmarks.kafka_clients import Broker
from benchmarks.peers.kafka import KafkaBroker


def _open(context: Context, broker: Broker) -> AbstractContextManager[Measure]:
    if isinstance(broker, KafkaBroker):
        topic = broker.filled_topic(context.records)
    else:
        topic = broker.topic_filled_by_kafka_client(context.records)
    return consume.open_peer(context, broker, topic)


BENCHMARK = kafka_clients.benchmark(
    "kafka_consume",
    title="Kafka's consumer in Java, 100-byte records of a Kafka producer",
    client="KafkaConsumer.poll in a new group, of a topic that a Kafka producer filled",
    settings="consumer: the options of ConsumerPerformance, otherwise its defaults",
    target_ratio=0.8,
    durability=Durability.NOTHING_WRITTEN,
    open_on=_open,
)
