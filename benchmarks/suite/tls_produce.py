"""Share of the throughput of producers that TLS leaves, beside the share that it leaves to Kafka's."""

from __future__ import annotations

from benchmarks import tls

BENCHMARK = tls.produce_benchmark("tls_produce")
