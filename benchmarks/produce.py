"""Writes of values without keys by ``send_table`` and by Kafka's ProducerPerformance.

Our process is warm.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from benchmarks import data
from benchmarks.harness import Context, Measure, Sample
from benchmarks.ours import PARTITIONS, TOPIC_CONFIGS, MillraceBroker
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Admin, Producer

_TOPIC = "produced"
_PAYLOADS = 10_000
_TOOL = "org.apache.kafka.tools.ProducerPerformance"
_RUN_SECONDS_MAX = 600
_STEADY = re.compile(r"^\d+ steady state records sent, ([\d.]+) records/sec.* ([\d.]+) ms 99th", re.MULTILINE)


@contextlib.contextmanager
def open_ours(
    context: Context, *, broker: MillraceBroker | None = None, name: str = "producer", **options: object
) -> Iterator[Measure]:
    """Measure ``Producer(options).send_table`` of all records into a new topic, until all are acknowledged.

    ``name`` is that of the worker's log.
    """
    broker = broker or context.millrace
    arguments = {"bootstrap": broker.bootstrap, "topic": _TOPIC, "records": context.records, "options": options}
    with worker(context.workspace, name, "benchmarks.produce:serve", arguments) as run:

        def measure() -> Sample:
            with broker.topic(_TOPIC):
                seconds = run()["seconds"]
                return Sample(figure=context.records / seconds, answer=broker.count(_TOPIC))

        yield measure


@contextlib.contextmanager
def open_peer(
    context: Context,
    *,
    json_payloads: bool,
    options: Mapping[str, object] | None = None,
    broker: MillraceBroker | KafkaBroker | None = None,
    bootstrap: str = "",
) -> Iterator[Measure]:
    """Measure ProducerPerformance of all records into a new topic, after as many untimed ones, as on our side.

    Without a ``broker`` it produces to Kafka's. ``bootstrap`` is another listener than the broker's first one.
    """
    target = broker or context.kafka
    java = target.java if isinstance(target, KafkaBroker) else context.kafka.java
    payload = ["--record-size", str(data.RECORD_BYTES)]
    if json_payloads:
        payload = ["--payload-file", str(_payload_file(context.workspace.root / "payloads.txt"))]

    def measure() -> Sample:
        with target.topic(_TOPIC):
            address, records = bootstrap or target.bootstrap, context.records
            found = run_producer_performance(
                java(_TOOL), address, _TOPIC, records, payload, options or {}, warm_up=records
            )
            return Sample(figure=found.records_per_s, answer=target.count(_TOPIC) - context.records)

    measure()  # the broker is warm from here on
    yield measure


def producer_performance(
    broker: KafkaBroker, topic: str, records: int, payload: list[str], options: dict[str, Any], *, warm_up: int
) -> float:
    """Run Kafka's tool at full speed and return its records/s. ``warm_up`` more untimed records come before."""
    command = broker.java(_TOOL)
    found = run_producer_performance(command, broker.bootstrap, topic, records, payload, options, warm_up=warm_up)
    return found.records_per_s


class Performance(NamedTuple):
    """The figures of Kafka's producer benchmark or of ours.

    These are records/s, and the 99th percentile of acknowledgements.
    """

    records_per_s: float
    p99_ms: float


def run_producer_performance(
    command: Sequence[str | Path],
    bootstrap: str,
    topic: str,
    records: int,
    payload: list[str],
    options: Mapping[str, object],
    *,
    throughput: float = -1,
    warm_up: int,
) -> Performance:
    """Run Kafka's tool with ``command``. ``warm_up`` more records come before the measured ones."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(warm_up + records)]
    arguments += ["--throughput", f"{throughput:.0f}", "--reporting-interval", "600000"]
    arguments += ["--warmup-records", str(warm_up), *payload]
    arguments += ["--command-property", "acks=all", *(f"{name}={value}" for name, value in options.items())]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=_RUN_SECONDS_MAX, check=False)
    found = _STEADY.search(done.stdout)
    if done.returncode or not found:
        raise BenchmarkError(f"ProducerPerformance failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Performance(float(found[1]), float(found[2]))


@contextlib.contextmanager
def serve(*, bootstrap: str, topic: str, records: int, options: dict[str, Any]) -> Iterator[Run]:
    """Run the worker. The values are in memory, and one whole untimed run warms up code and broker."""
    table = pa.concat_tables(chunk.select(["value"]) for chunk in data.tables(records))

    def send(into: str, rows: pa.Table) -> float:
        producer = Producer({"bootstrap.servers": bootstrap, **options})
        try:
            started = time.perf_counter()
            producer.send_table(into, rows)
            producer.flush()
            return time.perf_counter() - started
        finally:
            producer.close()

    admin = Admin(bootstrap)
    warm_up = f"{topic}-warm-up"
    admin.create_topic(warm_up, partitions=PARTITIONS, configs=TOPIC_CONFIGS)
    send(warm_up, table)
    admin.delete_topic(warm_up)
    admin.close()
    yield lambda: {"seconds": send(topic, table)}


def _payload_file(path: Path) -> Path:
    values = data.table(0, _PAYLOADS)["value"].to_pylist()
    path.write_bytes(b"\n".join(values) + b"\n")
    return path
