"""Three brokers of Kafka's last ZooKeeper version, with the options of ``clusters.OPTIONS``."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clusters
from benchmarks.clusters import BROKERS, Cluster, Partition
from benchmarks.peers import jars, kafka
from benchmarks.workspace import BenchmarkError, Workspace, free_port, start

HEAP = "1g"
SETTINGS = f"Kafka 3.9.1, heap {HEAP} each, {clusters.SETTINGS}"
CONTROLLER = 100
"""The id of the controller node in a cluster without ZooKeeper."""
DEFAULT_SETTINGS = f"Kafka 4.3.1, KRaft, three brokers and a controller, heap {HEAP} each, otherwise its defaults"
_ANSWER_SECONDS = 5
# The settings of kafka-server-start.sh and kafka-run-class.sh, except the heap.
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
    """The cluster of this module."""

    distribution = jars.KAFKA_ZOOKEEPER

    def __init__(self, workspace: Workspace, name: str = "kafka-cluster", brokers: Sequence[int] = BROKERS) -> None:
        super().__init__(workspace, name, brokers)
        self._classpath = f"{self.folder}:{jars.resolve(self.distribution, workspace)}/*"
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
        """Return the command line of one of Kafka's Java programs, of the newest version."""
        classpath = f"{self.folder}:{jars.resolve(jars.KAFKA, self._workspace)}/*"
        return ["java", f"-Xmx{heap}", "-cp", classpath, main, *arguments]

    def live_brokers(self) -> set[int]:
        """See ``Cluster``."""
        return set(getattr(self._metadata(), "brokers", {}))

    def controller(self) -> int:
        """See ``Cluster``."""
        return int(getattr(self._metadata(), "controller_id", -1))

    def _metadata(self, *topic: str) -> Any:
        """Return a broker's metadata of the cluster and of one topic or all, or None if no broker answers."""
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
                    return False  # a newly elected controller does not know all brokers yet
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


class KRaftCluster(KafkaCluster):
    """Three brokers of Kafka 4 at their defaults.

    A fourth node is only the controller.
    """

    distribution = jars.KAFKA

    def __init__(self, workspace: Workspace, name: str = "kraft-cluster", brokers: Sequence[int] = BROKERS) -> None:
        super().__init__(workspace, name, brokers)
        self._controller_port = free_port()
        self._cluster_id = ""

    def start_coordination(self) -> None:
        """Start the controller."""
        process = start(
            self._node(CONTROLLER, "controller", "CONTROLLER", self._controller_port), self._log(CONTROLLER)
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def command(self, broker: int) -> list[str | Path]:
        """See ``Cluster``."""
        return self._node(broker, "broker", "PLAINTEXT", self.ports[broker])

    def _node(self, node: int, role: str, listener: str, port: int) -> list[str | Path]:
        """Return the command that starts a node. A new data directory is formatted."""
        options = {
            "process.roles": role,
            "node.id": str(node),
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": f"{listener}://127.0.0.1:{port}",
            "log.dirs": str(self.data(node)),
        }
        properties = self.folder / f"node-{node}.properties"
        properties.write_text("".join(f"{option}={value}\n" for option, value in options.items()))
        (self.folder / "log4j2.yaml").write_text(kafka.LOGGING)
        if not (self.data(node) / "meta.properties").exists():
            self._cluster_id = self._cluster_id or self._tool("random-uuid").split()[-1]
            self._tool("format", "-t", self._cluster_id, "-c", properties)
        return ["java", *_JVM_OPTIONS, "-cp", self._classpath, "kafka.Kafka", properties]

    def _tool(self, *arguments: str | Path) -> str:
        done = subprocess.run(
            self.java("kafka.tools.StorageTool", *arguments), capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode:
            raise BenchmarkError(f"Kafka's storage tool could not {arguments[0]}:\n{done.stdout}{done.stderr}")
        return done.stdout
