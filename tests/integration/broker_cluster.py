"""Brokers of a cluster on a real ZooKeeper.

They run in threads of this process, or as processes that tests can kill.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from millrace.clients import Admin, TopicPartition
from millrace_broker.cluster.member import Member
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, eventually
from .zookeeper_server import ZooKeeperServer, expire

MILLRACE = Path(sys.executable).with_name("millrace")
SESSION_MS = 2_000
OPTIONS = {
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    "zookeeper.connection.timeout.ms": "20000",
    "controlled.shutdown.retry.backoff.ms": "200",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}


class Cluster:
    """Brokers with the ids 1, 2, ... under their own chroot. ``with`` stops them all."""

    def __init__(self, zookeeper: ZooKeeperServer, directory: Path, **options: str) -> None:
        self.connect = f"{zookeeper.address}/c{uuid.uuid4().hex[:8]}"
        self.directory = directory
        self._options = (
            OPTIONS | {"zookeeper.connect": self.connect} | {k.replace("_", "."): v for k, v in options.items()}
        )
        self.brokers: dict[int, EmbeddedBroker] = {}
        self.processes: dict[int, BrokerProcess] = {}
        self._admin: Admin | None = None

    def options(self, broker_id: int, **options: str) -> dict[str, str]:
        return self._options | {"broker.id": str(broker_id)} | {k.replace("_", "."): v for k, v in options.items()}

    def start(self, *broker_ids: int, **options: str) -> None:
        """Start new or stopped brokers in threads."""
        for broker_id in broker_ids:
            broker = EmbeddedBroker(self.directory / f"broker-{broker_id}", options=self.options(broker_id, **options))
            self.brokers[broker_id] = broker.start()

    def stop(self, *broker_ids: int) -> None:
        """Stop brokers cleanly."""
        for broker_id in broker_ids:
            self.brokers.pop(broker_id).stop()

    def start_process(self, broker_id: int) -> BrokerProcess:
        """Start a broker as a process, at its earlier address."""
        process = self.processes.get(broker_id)
        if process is None:
            directory = self.directory / f"broker-{broker_id}"
            process = self.processes[broker_id] = BrokerProcess(directory, self.options(broker_id))
        process.start()
        return process

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(
            [broker.bootstrap_servers for broker in self.brokers.values()]
            + [process.address for process in self.processes.values() if process.is_running]
        )

    @property
    def admin(self) -> Admin:
        """Return an admin client whose bootstrap servers are the brokers that run at the first call."""
        if self._admin is None:
            self._admin = Admin(self.bootstrap_servers)
        return self._admin

    def member(self, broker_id: int) -> Member:
        return self.brokers[broker_id].server.broker.member

    @property
    def controller(self) -> int:
        """Return the broker that is the controller, once exactly one of those in threads is."""
        eventually(lambda: len(self._active()) == 1)
        return self._active()[0]

    def _active(self) -> list[int]:
        return [each for each in self.brokers if self.member(each).controlling.is_active]

    def expire(self, broker_id: int) -> None:
        """Expire a broker's session at ZooKeeper."""
        expire(self.member(broker_id)._coordination.session)  # type: ignore[arg-type]

    def isr(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        return self.admin.describe_topic(topic).partitions[partition].isr

    def leader(self, topic: str, partition: int = 0) -> int:
        return self.admin.describe_topic(topic).partitions[partition].leader

    def replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        return self.admin.describe_topic(topic).partitions[partition].replicas

    def end_offset(self, topic: str, partition: int = 0) -> int:
        wanted = TopicPartition(topic, partition)
        return self.admin.list_offsets({wanted: "latest"})[wanted].offset

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._admin is not None:
            self._admin.close()
        for process in self.processes.values():
            process.end(signal.SIGKILL)
        self.stop(*list(self.brokers))


class BrokerProcess:
    """``millrace broker`` of a cluster, always at the same address."""

    def __init__(self, directory: Path, options: dict[str, str]) -> None:
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"

    def start(self) -> None:
        self.end(signal.SIGKILL)  # of an earlier start
        command = [str(MILLRACE), "broker", "--data-dir", str(self._directory), "--listen", self.address]
        for name, value in self._options.items():
            command += ["-o", f"{name}={value}"]
        errors = self._directory.with_suffix(".stderr")
        with errors.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert "listening on" in line, errors.read_text()[-3000:]
        self.address = line.rpartition(" ")[2].strip()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self.is_running else None

    def pause(self) -> None:
        """Stop the process (SIGSTOP) until ``go_on``, or until it is killed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def end(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended, and wait for the end. Close its output."""
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.wait(STALL_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
