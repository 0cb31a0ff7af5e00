"""A rebalance of a thousand members, as bare requests to both coordinators."""

from __future__ import annotations

from benchmarks import group_members, ours
from benchmarks.harness import Benchmark, Durability, Side
from benchmarks.peers import kafka

BENCHMARK = Benchmark(
    name="groups_rebalance",
    title="Rebalance a group of 1,000 members",
    unit="seconds",
    higher_is_better=False,
    target_ratio=1,
    durability=Durability.NOT_SYNCED,
    ours=Side(
        what="1,000 members join again, until all have their assignment; bare frames, a connection for each",
        settings=ours.SETTINGS,
        open=lambda context: group_members.open_side(context, "ours"),
    ),
    peer=Side(
        what="the same in Kafka's protocol",
        settings=kafka.SETTINGS,
        open=lambda context: group_members.open_side(context, "peer"),
    ),
)
