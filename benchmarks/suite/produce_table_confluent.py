"""Writes of 100-byte records with ``Producer.send_table``.

The peer is confluent-kafka's ``produce``, as Python programs choose.
"""

from __future__ import annotations

from benchmarks import ours, produce, producers
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka

_RECORDS_MAX = 10_000_000

BENCHMARK = Benchmark(
    name="produce_table_confluent",
    title="Produce 100-byte records as a table, beside confluent-kafka one by one",
    unit="records/s",
    target_ratio=1.7,
    ours=Side(
        what="Producer().send_table(topic, values), flush",
        settings=ours.SETTINGS + "; producer defaults, acks=all",
        open=produce.open_ours,
    ),
    peer=Side(
        what="confluent_kafka.Producer().produce(topic, value) for each, flush",
        settings=kafka.SETTINGS + "; producer defaults, acks=all",
        open=lambda context: producers.open_peer(context, _RECORDS_MAX, "confluent"),
    ),
)
