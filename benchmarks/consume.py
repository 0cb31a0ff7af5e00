"""Reads of the data set by ``poll_table`` and by Kafka's consumer.

Each runs in a warm process, and each run uses a new group.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import ours
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.ours import MillraceBroker
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.worker import Run, served, worker
from millrace.clients import Consumer

_WARM_UP_SECONDS = 30
_SOURCE = Path(__file__).parent / "peers" / "java" / "Consume.java"


def benchmark(name: str, *, title: str, options: dict[str, str], target_ratio: float) -> Benchmark:
    """Make a benchmark of our consumer, with ``options`` beside its defaults, and Kafka's over the network."""
    given = "".join(f", {option}={value}" for option, value in options.items())
    return Benchmark(
        name=name,
        title=title,
        unit="records/s",
        target_ratio=target_ratio,
        durability=Durability.NOTHING_WRITTEN,
        ours=Side(
            what=f"Consumer.poll_table in a new group{given}",
            settings=ours.SETTINGS
            + (
                f"; consumer:{given[1:]}, otherwise its defaults"
                if options
                else "; consumer defaults: it maps segments"
            ),
            open=lambda context: open_ours(context, options),
        ),
        peer=Side(
            what="KafkaConsumer.poll in a new group, in Java",
            settings=kafka.SETTINGS + "; consumer: the options of ConsumerPerformance, otherwise its defaults",
            open=lambda context: open_peer(context, context.kafka, context.kafka.filled_topic(context.records)),
        ),
    )


@contextlib.contextmanager
def open_ours(
    context: Context, options: dict[str, str], *, broker: MillraceBroker | None = None, name: str = "consumer"
) -> Iterator[Measure]:
    """Measure ``poll_table`` of the whole topic, from joining a new group to the last record.

    ``name`` is that of the worker's log.
    """
    broker = broker or context.millrace
    topic = broker.filled_topic(context.records, typed=False)
    arguments = {"bootstrap": broker.bootstrap, "topic": topic, "records": context.records, "options": options}
    with worker(context.workspace, name, "benchmarks.consume:serve", arguments) as run:

        def measure() -> Sample:
            result = run()
            return Sample(figure=context.records / result["seconds"], answer=result["records"])

        yield measure


@contextlib.contextmanager
def serve(*, bootstrap: str, topic: str, records: int, options: dict[str, str]) -> Iterator[Run]:
    """Run the worker. Whole untimed runs come first, so that code, broker and page cache are warm."""

    def read() -> dict[str, float]:
        config = {
            "bootstrap.servers": bootstrap,
            "group.id": f"read-{random.getrandbits(40)}",
            "auto.offset.reset": "earliest",
            **options,
        }
        with Consumer(config) as consumer:
            started = time.perf_counter()
            consumer.subscribe(topic)
            seen = 0
            while seen < records:
                seen += consumer.poll_table(1000).num_rows
            return {"seconds": time.perf_counter() - started, "records": seen}

    started = time.monotonic()
    while time.monotonic() - started < _WARM_UP_SECONDS:
        read()
    yield read


@contextlib.contextmanager
def open_peer(
    context: Context,
    broker: MillraceBroker | KafkaBroker,
    topic: str,
    *,
    options: Mapping[str, str] | None = None,
    bootstrap: str = "",
) -> Iterator[Measure]:
    """Consume a whole topic by Kafka's consumer, from joining a new group to the last record, in a warm JVM.

    ``bootstrap`` is another listener than the broker's first one.
    """
    arguments = [str(_SOURCE), bootstrap or broker.bootstrap, topic, str(context.records), str(_WARM_UP_SECONDS)]
    arguments += [f"{option}={value}" for option, value in (options or {}).items()]
    command = (broker if isinstance(broker, KafkaBroker) else context.kafka).java(*arguments)
    name = f"java-consumer-{type(broker).__name__}{'-with-options' if options else ''}"
    with served(context.workspace, name, command) as run:

        def measure() -> Sample:
            result = run()
            return Sample(figure=context.records / (result["nanoseconds"] / 1e9), answer=result["records"])

        yield measure
