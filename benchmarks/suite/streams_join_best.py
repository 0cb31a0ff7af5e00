"""Join of each record with a table's row.

The peer is Kafka Streams at its best.
"""

from __future__ import annotations

from benchmarks import streams
from benchmarks.suite import streams_join

BENCHMARK = streams.benchmark(
    name="streams_join_best",
    title="Streams: stream joined with a table of ten thousand rows, Kafka Streams at its best",
    mode="join",
    target_ratio=1.5,
    ours=streams_join.BENCHMARK.ours.what,
    peer=streams_join.BENCHMARK.peer.what,
    batches="micro-batches of up to 4,000,000 records, the default",
    tuned=True,
)

ours = streams_join.ours
