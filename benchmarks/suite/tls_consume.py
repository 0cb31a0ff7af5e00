"""Share of the throughput of consumers that TLS leaves, beside the share that it leaves to Kafka's."""

from __future__ import annotations

from benchmarks import tls

BENCHMARK = tls.consume_benchmark("tls_consume")
