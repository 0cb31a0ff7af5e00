"""Writes of 100-byte records in large compressed batches to either broker.

The producer is Kafka's ProducerPerformance in Java.
"""

from __future__ import annotations

from benchmarks import kafka_clients, produce

_OPTIONS = {"compression.type": "lz4", "batch.size": 65536}

BENCHMARK = kafka_clients.benchmark(
    "kafka_produce_best",
    title="Kafka's producer in Java, 100-byte records, batches of 64 KiB with lz4",
    client="ProducerPerformance --payload-file (10,000 JSON records, picked at random), after warm-up",
    settings="producer: lz4, batch.size=65536, otherwise its defaults, acks=all",
    target_ratio=1,
    open_on=lambda context, broker: produce.open_peer(context, json_payloads=True, broker=broker, options=_OPTIONS),
)
