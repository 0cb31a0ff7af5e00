"""Round trips of single records.

A record is sent, acknowledged and read before the next one. The round trips use our clients and Kafka's. Nothing is
batched, so the row shows the latency of a broker and its clients, not their throughput. Each side has one process for
all its runs. It makes 20,000 untimed round trips first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from benchmarks.ours import MillraceBroker
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.worker import Run, served, worker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Admin, Consumer, Producer

_TOPIC = "round-trips"
_COUNT = 10_000
_WARM_UP = 20_000
_SOURCE = Path(__file__).parent / "peers" / "java" / "RoundTrip.java"


def benchmark(name: str, *, title: str, percentile: int) -> Benchmark:
    """Make a benchmark of a percentile, 50 or 99, of the time from sending a record to having it read."""
    return Benchmark(
        name=name,
        title=title,
        unit="ms",
        higher_is_better=False,
        target_ratio=1 / 1.5,
        ours=Side(
            what="Producer().send(topic, value).result(), Consumer().poll()",
            settings=ours.SETTINGS + "; one partition, client defaults, acks=all",
            open=lambda context: open_ours(context, percentile),
        ),
        peer=Side(
            what="KafkaProducer.send(record).get(), KafkaConsumer.poll(), in Java, as Kafka's EndToEndLatency",
            settings=kafka.SETTINGS + "; one of its partitions, linger.ms=0, acks=all",
            open=lambda context: open_peer(context, context.kafka, percentile),
        ),
    )


@contextlib.contextmanager
def open_ours(context: Context, percentile: int) -> Iterator[Measure]:
    """Measure ``Producer.send(...).result()`` followed by ``Consumer.poll``.

    The figure is a percentile, 50 or 99, in ms.
    """
    arguments = {"bootstrap": context.millrace.bootstrap}
    with worker(context.workspace, "round-trips", "benchmarks.round_trips:serve", arguments) as run:
        yield lambda: Sample(figure=run()[f"p{percentile}_ms"], answer=_COUNT)


@contextlib.contextmanager
def open_peer(context: Context, broker: MillraceBroker | KafkaBroker, percentile: int) -> Iterator[Measure]:
    """Measure the same with Kafka's own clients, in Java."""
    with broker.topic(_TOPIC):
        run_of = java_round_trips(context, broker.bootstrap, sent_to=_TOPIC, read_from=_TOPIC)
        with run_of as run:
            yield lambda: Sample(figure=run()[f"p{percentile}_ns"] / 1e6, answer=_COUNT)


def java_round_trips(
    context: Context,
    bootstrap: str,
    *,
    sent_to: str,
    read_from: str,
    warm_up: int = _WARM_UP,
    count: int = _COUNT,
) -> AbstractContextManager[Run]:
    """Start Kafka's clients, which send a record to one topic and read it from another one, or from the same."""
    command = context.kafka.java(str(_SOURCE), bootstrap, sent_to, str(warm_up), str(count), read_from)
    return served(context.workspace, f"java-round-trips-{bootstrap}", command)


@contextlib.contextmanager
def serve(*, bootstrap: str) -> Iterator[Run]:
    """Run the worker."""
    value = b"x" * 100
    with Admin(bootstrap) as admin:
        admin.create_topic(_TOPIC, partitions=1)
        with Producer(bootstrap) as producer, Consumer({"bootstrap.servers": bootstrap}) as consumer:
            partitions = consumer.partitions_for(_TOPIC)
            consumer.assign(partitions)
            consumer.seek_to_end(*partitions)
            consumer.position(partitions[0])

            def trips(count: int) -> list[float]:
                taken = []
                for _ in range(count):
                    started = time.perf_counter()
                    producer.send(_TOPIC, value).result()
                    records = consumer.poll(60_000)
                    taken.append((time.perf_counter() - started) * 1000)
                    if len(records) != 1:
                        raise BenchmarkError(f"{len(records)} records were read after one was sent")
                return sorted(taken)

            trips(_WARM_UP)

            def run() -> dict[str, Any]:
                taken = trips(_COUNT)
                return {"p50_ms": taken[_COUNT // 2], "p99_ms": taken[int(_COUNT * 0.99)]}

            yield run
        admin.delete_topic(_TOPIC)
