"""99th percentile of acknowledgements at half of Kafka's full speed.

Writes use acks=all, with three replicas.
"""

from __future__ import annotations

from benchmarks import cluster_produce
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka_cluster

BENCHMARK = Benchmark(
    name="cluster_produce_p99",
    title="Acknowledgement of 1 KiB records by three brokers at half of Kafka's full speed, 99th percentile",
    unit="ms",
    higher_is_better=False,
    target_ratio=1 / 1.5,
    ours=Side(
        what="millrace perf produce --throughput (half of what Kafka's side reaches), record by record",
        settings=cluster_produce.OUR_SETTINGS,
        open=cluster_produce.open_ours_at_half_load,
    ),
    peer=Side(
        what="ProducerPerformance --throughput (the same), after warm-up",
        settings=kafka_cluster.SETTINGS + "; producer: batch.size=262144, linger.ms=5, acks=all",
        open=cluster_produce.open_peer_at_half_load,
    ),
)
