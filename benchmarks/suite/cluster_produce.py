"""Writes of 1 KiB records to three brokers with acks=all.

Our side is ``Producer.send_table``, and the peer is ProducerPerformance.
"""

from __future__ import annotations

from benchmarks import cluster_produce
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka_cluster

BENCHMARK = Benchmark(
    name="cluster_produce",
    title="Produce 1 KiB records to three brokers, acks=all, min.insync.replicas=2",
    unit="records/s",
    target_ratio=1,
    ours=Side(
        what="Producer.send_table(topic, 1,024 values), flush",
        settings=cluster_produce.OUR_SETTINGS,
        open=cluster_produce.open_ours,
    ),
    peer=Side(
        what="ProducerPerformance --record-size 1024, after warm-up",
        settings=kafka_cluster.SETTINGS + "; producer: batch.size=262144, linger.ms=5, acks=all",
        open=cluster_produce.open_peer,
    ),
)
