"""Writes to three brokers with acks=all, with and without 50 slow consumers.

The consumers do not read their answers.
"""

from __future__ import annotations

from benchmarks import cluster_produce, slow_consumers
from benchmarks.harness import Benchmark, Side

BENCHMARK = Benchmark(
    name="slow_consumers",
    title=f"Produce to three brokers with acks=all beside {slow_consumers.CONSUMERS} consumers that do not read",
    unit="records/s",
    target_ratio=0.95,
    ours=Side(
        what="Producer.send_table(topic, 1,024 values), flush, as in cluster_produce, beside "
        f"{slow_consumers.CONSUMERS} fetches of another topic whose answers nobody reads",
        settings=cluster_produce.OUR_SETTINGS + f"; consumers: fetch.max.bytes={slow_consumers.FETCH_BYTES}, "
        "connections with the smallest receive buffer, spread over the leaders",
        open=slow_consumers.open_with_consumers,
    ),
    peer=Side(
        what="millrace as well: the same on a cluster without those consumers",
        settings=cluster_produce.OUR_SETTINGS,
        open=slow_consumers.open_alone,
    ),
)
