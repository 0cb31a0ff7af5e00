"""Reads of 100-byte records to Arrow over gRPC.

There are no direct reads. The peer is Kafka's consumer in Java.
"""

from __future__ import annotations

from benchmarks import consume

BENCHMARK = consume.benchmark(
    "consume",
    title="Consume 100-byte records over gRPC, to Arrow",
    options={"direct.reads": "never", "transport": "grpc"},
    target_ratio=2,
)
