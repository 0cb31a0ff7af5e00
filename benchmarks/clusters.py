"""Clusters of three brokers of each side, as processes.

The clusters have a ZooKeeper of their own. Kafka's brokers have the same options as millrace's.

Invariants: brokers have the ids 1, 2, 3 and keep their ports. A broker that was killed or stopped can be restarted on
its data.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from benchmarks.workspace import BenchmarkError, Workspace, free_port, start, stop, tail
from millrace.clients import Admin, ClusterDescription, TopicPartition
from millrace.errors import MillraceError
from millrace_broker.cli.local_zookeeper import LocalZooKeeper

BROKERS = (1, 2, 3)
SESSION_MS = 6_000
READY_SECONDS_MAX = 180
OPTIONS = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "zookeeper.connection.timeout.ms": "30000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "auto.leader.rebalance.enable": "false",
    "delete.topic.enable": "true",
}
"""Options of both sides besides addresses and ids. All others have their defaults."""
SETTINGS = (
    f"three brokers on ZooKeeper, session {SESSION_MS} ms, replication factor 3, min.insync.replicas 2, no automatic "
    "rebalance of leaders, log.flush.* at its defaults: no fsync before a write is acknowledged"
)


@dataclass(frozen=True)
class Partition:
    """A partition as the cluster describes it. ``leader`` is -1 if there is none."""

    leader: int
    isr: frozenset[int]


class Cluster(ABC):
    """A cluster during a ``with`` block. ``bootstrap`` are the bootstrap servers of clients."""

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        brokers: Sequence[int] = BROKERS,
        common: Mapping[str, str] = OPTIONS,
    ) -> None:
        """Take the ``common`` options of all brokers, besides those of addresses and paths."""
        self.folder = workspace.folder(name, empty=True)
        self.ports = {broker: free_port() for broker in brokers}
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self._workspace = workspace
        self._common = common
        self._name = name
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._stack = contextlib.ExitStack()
        self.zookeeper = LocalZooKeeper(self.folder / "zookeeper")

    @abstractmethod
    def command(self, broker: int) -> list[str | Path]:
        """Return the command that starts a broker."""

    @abstractmethod
    def live_brokers(self) -> set[int]:
        """Return the brokers that the cluster has as alive, or none if no broker answers."""

    @abstractmethod
    def controller(self) -> int:
        """Return the broker that is the controller, or -1 if there is none."""

    @abstractmethod
    def create_topic(self, name: str, partitions: int, *, factor: int = 3, **configs: str) -> None:
        """Create a topic. Options have underscores in place of dots."""

    @abstractmethod
    def delete_topic(self, name: str) -> None:
        """Delete a topic, and return when the deletion has begun."""

    @abstractmethod
    def partitions(self, topic: str) -> Mapping[int, Partition]:
        """Return a topic's partitions, or none if there are none or no broker answers."""

    @abstractmethod
    def count(self, topic: str) -> int:
        """Return the number of records in a topic."""

    def data(self, broker: int) -> Path:
        """Return the folder of a broker's logs."""
        return self.folder / f"broker-{broker}"

    def options(self, broker: int) -> dict[str, str]:
        """Return the options of one broker that both sides share."""
        return {**self._common, "zookeeper.connect": self.zookeeper.address, "broker.id": str(broker)}

    def start_coordination(self) -> None:
        """Start ZooKeeper, which the brokers need before they start."""
        self._stack.enter_context(self.zookeeper)

    def launch(self, broker: int) -> None:
        """Start a broker's process and return at once."""
        self._processes[broker] = start(self.command(broker), self._log(broker))

    def kill(self, broker: int) -> None:
        """Kill a broker with kill -9."""
        self._processes[broker].kill()
        self._processes[broker].wait()

    def stop(self, broker: int) -> None:
        """Stop a broker as its operator would."""
        stop(self._processes[broker])

    def wipe(self, broker: int) -> None:
        """Remove all data of a broker that is down."""
        shutil.rmtree(self.data(broker))

    def wait_until(self, what: str, condition: Callable[[], bool], *, every_s: float = 0.05) -> None:
        """Return when a condition holds. Raise an error with the brokers' output when it takes too long."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(tail(self._log(broker), 8) for broker in self.ports)
                raise BenchmarkError(f"{self._name}: no {what} within {READY_SECONDS_MAX} s:\n{logs}")
            time.sleep(every_s)

    def wait_until_in_sync(self, topic: str, replicas: int = 3) -> None:
        """Return when all partitions of a topic have a leader and so many in-sync replicas."""

        def is_whole() -> bool:
            found = self.partitions(topic).values()
            return bool(found) and all(each.leader > 0 and len(each.isr) == replicas for each in found)

        self.wait_until(f"{replicas} replicas in sync", is_whole, every_s=0.2)

    @contextlib.contextmanager
    def topic(self, name: str, partitions: int) -> Iterator[str]:
        """Create a topic for the duration of the block."""
        self.create_topic(name, partitions)
        try:
            self.wait_until_in_sync(name)
            yield name
        finally:
            self.delete_topic(name)

    def __enter__(self) -> Self:
        try:
            self.start_coordination()
            for broker in self.ports:
                self.launch(broker)
                self._stack.callback(self._end, broker)
            self.wait_until("all brokers", lambda: len(self.live_brokers()) == len(self.ports))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # gigabytes of it

    def _end(self, broker: int) -> None:
        self._processes[broker].kill()  # no later run needs its data
        self._processes[broker].wait()

    def _log(self, broker: int) -> Path:
        return self._workspace.log(f"{self._name}-{broker}")


class MillraceCluster(Cluster):
    """A cluster of millrace's brokers."""

    def __init__(
        self,
        workspace: Workspace,
        name: str = "millrace-cluster",
        brokers: Sequence[int] = BROKERS,
        common: Mapping[str, str] = OPTIONS,
    ) -> None:
        super().__init__(workspace, name, brokers, common)
        self._admin: Admin | None = None

    def command(self, broker: int) -> list[str | Path]:
        """See ``Cluster``."""
        command: list[str | Path] = [Path(sys.executable).parent / "millrace", "broker"]
        command += ["--data-dir", self.data(broker), "--listen", f"127.0.0.1:{self.ports[broker]}"]
        for option, value in self.options(broker).items():
            command += ["-o", f"{option}={value}"]
        return command

    def live_brokers(self) -> set[int]:
        """See ``Cluster``."""
        described = self._described()
        return set() if described is None else {each.node_id for each in described.brokers}

    def controller(self) -> int:
        """See ``Cluster``."""
        described = self._described()
        return -1 if described is None else described.controller_id

    def _described(self) -> ClusterDescription | None:
        try:
            return self.admin.describe_cluster()
        except MillraceError:
            return None

    @property
    def admin(self) -> Admin:
        """Return a client for topics."""
        if self._admin is None:
            self._admin = self._stack.enter_context(Admin(self.bootstrap))
        return self._admin

    def create_topic(self, name: str, partitions: int, *, factor: int = 3, **configs: str) -> None:
        """See ``Cluster``."""
        options = {option.replace("_", "."): value for option, value in configs.items()}
        self.admin.create_topic(name, partitions=partitions, replication_factor=factor, configs=options)

    def delete_topic(self, name: str) -> None:
        """See ``Cluster``."""
        self.admin.delete_topic(name)

    def partitions(self, topic: str) -> Mapping[int, Partition]:
        """See ``Cluster``."""
        try:
            found = self.admin.describe_topic(topic).partitions
        except MillraceError:
            return {}
        return {each.partition: Partition(each.leader, frozenset(each.isr)) for each in found}

    def count(self, topic: str) -> int:
        """See ``Cluster``."""
        wanted = [TopicPartition(topic, number) for number in self.partitions(topic)]
        earliest, latest = (self.admin.list_offsets(dict.fromkeys(wanted, which)) for which in ("earliest", "latest"))
        return sum(latest[each].offset - earliest[each].offset for each in wanted)
