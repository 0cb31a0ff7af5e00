"""A Kafka broker (one KRaft node on loopback) and its filled topics."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import data
from benchmarks.ours import topic_name
from benchmarks.peers import filling, jars
from benchmarks.workspace import BenchmarkError, Workspace, free_port, start, stop, tail

HEAP = "1500m"
HEAP_SMALL = "256m"
"""A quarter of the heap that ``kafka-server-start.sh`` sets, for the row that measures memory."""
PARTITIONS = 4
START_SECONDS_MAX = 60
# It is no news that a broker is not up yet, or that it was stopped.
_QUIET: dict[str, Any] = {"log_level": 0}


OPTIONS = {
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": str(PARTITIONS),
    # A deleted topic's files are removed a second later, as ours.
    "log.segment.delete.delay.ms": "1000",
}
"""Options of the broker besides those that one node needs (``NODE``). All others have their defaults."""


def settings(heap: str) -> str:
    """Describe the settings of a broker."""
    return (
        f"Kafka 4.3.1, KRaft, heap {heap}, {', '.join(f'{name}={value}' for name, value in OPTIONS.items())}, "
        "otherwise its defaults (log.flush.* unset): no fsync before a write is acknowledged"
    )


SETTINGS = settings(HEAP)

NODE = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={node_id}@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
"""Configuration of one node: addresses, paths, and one replica of each internal topic."""
_TLS_LISTENER = """\
listeners=PLAINTEXT://{plain},SSL://{tls},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://{plain},SSL://{tls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""
"""Additions for a node with a listener with TLS."""
LOGGING = """\
Configuration:
  Appenders:
    Console:
      name: console
      target: SYSTEM_ERR
      PatternLayout:
        pattern: "[%d] %p %m (%c)%n"
  Loggers:
    Root:
      level: INFO
      AppenderRef:
        - ref: console
"""
# The settings of kafka-server-start.sh and kafka-run-class.sh, except the heap.
_JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


class KafkaBroker:
    """One broker on one data folder. It can be started and stopped many times.

    With a ``keystore`` it has a second listener, with TLS.
    """

    def __init__(
        self,
        workspace: Workspace,
        name: str = "kafka",
        *,
        empty: bool = False,
        heap: str = HEAP,
        keystore: Path | None = None,
    ) -> None:
        self._heap = heap
        self.folder = workspace.folder(name, empty=empty)
        self.data = self.folder / "data"
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.tls_bootstrap = f"127.0.0.1:{free_port()}" if keystore else ""
        self._keystore = keystore
        self.process: subprocess.Popen[str] | None = None
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 500, **_QUIET})
        self._log = workspace.log(name)
        self._classpath = f"{self.folder / 'conf'}:{jars.resolve(jars.KAFKA, workspace)}/*"

    def java(self, main: str, *arguments: str | Path, heap: str = "512m") -> list[str]:
        """Return the command line of one of Kafka's Java programs."""
        return ["java", f"-Xmx{heap}", "-cp", self._classpath, main, *map(str, arguments)]

    def launch(self) -> None:
        """Start the process and return at once. A new data folder is formatted first."""
        conf = self.folder / "conf"
        conf.mkdir(exist_ok=True)
        properties = conf / "server.properties"
        controller_port = free_port()
        node = NODE.format(node_id=1, port=self.port, controller_port=controller_port, data=self.data)
        if self._keystore is not None:  # the last line of a name counts
            node += _TLS_LISTENER.format(
                plain=self.bootstrap, tls=self.tls_bootstrap, controller_port=controller_port, keystore=self._keystore
            )
        properties.write_text(node + "".join(f"{name}={value}\n" for name, value in OPTIONS.items()))
        (conf / "log4j2.yaml").write_text(LOGGING)
        if not (self.data / "meta.properties").exists():
            self._format(properties)
        command = [
            "java",
            f"-Xms{self._heap}",
            f"-Xmx{self._heap}",
            *_JVM_OPTIONS,
            "-cp",
            self._classpath,
            "kafka.Kafka",
            str(properties),
        ]
        self.process = start(command, self._log)

    def __enter__(self) -> KafkaBroker:
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
        """Return when the broker answers metadata requests."""
        assert self.process
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                self.admin.list_topics(timeout=1)
            except KafkaException as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise BenchmarkError(f"the Kafka broker did not start ({error}):\n{tail(self._log)}") from None
            else:
                return

    def stop(self) -> None:
        """End the process if it runs."""
        if self.process:
            stop(self.process)
            self.process = None

    def create_topic(self, name: str) -> None:
        """Create a topic that keeps its records however old their timestamps are."""
        topic = NewTopic(name, PARTITIONS, 1, config={"retention.ms": "-1"})
        self.admin.create_topics([topic])[name].result(30)

    @contextlib.contextmanager
    def topic(self, name: str) -> Iterator[str]:
        """Create a topic for the duration of the block."""
        self.create_topic(name)
        try:
            yield name
        finally:
            self.admin.delete_topics([name])[name].result(30)

    def filled_topic(self, records: int, *, skewed: bool = False, words: int = data.WORDS, avro: bool = False) -> str:
        """Return the topic with the first ``records`` of the data set, keyed by word, and fill it if it does not exist.

        In the skewed topic one partition has nine tenths. Values are JSON or Avro.
        """
        name = topic_name("skewed" if skewed else "avro" if avro else "events", records, words)
        if self.count(name) == records:
            return name
        if name in self.admin.list_topics(timeout=10).topics:  # an earlier filling was interrupted
            self.admin.delete_topics([name])[name].result(30)
            self._wait_until_gone(name)
        print(f"  filling Kafka's topic {name}", flush=True)
        self.create_topic(name)
        tables = data.tables(records, word_count=words)
        filling.fill(self.bootstrap, name, map(data.with_avro_values, tables) if avro else tables, skewed=skewed)
        if (found := self.count(name)) != records:
            raise BenchmarkError(f"Kafka's topic {name} holds {found} records instead of {records}")
        return name

    def _wait_until_gone(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while name in self.admin.list_topics(timeout=10).topics:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"Kafka's topic {name} is still there a minute after its deletion")
            time.sleep(0.1)

    def count(self, name: str) -> int:
        """Return the number of records in a topic, or 0 if there is none of this name."""
        consumer = KafkaConsumer({"bootstrap.servers": self.bootstrap, "group.id": "count", **_QUIET})
        try:
            found = consumer.list_topics(timeout=10).topics.get(name)
            partitions = found.partitions if found else ()
            return sum(_count(consumer, TopicPartition(name, number)) for number in partitions)
        finally:
            consumer.close()

    def _format(self, properties: Path) -> None:
        tool = "kafka.tools.StorageTool"
        cluster = subprocess.run(self.java(tool, "random-uuid"), capture_output=True, text=True, check=True, timeout=60)
        arguments = ("format", "-t", cluster.stdout.split()[-1], "-c", properties)
        done = subprocess.run(self.java(tool, *arguments), capture_output=True, text=True, check=False, timeout=60)
        if done.returncode:
            raise BenchmarkError(f"Kafka's storage tool could not format {self.data}:\n{done.stdout}{done.stderr}")


def _count(consumer: KafkaConsumer, partition: TopicPartition) -> int:
    """Count the records of one partition.

    A broker that has just started lists topics before it leads their partitions.
    """
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=10)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return high - low
