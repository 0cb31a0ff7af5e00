"""Reads of 100-byte records to Arrow from segments on the machine.

The peer is Kafka's consumer.
"""

from __future__ import annotations

from benchmarks import consume

BENCHMARK = consume.benchmark(
    "consume_local", title="Consume 100-byte records from local segments, to Arrow", options={}, target_ratio=10
)
