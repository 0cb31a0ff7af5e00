"""A millrace broker as a process, and its filled topics.

The broker is started as usual.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks import data
from benchmarks.workspace import BenchmarkError, Workspace, free_port, start, stop, tail
from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import MillraceError

PARTITIONS = 4
START_SECONDS_MAX = 30
# Records are kept however old their timestamps are, and a deleted topic's files are removed a second later.
TOPIC_CONFIGS = {"retention.ms": "-1", "file.delete.delay.ms": "1000"}
KAFKA_JSON = {"kafka.value.format": "json", "kafka.key.format": "string"}
"""Options of a typed topic whose records Kafka clients send as JSON."""
OPTIONS = {
    # As for Kafka's broker, the first member of a group does not wait for others, and the number of connections has no
    # limit.
    "group.initial.rebalance.delay.ms": "0",
    "max.connections": "100000",
}
"""Options of the broker. All others have their defaults."""
SETTINGS = (
    f"millrace broker with {', '.join(f'{name}={value}' for name, value in OPTIONS.items())}, otherwise its defaults "
    "(flush.messages and flush.ms unset): no fsync before a write is acknowledged"
)


class MillraceBroker:
    """One broker on one data folder. It can be started and stopped many times.

    With a ``keystore`` it has a second listener, with TLS.
    """

    def __init__(
        self, workspace: Workspace, name: str = "millrace", *, empty: bool = False, keystore: Path | None = None
    ) -> None:
        self.data = workspace.folder(name, empty=empty)
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.tls_bootstrap = f"127.0.0.1:{free_port()}" if keystore else ""
        self._keystore = keystore
        self.process: subprocess.Popen[str] | None = None
        self.log = workspace.log(name)

    def launch(self) -> None:
        """Start the process and return at once."""
        command = [
            Path(sys.executable).parent / "millrace",
            "broker",
            "--data-dir",
            self.data,
            *(argument for name, value in self._options().items() for argument in ("-o", f"{name}={value}")),
        ]
        self.process = start(command, self.log)

    def _options(self) -> dict[str, str]:
        listeners = f"PLAINTEXT://{self.bootstrap},GRPC://127.0.0.1:0"
        if self._keystore is None:
            return OPTIONS | {"listeners": listeners}
        with_tls = {
            "listeners": f"{listeners},SSL://{self.tls_bootstrap}",
            "ssl.keystore.location": str(self._keystore),
        }
        return OPTIONS | with_tls

    def __enter__(self) -> MillraceBroker:
        self.launch()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Return when the broker has printed that it listens."""
        assert self.process
        deadline = time.monotonic() + START_SECONDS_MAX
        while "listening on" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"the millrace broker did not start:\n{tail(self.log)}")
            time.sleep(0.002)

    def stop(self) -> None:
        """End the process if it runs."""
        if self.process:
            stop(self.process)
            self.process = None

    @contextlib.contextmanager
    def admin(self) -> Iterator[Admin]:
        """Return a client for topics."""
        admin = Admin(self.bootstrap)
        try:
            yield admin
        finally:
            admin.close()

    def create_topic(self, name: str, *, typed: bool = False, **configs: str) -> None:
        """Create a topic that keeps its records however old their timestamps are."""
        schema = {"schema": data.TYPED_SCHEMA, "key_columns": ["word"]} if typed else {}
        with self.admin() as admin:
            admin.create_topic(name, partitions=PARTITIONS, configs=TOPIC_CONFIGS | configs, **schema)

    @contextlib.contextmanager
    def topic(self, name: str) -> Iterator[str]:
        """Create a topic for the duration of the block."""
        self.create_topic(name)
        try:
            yield name
        finally:
            with self.admin() as admin:
                admin.delete_topic(name)

    def count(self, name: str) -> int:
        """Return the number of records in a topic."""
        partitions = [TopicPartition(name, number) for number in range(PARTITIONS)]
        consumer = Consumer({"bootstrap.servers": self.bootstrap})
        try:
            first, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            return sum(end[partition] - first[partition] for partition in partitions)
        finally:
            consumer.close()

    def topic_filled_by_kafka_client(self, records: int, *, typed: bool = False) -> str:
        """Return a topic that a Kafka producer filled with the JSON of the first ``records`` of the data set.

        The typed topic decodes the JSON to columns. Other topics keep the producer's row batches.
        """
        from benchmarks.peers.filling import fill  # few benchmarks need a Kafka client on our side

        name = topic_name("typed-json" if typed else "rows", records, data.WORDS)
        if not self._has(name):
            print(f"  filling millrace's topic {name} with a Kafka client", flush=True)
            self.create_topic(name, typed=typed, **(KAFKA_JSON if typed else {}))
            fill(self.bootstrap, name, data.tables(records))
        return name

    def _has(self, name: str) -> bool:
        with self.admin() as admin:
            return any(topic.name == name for topic in admin.list_topics())

    def filled_topic(self, records: int, *, typed: bool = False, skewed: bool = False, words: int = data.WORDS) -> str:
        """Return the topic with the first ``records`` of the data set, keyed by word, and fill it if it does not exist.

        The opaque topic has each record's JSON as its value, and the typed one has the columns of that JSON. The skewed
        topic is opaque, and one of its partitions has nine tenths.
        """
        name = topic_name("typed" if typed else "skewed" if skewed else "events", records, words)
        if self._has(name):
            return name
        print(f"  filling millrace's topic {name}", flush=True)
        self.create_topic(name, typed=typed)
        columns = data.TYPED_SCHEMA.names if typed else ["key", "value"]
        producer = Producer({"bootstrap.servers": self.bootstrap})
        try:
            for chunk in data.tables(records, word_count=words):
                for partition, part in _parts(chunk, skewed=skewed):
                    times = part["timestamp"].combine_chunks()
                    producer.send_table(name, part.select(columns), partition=partition, timestamps=times)
            producer.flush()
        except MillraceError as error:
            raise BenchmarkError(f"millrace's topic {name} could not be filled: {error.message}") from error
        finally:
            producer.close()
        return name


def topic_name(kind: str, records: int, words: int) -> str:
    """Return the name of a filled topic, on either side."""
    return f"{kind}-{records}" if words == data.WORDS else f"{kind}-{records}-{words}"


def _parts(chunk: pa.Table, *, skewed: bool) -> Iterator[tuple[int | None, pa.Table]]:
    """Return records by the partition to which they are sent. None means the partition of their keys."""
    if not skewed:
        yield None, chunk
        return
    partitions = data.skewed_partitions(chunk, PARTITIONS)
    for partition in range(PARTITIONS):
        yield partition, chunk.filter(pa.array(partitions == partition))
