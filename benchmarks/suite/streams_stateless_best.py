"""A filter and a computed value, beside Kafka Streams at its best.

Kafka Streams cuts the amount out of the JSON.
"""

from __future__ import annotations

from benchmarks import streams
from benchmarks.suite import streams_stateless

BENCHMARK = streams.benchmark(
    name="streams_stateless_best",
    title="Streams: filter and map, with expressions on a typed topic, Kafka Streams at its best",
    mode="stateless_cut",
    target_ratio=3,
    ours=streams_stateless.BENCHMARK.ours.what,
    peer=".mapValues(amount cut out of the JSON by its place).filter(>= 900).mapValues(* 1.19).foreach()",
    typed=True,
    batches="micro-batches of up to 10,000,000 records, the default where nothing is kept",
    tuned=True,
)

ours = streams_stateless.ours
