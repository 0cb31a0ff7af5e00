"""Read 100-byte records to Arrow over gRPC, against Kafka's ConsumerPerformance, each with its defaults."""

from __future__ import annotations

from benchmarks import consume, ours
from benchmarks.harness import Benchmark, Durability, Side
from benchmarks.peers import kafka

BENCHMARK = Benchmark(
    name="consume",
    title="Consume 100-byte records over the network, to Arrow",
    unit="records/s",
    target_ratio=2,
    durability=Durability.NOTHING_WRITTEN,
    ours=Side(
        what="Consumer.poll_table in a new group, direct.reads=never",
        settings=ours.SETTINGS + "; consumer defaults",
        open=lambda context: consume.open_ours(context, direct=False),
    ),
    peer=Side(
        what="ConsumerPerformance in a new group, nMsg.sec",
        settings=kafka.SETTINGS + "; the tool's defaults",
        open=consume.open_peer,
    ),
)
