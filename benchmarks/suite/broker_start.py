"""Start of a broker, up to its first acknowledged write.

The topic of the write exists. The time begins with the start of the broker's process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from confluent_kafka import Producer as KafkaProducer

from benchmarks import ours
from benchmarks.harness import Benchmark, Context, Measure, Sample, Side
from benchmarks.ours import MillraceBroker
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Producer

_TOPIC = "first-write"
_ACKNOWLEDGED_SECONDS_MAX = 60


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    broker = MillraceBroker(context.workspace, "millrace-start", empty=True)
    with broker:
        broker.create_topic(_TOPIC)
    yield measure_ours(broker, _TOPIC)


def measure_ours(broker: MillraceBroker, topic: str) -> Measure:
    """Start a broker that is down, write a record into an existing topic, and stop the broker."""

    def measure() -> Sample:
        started = time.perf_counter()
        broker.launch()
        try:
            broker.wait_until_ready()
            producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
            producer.send(topic, b"first").result(_ACKNOWLEDGED_SECONDS_MAX)
            seconds = time.perf_counter() - started
            producer.close()
            return Sample(figure=seconds)
        finally:
            broker.stop()

    return measure


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    broker = KafkaBroker(context.workspace, "kafka-start", empty=True)
    with broker:
        broker.create_topic(_TOPIC)
    yield measure_peer(broker, _TOPIC)


def measure_peer(broker: KafkaBroker, topic: str) -> Measure:
    """Measure the same for Kafka."""
    # The client tries to connect every few milliseconds, so that the wait for the broker costs almost nothing.
    options = {
        "bootstrap.servers": broker.bootstrap,
        "linger.ms": 0,
        "log_level": 0,
        "reconnect.backoff.ms": 5,
        "reconnect.backoff.max.ms": 10,
        "topic.metadata.refresh.fast.interval.ms": 10,
        "retry.backoff.ms": 10,
    }

    def measure() -> Sample:
        started = time.perf_counter()
        broker.launch()
        try:
            producer = KafkaProducer(options)
            producer.produce(topic, b"first")
            if producer.flush(_ACKNOWLEDGED_SECONDS_MAX):
                raise BenchmarkError("the Kafka broker did not acknowledge a record within a minute of its start")
            return Sample(figure=time.perf_counter() - started)
        finally:
            broker.stop()

    return measure


BENCHMARK = Benchmark(
    name="broker_start",
    title="Start of a broker's process to its first acknowledged write",
    unit="s",
    higher_is_better=False,
    limit=1,
    ours=Side(what="millrace broker, then Producer.send", settings=ours.SETTINGS, open=_open_ours),
    peer=Side(what="kafka.Kafka, then confluent-kafka's Producer.produce", settings=kafka.SETTINGS, open=_open_peer),
)
