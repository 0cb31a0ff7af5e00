"""Compaction of 1 KiB records with a million keys, on one thread.

Records are written into a topic that keeps everything. Then the topic becomes compacted, and the cleaner processes all
of it at once. Each broker's cleaner logs its speed: the bytes of the log that it processed and the time for it. It
reads the keys, and then copies the remaining records.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from benchmarks import ours
from benchmarks.harness import Benchmark, Context, Durability, Measure, Sample, Side
from benchmarks.ours import MillraceBroker
from benchmarks.peers import kafka
from benchmarks.peers.kafka import KafkaBroker
from benchmarks.workspace import BenchmarkError
from millrace.clients import Producer

_KEYS = 1_000_000
_RECORDS_MAX = 1_500_000
_CHUNK_RECORDS = 50_000
_VALUE_BYTES = 1000
_CLEANED_SECONDS_MAX = 300
_DELETE = {"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": str(256 * 2**20)}
_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
_OURS_SAID = re.compile(r"cleaned (\S+)-0 up to offset .* ([\d.]+) MB/s")
_KAFKA_SAID = re.compile(r"cleaned log (\S+)-0 .*?processed in [\d.,]+ seconds \(([\d.,]+) MB/sec\)", re.DOTALL)


def _records(count: int) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield keys in random order, a chunk at a time, and a value that does not compress."""
    generator = np.random.default_rng(7)
    value = generator.bytes(_VALUE_BYTES)
    for first in range(0, count, _CHUNK_RECORDS):
        numbers = generator.integers(0, _KEYS, min(_CHUNK_RECORDS, count - first))
        yield [b"key-%012d" % number for number in numbers.tolist()], value


def _wait_for(said: re.Pattern[str], topic: str, log: Path, from_byte: int) -> float:
    """Return the speed that a cleaner wrote into a broker's log, in MB/s."""
    deadline = time.monotonic() + _CLEANED_SECONDS_MAX
    while time.monotonic() < deadline:
        with log.open("rb") as file:
            file.seek(from_byte)
            for found in said.finditer(file.read().decode("utf-8", "replace")):
                if found[1] == topic:
                    return float(found[2].replace(",", ""))
        time.sleep(0.2)
    raise BenchmarkError(f"{topic} was not cleaned within {_CLEANED_SECONDS_MAX} s: see {log}")


def _measure(
    records: int, log: Path, said: re.Pattern[str], fill: Callable[[str, int], None], compact: Callable[[str], None]
) -> Measure:
    numbers = iter(range(1_000_000))

    def measure() -> Sample:
        topic = f"compaction-{next(numbers)}"
        fill(topic, records)
        from_byte = log.stat().st_size
        compact(topic)
        return Sample(figure=_wait_for(said, topic, log, from_byte))

    return measure


@contextlib.contextmanager
def _open_ours(context: Context) -> Iterator[Measure]:
    with MillraceBroker(context.workspace, "millrace-compaction", empty=True) as broker, broker.admin() as admin:

        def fill(topic: str, records: int) -> None:
            admin.create_topic(topic, partitions=1, configs=_DELETE)
            with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
                for keys, value in _records(records):
                    columns = {"key": pa.array(keys, pa.binary()), "value": pa.array([value] * len(keys), pa.binary())}
                    producer.send_table(topic, pa.table(columns))

        def compact(topic: str) -> None:
            admin.alter_configs(topic, _COMPACT)

        log = context.workspace.log("millrace-compaction")
        yield _measure(min(context.records, _RECORDS_MAX), log, _OURS_SAID, fill, compact)


@contextlib.contextmanager
def _open_peer(context: Context) -> Iterator[Measure]:
    with KafkaBroker(context.workspace, "kafka-compaction", empty=True) as broker:

        def fill(topic: str, records: int) -> None:
            broker.admin.create_topics([NewTopic(topic, 1, 1, config=_DELETE)])[topic].result(30)
            options = {"bootstrap.servers": broker.bootstrap, "batch.size": 2**20, "linger.ms": 20, "log_level": 0}
            producer = KafkaProducer(options | {"queue.buffering.max.messages": 2 * _CHUNK_RECORDS})
            for keys, value in _records(records):
                for key in keys:
                    producer.produce(topic, value, key)
                if producer.flush(60):
                    raise BenchmarkError("Kafka did not acknowledge all records within a minute")

        def compact(topic: str) -> None:
            resource = ConfigResource(ResourceType.TOPIC, topic)
            for name, value in _COMPACT.items():
                resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
            broker.admin.incremental_alter_configs([resource])[resource].result(30)

        log = context.workspace.log("kafka-compaction")
        yield _measure(min(context.records, _RECORDS_MAX), log, _KAFKA_SAID, fill, compact)


BENCHMARK = Benchmark(
    name="compaction",
    title="Compaction of 1 KiB records with a million keys, one cleaner thread",
    unit="MB/s",
    target_ratio=1,
    durability=Durability.SYNCED,
    ours=Side(
        what="one cleaner thread (log.cleaner.threads=1), batches of Producer.send_table",
        settings=ours.SETTINGS + "; the cleaner syncs each segment that it writes",
        open=_open_ours,
    ),
    peer=Side(
        what="one cleaner thread, batches of 1 MiB of librdkafka",
        settings=kafka.SETTINGS + "; the cleaner syncs each segment that it writes",
        open=_open_peer,
    ),
)
