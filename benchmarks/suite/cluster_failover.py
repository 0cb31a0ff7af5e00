"""Failover of a partition's leader, until the next acknowledged write (acks=all).

The leader is killed with kill -9 during the writes of a producer.
"""

from __future__ import annotations

from benchmarks import clusters, failover
from benchmarks.clusters import MillraceCluster
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka_cluster
from benchmarks.peers.kafka_cluster import KafkaCluster

BENCHMARK = Benchmark(
    name="cluster_failover",
    title="kill -9 of a leader to the next acknowledged write, equal session time-outs",
    unit="s",
    higher_is_better=False,
    target_ratio=1,
    ours=Side(
        what="Producer.send of one record every 10 ms",
        settings=f"millrace, {clusters.SETTINGS}; producer: linger.ms=0, acks=all, otherwise its defaults",
        open=lambda context: failover.open_ours(MillraceCluster(context.workspace)),
    ),
    peer=Side(
        what="confluent-kafka's Producer.produce of one record every 10 ms",
        settings=kafka_cluster.SETTINGS + "; producer: linger.ms=0, acks=all, idempotent, otherwise its defaults",
        open=lambda context: failover.open_peer(KafkaCluster(context.workspace)),
    ),
)
