"""Writes of 100-byte records, one call each.

Our side is ``Producer.send``. The peer is confluent-kafka, whose producer is written in C.
"""

from __future__ import annotations

from benchmarks import ours, producers
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka

_RECORDS_MAX = 3_000_000

BENCHMARK = Benchmark(
    name="produce_record",
    title="Produce 100-byte records one by one, beside confluent-kafka",
    unit="records/s",
    target_ratio=0.5,
    ours=Side(
        what="Producer().send(topic, value) for each, flush",
        settings=ours.SETTINGS + "; producer defaults, acks=all",
        open=lambda context: producers.open_ours(context, _RECORDS_MAX),
    ),
    peer=Side(
        what="confluent_kafka.Producer().produce(topic, value) for each, flush",
        settings=kafka.SETTINGS + "; producer defaults, acks=all",
        open=lambda context: producers.open_peer(context, _RECORDS_MAX, "confluent"),
    ),
)
