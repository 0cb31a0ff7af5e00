"""Consuming the data set: ``poll_table`` in a warm process, and Kafka's ConsumerPerformance, each in a new group."""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Iterator

from benchmarks import ours
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Consumer

_RUN_SECONDS_MAX = 600
_COLUMNS = 10


def benchmark(name: str, *, title: str, options: dict[str, str], target_ratio: float) -> Benchmark:
    """Ours with these options of the consumer's beside its defaults, against Kafka's over the network."""
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
            + ("; consumer defaults" if options else "; consumer defaults: segments that are here are mapped"),
            open=lambda context: open_ours(context, options),
        ),
        peer=Side(
            what="ConsumerPerformance in a new group, nMsg.sec",
            settings=kafka.SETTINGS + "; the tool's defaults",
            open=open_peer,
        ),
    )


@contextlib.contextmanager
def open_ours(context: Context, options: dict[str, str]) -> Iterator[Measure]:
    """``poll_table`` of the whole topic, from joining a new group to the last record."""
    broker = context.millrace
    topic = broker.filled_topic(context.records, typed=False)
    arguments = {"bootstrap": broker.bootstrap, "topic": topic, "records": context.records, "options": options}
    with worker(context.workspace, "consumer", "benchmarks.consume:serve", arguments) as run:

        def measure() -> Sample:
            result = run()
            return Sample(figure=context.records / result["seconds"], answer=result["records"])

        yield measure


@contextlib.contextmanager
def serve(*, bootstrap: str, topic: str, records: int, options: dict[str, str]) -> Iterator[Run]:
    """The worker's part; one whole untimed run before, so that code, broker and page cache are warm."""

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

    read()
    yield read


@contextlib.contextmanager
def open_peer(context: Context) -> Iterator[Measure]:
    """ConsumerPerformance of the whole topic; its ``nMsg.sec``, which counts joining the group."""
    broker = context.kafka
    topic = broker.filled_topic(context.records)

    def measure() -> Sample:
        count, rate = consumer_performance(broker, topic, context.records)
        return Sample(figure=rate, answer=count)

    measure()  # the broker is warm from here on
    yield measure


def consumer_performance(broker: KafkaBroker, topic: str, records: int) -> tuple[int, float]:
    """Run Kafka's tool with its defaults and return how many records it read, and records/s."""
    command = broker.java("org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", broker.bootstrap)
    command += ["--topic", topic, "--messages", str(records), "--hide-header", "--timeout", "60000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS_MAX, check=False)
    for line in done.stdout.splitlines():
        figures = line.split(", ")
        if len(figures) == _COLUMNS:
            return int(figures[4]), float(figures[5])
    raise BenchmarkError(f"ConsumerPerformance failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
