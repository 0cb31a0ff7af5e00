"""Writes of single records by ``Producer.send`` and by Kafka clients in Python.

Each producer runs in a warm process of its own, after one whole untimed run. The values are in memory before the clock
starts. The clock stops when the last record is acknowledged.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import data
from benchmarks.harness import Context, Measure, Sample
from benchmarks.ours import PARTITIONS, TOPIC_CONFIGS, MillraceBroker
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.worker import Run, worker

_TOPIC = "produced-one-by-one"
_WARM_UP = "warm-up"
_FLUSH_SECONDS_MAX = 300


@contextlib.contextmanager
def open_ours(context: Context, records_max: int) -> Iterator[Measure]:
    """Measure ``send`` of each record into a new topic, then ``flush``."""
    broker = context.millrace
    records = min(context.records, records_max)
    arguments = {"bootstrap": broker.bootstrap, "records": records}
    with worker(context.workspace, "sender", "benchmarks.producers:serve_ours", arguments) as run:

        def measure() -> Sample:
            with broker.topic(_TOPIC):
                return Sample(figure=records / run()["seconds"], answer=broker.count(_TOPIC))

        yield measure


@contextlib.contextmanager
def open_peer(
    context: Context, records_max: int, client: str, broker: MillraceBroker | KafkaBroker | None = None
) -> Iterator[Measure]:
    """Measure the same with a Kafka client, ``confluent`` or ``kafka_python``, at its defaults and acks=all.

    Without a ``broker`` it produces to Kafka's.
    """
    broker = broker or context.kafka
    records = min(context.records, records_max)
    arguments = {"bootstrap": broker.bootstrap, "records": records}
    with (
        broker.topic(_WARM_UP),
        worker(
            context.workspace, f"{client}-{type(broker).__name__}", f"benchmarks.producers:serve_{client}", arguments
        ) as run,
    ):

        def measure() -> Sample:
            with broker.topic(_TOPIC):
                return Sample(figure=records / run()["seconds"], answer=broker.count(_TOPIC))

        yield measure


def _values(records: int) -> list[bytes]:
    chunks = (chunk["value"].to_pylist() for chunk in data.tables(records))
    return list(itertools.islice(itertools.chain.from_iterable(chunks), records))


def _timed(send_all: Callable[[str, Sequence[bytes]], None], values: Sequence[bytes]) -> Run:
    send_all(_WARM_UP, values)

    def run() -> dict[str, Any]:
        started = time.perf_counter()
        send_all(_TOPIC, values)
        return {"seconds": time.perf_counter() - started}

    return run


@contextlib.contextmanager
def serve_ours(*, bootstrap: str, records: int) -> Iterator[Run]:
    """Run the worker of our side."""
    from millrace.clients import Admin, Producer

    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topic(_WARM_UP, partitions=PARTITIONS, configs=TOPIC_CONFIGS)
        send = producer.send

        def send_all(topic: str, values: Sequence[bytes]) -> None:
            for value in values:
                send(topic, value)
            producer.flush(_FLUSH_SECONDS_MAX)

        run = _timed(send_all, _values(records))
        admin.delete_topic(_WARM_UP)
        yield run


@contextlib.contextmanager
def serve_confluent(*, bootstrap: str, records: int) -> Iterator[Run]:
    """Run the worker of confluent-kafka's ``produce``, whose queue is full now and then."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    produce = producer.produce

    def send_all(topic: str, values: Sequence[bytes]) -> None:
        for value in values:
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.flush(_FLUSH_SECONDS_MAX)

    yield _timed(send_all, _values(records))


@contextlib.contextmanager
def serve_kafka_python(*, bootstrap: str, records: int) -> Iterator[Run]:
    """Run the worker of kafka-python's ``send``."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")

    def send_all(topic: str, values: Sequence[bytes]) -> None:
        for value in values:
            producer.send(topic, value)
        producer.flush(_FLUSH_SECONDS_MAX)

    try:
        yield _timed(send_all, _values(records))
    finally:
        producer.close()
