"""Start of a broker with 2,000 partitions.

The start ends with the first acknowledged write. The broker was stopped cleanly. The time begins with the start of its
process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import NewTopic

from benchmarks import ours
from benchmarks.harness import Benchmark, Context, Measure, Side
from benchmarks.ours import MillraceBroker
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.suite.broker_start import measure_ours, measure_peer
from benchmarks.workspace import BenchmarkError
from millrace.clients import Producer

_TOPIC = "many"
_PARTITIONS = 2_000
_FILLED_SECONDS_MAX = 120


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    broker = MillraceBroker(context.workspace, "millrace-open", empty=True)
    with broker, broker.admin() as admin:
        admin.create_topic(_TOPIC, partitions=_PARTITIONS, configs=ours.TOPIC_CONFIGS)
        with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            for partition in range(_PARTITIONS):
                producer.send(_TOPIC, b"there", partition=partition)
    yield measure_ours(broker, _TOPIC)


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    broker = KafkaBroker(context.workspace, "kafka-open", empty=True)
    with broker:
        broker.admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])[_TOPIC].result(_FILLED_SECONDS_MAX)
        producer = KafkaProducer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for partition in range(_PARTITIONS):
            producer.produce(_TOPIC, b"there", partition=partition)
        if producer.flush(_FILLED_SECONDS_MAX):
            raise BenchmarkError(f"Kafka did not take a record for each of {_PARTITIONS} partitions")
    yield measure_peer(broker, _TOPIC)


BENCHMARK = Benchmark(
    name="broker_open",
    title="Start of a broker's process with 2,000 partitions, cleanly stopped, to its first acknowledged write",
    unit="s",
    higher_is_better=False,
    limit=5,
    ours=Side(what="millrace broker, then Producer.send", settings=ours.SETTINGS, open=_open_ours),
    peer=Side(what="kafka.Kafka, then confluent-kafka's Producer.produce", settings=kafka.SETTINGS, open=_open_peer),
)
