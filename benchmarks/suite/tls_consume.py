"""Share of the throughput of consumers that TLS leaves.

The peer is the share that TLS leaves to Kafka's consumers.
"""

from __future__ import annotations

from benchmarks import tls

BENCHMARK = tls.consume_benchmark("tls_consume")
