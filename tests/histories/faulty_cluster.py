"""Three broker processes on a real ZooKeeper, and their faults.

A fault is a context: it is active inside and repaired afterwards. Brokers reach each other and ZooKeeper through a
``Network``. Each broker keeps its data on its own file system, if this user may mount one. Otherwise, no file of a full
disk may grow.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from millrace.clients import Admin
from millrace.errors import MillraceError

from ..integration.broker_cluster import OPTIONS, BrokerProcess
from ..integration.waiting import eventually, pause
from ..integration.zookeeper_server import ZooKeeperServer
from ..ports import free_port
from .network import Network

BROKERS: Final = (1, 2, 3)
ZOOKEEPER: Final = "zookeeper"
_DISK_BYTES: Final = 256 * 2**20
_PIECE: Final = bytes(2**20)
_REPLICATED: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}

Fault = Callable[[], contextlib.AbstractContextManager[None]]


class FaultyCluster:
    """The cluster of this module. ``with`` starts and ends it, and ``chance`` draws the victims.

    With ``has_disks`` brokers have file systems of their own, if this user may mount them.
    """

    def __init__(self, directory: Path, chance: random.Random, *, has_disks: bool = True, **options: str) -> None:
        """Prepare the cluster. ``options`` are options of the brokers, with underscores."""
        self._directory = directory
        self._chance = chance
        self._options = {name.replace("_", "."): value for name, value in options.items()}
        self._stack = contextlib.ExitStack()
        self._brokers: dict[int, BrokerProcess] = {}
        self.has_disks = has_disks
        self._bootstrap: list[str] = []

    def __enter__(self) -> FaultyCluster:
        with contextlib.ExitStack() as stack:
            zookeeper = stack.enter_context(ZooKeeperServer(self._directory / "zookeeper"))
            self._network = stack.enter_context(Network([*map(_name, BROKERS), ZOOKEEPER], self._pid))
            connect = f"127.0.0.1:{self._network.way_to(ZOOKEEPER, zookeeper.port)}"
            for broker_id in BROKERS:
                self._brokers[broker_id] = self._broker(broker_id, connect, stack)
                stack.callback(self._brokers[broker_id].end, signal.SIGKILL)
            for broker in self._brokers.values():
                broker.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _broker(self, broker_id: int, connect: str, stack: contextlib.ExitStack) -> BrokerProcess:
        directory = self._directory / f"disk-{broker_id}"
        directory.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(directory)]
        if self.has_disks and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            stack.callback(subprocess.run, ["umount", "-l", str(directory)], check=True)
        else:
            self.has_disks = False
        name, port = _name(broker_id), free_port()
        way = self._network.way_to(name, port)
        options = (
            OPTIONS
            | _REPLICATED
            | self._options
            | {
                "broker.id": str(broker_id),
                "zookeeper.connect": connect,
                "advertised.listeners": f"PLAINTEXT://127.0.0.1:{way}",
            }
        )
        self._bootstrap.append(f"127.0.0.1:{way}")
        broker = BrokerProcess(directory / "data", options)
        broker.address = f"127.0.0.1:{port}"
        return broker

    def _pid(self, name: str) -> int | None:
        return next((each.pid for each_id, each in self._brokers.items() if _name(each_id) == name), None)

    @property
    def bootstrap_servers(self) -> str:
        """Return the bootstrap servers of clients."""
        return ",".join(self._bootstrap)

    def wait_until_whole(self, *topics: str) -> None:
        """Wait until all partitions have a leader and all their replicas are in sync."""
        with Admin({"bootstrap.servers": self.bootstrap_servers, "request.timeout.ms": 3000}) as admin:

            def is_whole() -> bool:
                try:
                    found = [each for topic in topics for each in admin.describe_topic(topic).partitions]
                except MillraceError:
                    return False
                return all(each.leader > 0 and len(each.isr) == len(BROKERS) for each in found)

            eventually(is_whole, "all replicas to be in sync")

    # --- faults --------------------------------------------------------------------------------------------------

    def faults(self, topic: str) -> dict[str, Fault]:
        """Return the faults by name. The victims are leaders of ``topic``."""
        return {
            "the leader is killed": lambda: self._killed(self._leader(topic)),
            "the controller is killed": lambda: self._killed(self._controller()),
            "all are killed": lambda: self._killed(*BROKERS),
            "the leader is paused": lambda: self._paused(self._leader(topic)),
            "the controller is paused": lambda: self._paused(self._controller()),
            "a link is cut": lambda: self._cut(self._pair(), is_one_way=False),
            "a link is cut one way": lambda: self._cut(self._pair(), is_one_way=True),
            "the leader is alone": lambda: self._alone(self._leader(topic)),
            "the controller is cut off ZooKeeper": lambda: self._cut(
                (_name(self._controller()), ZOOKEEPER), is_one_way=False
            ),
            "all are restarted in turn": self._rolled,
            "the leader's disk is full": lambda: self._full(self._leader(topic)),
        }

    def _leader(self, topic: str) -> int:
        with Admin(self.bootstrap_servers) as admin:
            return self._chance.choice(admin.describe_topic(topic).partitions).leader

    def _controller(self) -> int:
        with Admin(self.bootstrap_servers) as admin:
            return admin.describe_cluster().controller_id

    def _pair(self) -> tuple[str, str]:
        first, second = self._chance.sample(BROKERS, 2)
        return _name(first), _name(second)

    @contextlib.contextmanager
    def _killed(self, *victims: int) -> Iterator[None]:
        for victim in victims:
            self._brokers[victim].end(signal.SIGKILL)
        try:
            yield
        finally:
            for victim in victims:
                self._brokers[victim].start()

    @contextlib.contextmanager
    def _paused(self, victim: int) -> Iterator[None]:
        pid = self._brokers[victim].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def _cut(self, link: tuple[str, str], *, is_one_way: bool) -> Iterator[None]:
        self._network.cut(link, *(() if is_one_way else (link[::-1],)))
        try:
            yield
        finally:
            self._network.mend()

    @contextlib.contextmanager
    def _alone(self, victim: int) -> Iterator[None]:
        self._network.cut(*self._network.all_links(_name(victim)))
        try:
            yield
        finally:
            self._network.mend()

    @contextlib.contextmanager
    def _rolled(self) -> Iterator[None]:
        for broker in self._brokers.values():
            broker.end(signal.SIGTERM)
            broker.start()
        yield

    def _full(self, victim: int) -> contextlib.AbstractContextManager[None]:
        return self._filled(victim) if self.has_disks else self._kept_from_growing(victim)

    @contextlib.contextmanager
    def _kept_from_growing(self, victim: int) -> Iterator[None]:
        pid = self._brokers[victim].pid
        assert pid is not None
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)

    @contextlib.contextmanager
    def _filled(self, victim: int) -> Iterator[None]:
        ballast = self._directory / f"disk-{victim}" / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(_PIECE) == len(_PIECE):
                pass
        try:
            yield
        finally:
            ballast.unlink()


def last(fault: Fault, seconds: float) -> None:
    """Let a fault last so long."""
    with fault():
        pause(seconds)


def _name(broker_id: int) -> str:
    return f"broker-{broker_id}"
