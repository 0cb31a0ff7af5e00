"""Writes of 100-byte records with ``Producer.send_table``.

The peer is the best that ProducerPerformance does with JSON.
"""

from __future__ import annotations

from benchmarks import ours, produce
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka

BENCHMARK = Benchmark(
    name="produce_table_best",
    title="Produce 100-byte JSON records compressed with lz4, Kafka's producer at its best",
    unit="records/s",
    target_ratio=2,
    ours=Side(
        what='Producer({"compression.type": "lz4"}).send_table(topic, values), flush',
        settings=ours.SETTINGS + "; producer: lz4, otherwise its defaults, acks=all",
        open=lambda context: produce.open_ours(context, **{"compression.type": "lz4"}),
    ),
    peer=Side(
        what="ProducerPerformance --payload-file (10,000 of the same records, picked at random), after warm-up",
        settings=kafka.SETTINGS + "; producer: lz4, batch.size=131072, linger.ms=10, acks=all",
        open=lambda context: produce.open_peer(
            context,
            json_payloads=True,
            options={"compression.type": "lz4", "batch.size": 131072, "linger.ms": 10},
        ),
    ),
)
