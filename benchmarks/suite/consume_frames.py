"""Reads of 100-byte records to Arrow over TCP.

There are no direct reads. The peer is Kafka's consumer in Java.
"""

from __future__ import annotations

from benchmarks import consume

BENCHMARK = consume.benchmark(
    "consume_frames",
    title="Consume 100-byte records as frames over TCP, to Arrow",
    options={"direct.reads": "never"},
    target_ratio=2,
)
