"""Fetch of 2 GiB by an empty follower, on the leader's cores."""

from __future__ import annotations

from benchmarks import catch_up, clusters
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka_cluster

BENCHMARK = Benchmark(
    name="cluster_catch_up",
    title="A follower without data catches up with 2 GiB of four partitions, leader and follower on the same cores",
    unit="MB/s",
    limit=120,
    ours=Side(
        what="from the follower's first bytes to its last",
        settings=f"millrace, two of {clusters.SETTINGS}",
        open=catch_up.open_ours,
    ),
    peer=Side(
        what="from the follower's first bytes to its last",
        settings=f"two of {kafka_cluster.SETTINGS}",
        open=catch_up.open_peer,
    ),
)
