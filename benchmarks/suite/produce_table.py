"""Writes of 100-byte records with ``Producer.send_table``.

The peer is Kafka's ProducerPerformance. Both are at their defaults.
"""

from __future__ import annotations

from benchmarks import ours, produce
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka

BENCHMARK = Benchmark(
    name="produce_table",
    title="Produce 100-byte records, both producers at their defaults",
    unit="records/s",
    target_ratio=3,
    ours=Side(
        what="Producer().send_table(topic, values), flush",
        settings=ours.SETTINGS + "; producer defaults, acks=all",
        open=produce.open_ours,
    ),
    peer=Side(
        what="ProducerPerformance --record-size 100 (random letters), after warm-up",
        settings=kafka.SETTINGS + "; producer defaults, acks=all",
        open=lambda context: produce.open_peer(context, json_payloads=False),
    ),
)
