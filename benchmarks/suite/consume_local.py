"""Read 100-byte records to Arrow where the segments are on the same machine, against Kafka's ConsumerPerformance."""

from __future__ import annotations

from benchmarks import consume, ours
from benchmarks.harness import Benchmark, Durability, Side
from benchmarks.peers import kafka

BENCHMARK = Benchmark(
    name="consume_local",
    title="Consume 100-byte records from local segments, to Arrow",
    unit="records/s",
    target_ratio=10,
    durability=Durability.NOTHING_WRITTEN,
    ours=Side(
        what="Consumer.poll_table in a new group",
        settings=ours.SETTINGS + "; consumer defaults: segments that are here are mapped",
        open=lambda context: consume.open_ours(context, direct=True),
    ),
    peer=Side(
        what="ConsumerPerformance in a new group, nMsg.sec",
        settings=kafka.SETTINGS + "; the tool's defaults",
        open=consume.open_peer,
    ),
)
