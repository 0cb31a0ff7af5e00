"""Private memory of a broker that receives and returns all records."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import machine, ours, produce
from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from benchmarks.ours import MillraceBroker
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.worker import Run, worker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Consumer, TopicPartition

_TOPIC = "memory"
_SAMPLE_SECONDS = 0.25
_POLL_MS = 1000
_RUN_SECONDS_MAX = 600


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    def measure() -> Sample:
        with MillraceBroker(context.workspace, "millrace-memory", empty=True) as broker:
            broker.create_topic(_TOPIC)
            arguments = {"bootstrap": broker.bootstrap, "topic": _TOPIC, "records": context.records}
            with (
                worker(context.workspace, "producer", "benchmarks.produce:serve", arguments | {"options": {}}) as write,
                worker(context.workspace, "consumer", f"{__name__}:serve_consumer", arguments) as read,
            ):
                peak = _peak_mb(broker.process, broker.data, lambda: (write(), read()))
            return Sample(figure=peak, answer=broker.count(_TOPIC))

    yield measure


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    def measure() -> Sample:
        with KafkaBroker(context.workspace, "kafka-memory", empty=True, heap=kafka.HEAP_SMALL) as broker:
            broker.create_topic(_TOPIC)

            def write_and_read() -> None:
                warm_up = context.records // 10
                payload = ["--record-size", "100"]
                produce.producer_performance(broker, _TOPIC, context.records - warm_up, payload, {}, warm_up=warm_up)
                command = broker.java("org.apache.kafka.tools.ConsumerPerformance", "--topic", _TOPIC)
                command += ["--bootstrap-server", broker.bootstrap, "--num-records", str(context.records)]
                subprocess.run(command, capture_output=True, check=True, timeout=_RUN_SECONDS_MAX)

            peak = _peak_mb(broker.process, broker.data, write_and_read)
            return Sample(figure=peak, answer=broker.count(_TOPIC))

    yield measure


@contextlib.contextmanager
def serve_consumer(*, bootstrap: str, topic: str, records: int) -> Iterator[Run]:
    """Run the worker, which reads every record of the topic once over the network."""

    def run() -> dict[str, Any]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"})
        try:
            consumer.assign([TopicPartition(topic, number) for number in range(ours.PARTITIONS)])
            seen = 0
            while seen < records:
                table = consumer.poll_table(_POLL_MS)
                if table is None or not table.num_rows:
                    raise BenchmarkError(f"the topic ended after {seen} of {records} records")
                seen += table.num_rows
            return {"records": seen}
        finally:
            consumer.close()

    yield run


def _peak_mb(process: subprocess.Popen[str] | None, folder: Path, action: Callable[[], object]) -> float:
    """Return the highest private memory of the process, in MB, sampled while the action runs."""
    assert process
    pid, samples, done = process.pid, [machine.private_bytes(process.pid, folder)], threading.Event()

    def sample() -> None:
        while not done.wait(_SAMPLE_SECONDS):
            samples.append(machine.private_bytes(pid, folder))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        action()
    finally:
        done.set()
        sampler.join()
    return max(samples) / 1e6


BENCHMARK = Benchmark(
    name="broker_memory",
    title="Peak private memory of a broker while all records are written and read back over the network",
    unit="MB",
    higher_is_better=False,
    limit=300,
    ours=Side(
        what="Producer.send_table of all records, then Consumer.poll_table until the end",
        settings=ours.SETTINGS,
        open=_open_ours,
    ),
    peer=Side(
        what="ProducerPerformance, then ConsumerPerformance",
        settings=kafka.settings(kafka.HEAP_SMALL),
        open=_open_peer,
    ),
)
