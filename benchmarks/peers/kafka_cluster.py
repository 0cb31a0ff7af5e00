"""Three brokers of Kafka's last version on ZooKeeper, with Kafka's defaults but for what a cluster here needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clusters
from benchmarks.clusters import BROKERS, Cluster, Partition
from benchmarks.peers import jars
from benchmarks.workspace import BenchmarkError, Workspace

HEAP = "1g"
SETTINGS = f"Kafka 3.9.1, heap {HEAP} each, {clusters.SETTINGS}"
_ANSWER_SECONDS = 5
# What kafka-server-start.sh and kafka-run-class.sh set, but for the heap.
_JVM_OPTIONS = (
    f"-Xms{HEAP} -Xmx{HEAP} -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
).split()
_LOGGING = """\
log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class KafkaCluster(Cluster):
    """See the module."""

    def __init__(self, workspace: Workspace, name: str = "kafka-cluster", brokers: Sequence[int] = BROKERS) -> None:
        super().__init__(workspace, name, brokers)
        self._classpath = f"{self.folder}:{jars.resolve(jars.KAFKA_ZOOKEEPER, workspace)}/*"
        self._admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 500, "log_level": 0}
        )

    def command(self, broker: int) -> list[str | Path]:
        """See ``Cluster``."""
        listener = f"PLAINTEXT://127.0.0.1:{self.ports[broker]}"
        options = {**self.options(broker), "listeners": listener, "log.dirs": str(self.data(broker))}
        properties = self.folder / f"broker-{broker}.properties"
        properties.write_text("".join(f"{option}={value}\n" for option, value in options.items()))
        (self.folder / "log4j.properties").write_text(_LOGGING)
        return ["java", *_JVM_OPTIONS, "-cp", self._classpath, "kafka.Kafka", properties]

    def java(self, main: str, *arguments: str | Path, heap: str = "512m") -> list[str | Path]:
        """The command line of one of Kafka's Java programs, of the newest version."""
        classpath = f"{self.folder}:{jars.resolve(jars.KAFKA, self._workspace)}/*"
        return ["java", f"-Xmx{heap}", "-cp", classpath, main, *arguments]

    def live_brokers(self) -> set[int]:
        """See ``Cluster``."""
        return set(getattr(self._metadata(), "brokers", {}))

    def controller(self) -> int:
        """See ``Cluster``."""
        return int(getattr(self._metadata(), "controller_id", -1))

    def _metadata(self, *topic: str) -> Any:
        """What a broker says of the cluster, and of one topic or all; None if nobody answers."""
        try:
            return self._admin.list_topics(*topic, timeout=_ANSWER_SECONDS)
        except KafkaException:
            return None

    def create_topic(self, name: str, partitions: int, *, factor: int = 3, **configs: str) -> None:
        """See ``Cluster``."""
        options = {option.replace("_", "."): value for option, value in configs.items()}
        topic = NewTopic(name, partitions, factor, config=options)

        def is_created() -> bool:
            try:
                self._admin.create_topics([topic])[name].result(120)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR:
                    return False  # a controller that has just been elected has not heard of all brokers yet
                raise
            return True

        self.wait_until(f"topic {name}", is_created)

    def delete_topic(self, name: str) -> None:
        """See ``Cluster``."""
        self._admin.delete_topics([name])[name].result(60)

    def partitions(self, topic: str) -> Mapping[int, Partition]:
        """See ``Cluster``."""
        found = self._metadata(topic)
        if found is None or found.topics[topic].error is not None:
            return {}
        described = found.topics[topic].partitions
        return {number: Partition(each.leader, frozenset(each.isrs)) for number, each in described.items()}

    def count(self, topic: str) -> int:
        """See ``Cluster``."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "count", "log_level": 0})
        try:
            bounds = [
                consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=60)
                for number in self.partitions(topic)
            ]
        except KafkaException as error:
            raise BenchmarkError(f"Kafka's topic {topic} could not be counted: {error}") from error
        finally:
            consumer.close()
        return sum(high - low for low, high in bounds)
