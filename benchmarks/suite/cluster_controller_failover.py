"""Failover of the controller, until 2,000 partitions have other leaders.

The controller is killed with kill -9. It leads a third of the partitions.
"""

from __future__ import annotations

from benchmarks import clusters, failover
from benchmarks.clusters import MillraceCluster
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka_cluster
from benchmarks.peers.kafka_cluster import KafkaCluster

BENCHMARK = Benchmark(
    name="cluster_controller_failover",
    title="kill -9 of the controller until all of 2,000 partitions are led",
    unit="s",
    higher_is_better=False,
    limit=clusters.SESSION_MS / 1000 + 5,  # 5 s after the timeout of the controller's session
    ours=Side(
        what="Admin.describe_topic of 2,000 partitions, until none has the dead leader",
        settings=f"millrace, {clusters.SETTINGS}",
        open=lambda context: failover.open_controller(
            MillraceCluster(context.workspace), failover.partitions_of(context)
        ),
    ),
    peer=Side(
        what="AdminClient.list_topics of 2,000 partitions, until none has the dead leader",
        settings=kafka_cluster.SETTINGS,
        open=lambda context: failover.open_controller(KafkaCluster(context.workspace), failover.partitions_of(context)),
    ),
)
