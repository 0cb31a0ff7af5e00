"""Single commits of offsets from eight threads, each waited for."""

from __future__ import annotations

from benchmarks import commits, ours
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka

BENCHMARK = Benchmark(
    name="groups_commits",
    title="Commit offsets one by one, from 8 consumers",
    unit="commits/s",
    target_ratio=1,
    ours=Side(
        what="Consumer.commit in 8 threads, each a group of its own",
        settings=ours.SETTINGS,
        open=lambda context: commits.open_side(context, "ours"),
    ),
    peer=Side(
        what="confluent-kafka's commit(asynchronous=False) in 8 threads, each a group of its own",
        settings=kafka.SETTINGS,
        open=lambda context: commits.open_side(context, "peer"),
    ),
)
