"""Windowed count of a million keys."""

from __future__ import annotations

from benchmarks import streams
from benchmarks.suite import streams_window

BENCHMARK = streams.benchmark(
    name="streams_window_1m_keys",
    title="Streams: count per key and minute, a million keys",
    mode="window",
    target_ratio=1,
    ours='run_stream: group_by_key().windowed_by(1 min, grace 30 min).count(emit="last")',
    peer=".groupByKey().windowedBy(1 min, grace 30 min).aggregate(+1).toStream().foreach()",
    words=streams.KEYS_MANY,
)

ours = streams_window.ours
