"""Writes of 100-byte records with Kafka's ProducerPerformance in Java.

The producer is at its defaults, and writes to either broker.
"""

from __future__ import annotations

from benchmarks import kafka_clients, produce

BENCHMARK = kafka_clients.benchmark(
    "kafka_produce",
    title="Kafka's producer in Java, 100-byte records, at its defaults",
    client="ProducerPerformance --record-size 100 (random letters), after warm-up",
    settings="producer defaults (batch.size=16384, linger.ms=5), acks=all",
    target_ratio=0.8,
    open_on=lambda context, broker: produce.open_peer(context, json_payloads=False, broker=broker),
)
