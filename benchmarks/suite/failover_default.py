"""Failover of a partition's leader with brokers and producers at their defaults.

The leader is killed with kill -9. The time ends with the next acknowledged write.
"""

from __future__ import annotations

from benchmarks import failover
from benchmarks.clusters import MillraceCluster
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka_cluster
from benchmarks.peers.kafka_cluster import KRaftCluster

BENCHMARK = Benchmark(
    name="failover_default",
    title="kill -9 of a leader to the next acknowledged write, both sides at their defaults",
    unit="s",
    higher_is_better=False,
    target_ratio=3,
    ours=Side(
        what="Producer.send of one record every 10 ms",
        settings="millrace, three brokers on ZooKeeper, otherwise its defaults; nobody waits for fsync; "
        "topic: replication factor 3; its leader may be the controller; "
        "producer: linger.ms=0, otherwise its defaults (acks=all)",
        open=lambda context: failover.open_ours(MillraceCluster(context.workspace, "millrace-defaults", common={})),
    ),
    peer=Side(
        what="confluent-kafka's Producer.produce of one record every 10 ms",
        settings=f"{kafka_cluster.DEFAULT_SETTINGS}; nobody waits for fsync; topic: replication factor 3; "
        "producer: linger.ms=0, idempotent, otherwise its defaults (acks=all)",
        open=lambda context: failover.open_peer(KRaftCluster(context.workspace)),
    ),
)
