"""Median round trip of a single record through either broker.

The clients are Kafka's in Java.
"""

from __future__ import annotations

from benchmarks import kafka_clients, round_trips

BENCHMARK = kafka_clients.benchmark(
    "kafka_latency",
    title="Kafka's clients in Java, median of unbatched round trips: send, acknowledgement, read",
    unit="ms",
    higher_is_better=False,
    client="KafkaProducer.send(record).get(), KafkaConsumer.poll(), as Kafka's EndToEndLatency",
    settings="one of the topic's partitions, linger.ms=0, acks=all",
    target_ratio=1 / 1.5,
    open_on=lambda context, broker: round_trips.open_peer(context, broker, percentile=50),
)
