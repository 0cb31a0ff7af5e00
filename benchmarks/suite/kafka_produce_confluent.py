"""Writes of 100-byte records with confluent-kafka's ``produce``.

The producer is at its defaults, and writes to either broker.
"""

from __future__ import annotations

from benchmarks import kafka_clients, producers

_RECORDS_MAX = 5_000_000

BENCHMARK = kafka_clients.benchmark(
    "kafka_produce_confluent",
    title="confluent-kafka's producer, 100-byte records one by one",
    client="confluent_kafka.Producer().produce(topic, value) for each, flush",
    settings="producer defaults, acks=all",
    target_ratio=0.8,
    open_on=lambda context, broker: producers.open_peer(context, _RECORDS_MAX, "confluent", broker),
)
