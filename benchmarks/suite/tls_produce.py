"""Share of the throughput of producers that TLS leaves.

The peer is the share that TLS leaves to Kafka's producers.
"""

from __future__ import annotations

from benchmarks import tls

BENCHMARK = tls.produce_benchmark("tls_produce")
