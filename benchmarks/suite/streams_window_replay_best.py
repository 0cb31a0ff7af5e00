"""Windowed count over all retained records, beside Kafka Streams at its best."""

from __future__ import annotations

from benchmarks import streams
from benchmarks.suite import streams_window_replay

BENCHMARK = streams.benchmark(
    name="streams_window_replay_best",
    title="Streams: count per key and minute, replayed as a batch, Kafka Streams at its best",
    mode="window",
    target_ratio=5,
    ours=streams_window_replay.BENCHMARK.ours.what,
    peer=streams_window_replay.BENCHMARK.peer.what,
    batches="one bounded run",
    tuned=True,
)

ours = streams_window_replay.ours
