"""99th percentile of the time from sending a record to having it read, one record at a time."""

from __future__ import annotations

from benchmarks import ours, round_trips
from benchmarks.harness import Benchmark, Side
from benchmarks.peers import kafka

BENCHMARK = Benchmark(
    name="latency_broker_p99",
    title="99th percentile of unbatched round trips: send, acknowledgement, read",
    unit="ms",
    higher_is_better=False,
    target_ratio=1 / 1.5,
    ours=Side(
        what="Producer().send(topic, value).result(), Consumer().poll()",
        settings=ours.SETTINGS + "; one partition, client defaults, acks=all",
        open=lambda context: round_trips.open_ours(context, 99),
    ),
    peer=Side(
        what="KafkaProducer.send(record).get(), KafkaConsumer.poll(), in Java, as Kafka's EndToEndLatency",
        settings=kafka.SETTINGS + "; one of its partitions, linger.ms=0, acks=all",
        open=lambda context: round_trips.open_peer(context, 99),
    ),
)
