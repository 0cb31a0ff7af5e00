"""Writes of 100-byte records, one call each, against kafka-python.

Our side is ``Producer.send``. Kafka-python is Python as well.
"""

from __future__ import annotations

from benchmarks import ours, producers
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka

_RECORDS_MAX = 300_000

BENCHMARK = Benchmark(
    name="produce_record_kafka_python",
    title="Produce 100-byte records one by one, beside kafka-python",
    unit="records/s",
    target_ratio=10,
    ours=Side(
        what="Producer().send(topic, value) for each, flush",
        settings=ours.SETTINGS + "; producer defaults, acks=all",
        open=lambda context: producers.open_ours(context, _RECORDS_MAX),
    ),
    peer=Side(
        what="kafka.KafkaProducer().send(topic, value) for each, flush",
        settings=kafka.SETTINGS + "; producer defaults, acks=all",
        open=lambda context: producers.open_peer(context, _RECORDS_MAX, "kafka_python"),
    ),
)
