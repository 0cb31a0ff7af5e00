"""Tests of brokers whose processes end, stop, or only refuse connections.

Leaders change at once, or with the session. A session lasts an hour here, so that a wait for its expiry fails.
``ZooKeeperServer.sessions`` shows at the end of a test that the dead broker's session is still there.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, Producer, ShareConsumer, TopicPartition
from millrace.coordination import paths
from millrace.coordination.nodes import ControllerNode
from millrace.errors import MillraceError, NotLeaderError

from ..ports import free_port
from .broker_cluster import Cluster
from .waiting import AN_HOUR_MS, STALL_S, eventually
from .zookeeper_server import Proxy, ZooKeeperServer, zookeeper_client

SESSION_MS = AN_HOUR_MS
"""Much longer than ``STALL_S``, so that a wait for the expiry of a session fails."""


class Registrations:
    """The registrations of a cluster's brokers in ZooKeeper."""

    def __init__(self, server: ZooKeeperServer, client: Any, cluster: Cluster) -> None:
        self._server = server
        self._client = client
        self._root = "/" + cluster.connect.partition("/")[2]

    def session(self, broker_id: int) -> int:
        """Return the session under which a broker is registered."""
        return int(self._client.get(self._root + paths.broker_path(broker_id))[1].ephemeralOwner)

    def epoch(self, broker_id: int) -> int:
        """Return the broker epoch, or -1 if the broker is not registered."""
        stat = self._client.exists(self._root + paths.broker_path(broker_id))
        return -1 if stat is None else int(stat.czxid)

    def controller(self) -> int:
        """Return the controller, or -1 if there is none."""
        if self._client.exists(self._root + paths.CONTROLLER) is None:
            return -1
        return ControllerNode.decode(self._client.get(self._root + paths.CONTROLLER)[0]).broker_id

    def is_alive(self, session: int) -> bool:
        """Tell whether a session has not ended."""
        return session in self._server.sessions()


@pytest.fixture
def cluster(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> Iterator[Cluster]:
    options = {"zookeeper_session_timeout_ms": str(SESSION_MS), "share_auto_offset_reset": "earliest"}
    with Cluster(zookeeper_server, tmp_path, **options) as cluster:
        yield cluster


@pytest.fixture
def registrations(cluster: Cluster, zookeeper_server: ZooKeeperServer) -> Iterator[Registrations]:
    with zookeeper_client(zookeeper_server.address) as client:
        yield Registrations(zookeeper_server, client, cluster)


class Writer:
    """A producer with the default options (acks=all).

    The producer sends consecutive numbers to a partition.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[Exception] = []
        self._is_over = threading.Event()
        self._producer = Producer(cluster.bootstrap_servers)
        self._topic = topic
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        number = 0
        while not self._is_over.is_set():
            try:
                self._producer.send(self._topic, b"%d" % number, partition=0).result(STALL_S)
            except (MillraceError, TimeoutError) as error:
                self.failed.append(error)
                return
            self.acknowledged.append(number)
            number += 1

    def until_more(self) -> None:
        """Wait until records that are sent from now on are acknowledged."""
        enough = len(self.acknowledged) + 2
        eventually(lambda: self.failed or len(self.acknowledged) >= enough, "acknowledgements")
        assert not self.failed

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._producer.close()


def values(cluster: Cluster, topic: str) -> list[int]:
    """Return all values of partition 0."""
    with Consumer({"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        end = cluster.end_offset(topic)
        found: list[int] = []
        while consumer.position(TopicPartition(topic, 0)) < end:
            found += [int(record.value or b"") for record in consumer.poll(200)]
        return found


def lead_all_internal_partitions(admin: Admin, leader: int) -> None:
    """Make one of three brokers the coordinator of all groups and transactions."""

    def partitions() -> dict[TopicPartition, int]:
        topics = [each for each in admin.list_topics(include_internal=True) if each.is_internal]
        return {
            TopicPartition(topic.name, each.partition): each.leader for topic in topics for each in topic.partitions
        }

    replicas = [leader, *({1, 2, 3} - {leader})]
    admin.alter_partition_reassignments(dict.fromkeys(partitions(), replicas))
    eventually(lambda: not admin.list_partition_reassignments(), "the reassignments")
    admin.elect_leaders()
    eventually(lambda: set(partitions().values()) == {leader}, "the election of the leader")


def start(cluster: Cluster, *broker_ids: int) -> None:
    """Start brokers as processes, the first of them as the controller."""
    for broker_id in broker_ids:
        cluster.start_process(broker_id)


def test_a_killed_leader_is_replaced_before_its_session_ends_and_returns_at_once(
    cluster: Cluster, registrations: Registrations, topic: str
) -> None:
    start(cluster, 1, 2, 3)
    cluster.admin.create_topic(topic, assignment={0: [3, 1, 2]}, configs={"min.insync.replicas": "2"})
    with (
        Writer(cluster, topic) as writer,
        Consumer({"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer,
    ):
        writer.until_more()
        consumer.assign([TopicPartition(topic, 0)])
        session = registrations.session(3)
        cluster.processes[3].end(signal.SIGKILL)
        writer.until_more()
        last, read = writer.acknowledged[-1], -1
        while read < last:
            read = max([read, *(int(record.value or b"") for record in consumer.poll(200))])
        assert cluster.leader(topic) in (1, 2)
        assert registrations.controller() == 1
        assert registrations.epoch(3) == -1
        cluster.start_process(3)
        eventually(lambda: set(cluster.isr(topic)) == {1, 2, 3}, "the ISR")
        assert registrations.is_alive(session), "the session of the killed process has not expired by then"
    assert values(cluster, topic) == writer.acknowledged


def test_a_killed_controller_leader_and_coordinator_is_replaced_before_its_session_ends(
    cluster: Cluster, registrations: Registrations, topic: str
) -> None:
    start(cluster, 1, 2, 3)
    cluster.admin.create_topic(topic, assignment={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
    group = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    partition = TopicPartition(topic, 0)
    with (
        Writer(cluster, topic) as writer,
        Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": topic}) as transactional,
        Consumer({**group, "enable.auto.commit": "false"}) as consumer,
        ShareConsumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": f"share-{topic}"}) as sharing,
        Admin(cluster.bootstrap_servers) as admin,
    ):
        sharing.subscribe(topic)
        transactional.init_transactions()
        consumer.subscribe(topic)
        eventually(lambda: len(list(sharing.poll(200))), "a record")
        eventually(lambda: len(list(consumer.poll(200))), "a record")
        consumer.commit({partition: 1})
        # Broker 1 shall be the coordinator of all of them.
        lead_all_internal_partitions(admin, 1)
        assert registrations.controller() == 1
        session = registrations.session(1)
        cluster.processes[1].end(signal.SIGKILL)
        writer.until_more()
        consumer.commit({partition: 2})
        assert consumer.committed([partition])[partition].offset == 2
        transactional.begin_transaction()
        transactional.send(topic, b"-1", partition=0)
        transactional.commit_transaction()
        eventually(lambda: len(list(sharing.poll(200))), "a record")
        assert set(sharing.commit().values()) == {None}
        assert registrations.controller() in (2, 3)
        assert registrations.epoch(1) == -1
        assert registrations.is_alive(session), "the session of the killed process has not expired by then"
    with contextlib.closing(Admin(f"{cluster.processes[2].address},{cluster.processes[3].address}")) as left:
        assert left.describe_cluster().controller_id in (2, 3)
    assert [each for each in values(cluster, topic) if each >= 0] == writer.acknowledged


def test_a_paused_leader_leads_until_its_session_ends(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, topic: str
) -> None:
    # The kernel accepts connections to a stopped process, which may continue at any moment.
    with (
        Cluster(zookeeper_server, tmp_path, zookeeper_session_timeout_ms="4000") as cluster,
        zookeeper_client(zookeeper_server.address) as client,
    ):
        registrations = Registrations(zookeeper_server, client, cluster)
        start(cluster, 1, 2, 3)
        cluster.admin.create_topic(topic, assignment={0: [3, 1, 2]})
        session, epoch = registrations.session(3), registrations.epoch(3)
        cluster.processes[3].pause()
        try:
            seen = 0
            while True:
                leader, registered = cluster.leader(topic), registrations.epoch(3)
                # if the session still exists, it had not expired when both values were read
                if not registrations.is_alive(session):
                    break
                assert (leader, registered) == (3, epoch)
                seen += 1
            assert seen
            eventually(lambda: cluster.leader(topic) in (1, 2))
        finally:
            cluster.processes[3].go_on()
        eventually(lambda: set(cluster.isr(topic)) == {1, 2, 3})


class Listener(Proxy):
    """A broker's port that can be closed while the broker runs. Connections are then reset, and new ones refused."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.port = int(self.address.rpartition(":")[2])

    def refuse(self) -> None:
        """Close the port."""
        self.close()

    def accept_again(self) -> None:
        """Open it again."""
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._start(self._accept)


def test_a_leader_that_lives_and_refuses_connections_loses_nothing_acknowledged_and_follows_again(
    cluster: Cluster, registrations: Registrations, topic: str, calls_to: Any
) -> None:
    start(cluster, 1, 2)
    targets = free_port(), free_port()
    ports = [Listener(each) for each in targets]
    cluster.start(
        3,
        listeners=f"PLAINTEXT://127.0.0.1:{targets[0]},GRPC://127.0.0.1:{targets[1]}",
        advertised_listeners=f"PLAINTEXT://127.0.0.1:{ports[0].port},GRPC://127.0.0.1:{ports[1].port}",
    )
    try:
        admin = Admin(f"{cluster.processes[1].address},{cluster.processes[2].address}")
        cluster._admin = admin
        admin.create_topic(topic, assignment={0: [3, 1, 2]}, configs={"min.insync.replicas": "2"})
        with Writer(cluster, topic) as writer:
            writer.until_more()
            session, epoch = registrations.session(3), registrations.epoch(3)
            for port in ports:
                port.refuse()
            eventually(lambda: registrations.epoch(3) not in (-1, epoch), "the new registration")
            assert registrations.session(3) == session, "the broker registered again in its session"
            # at the port that does not refuse, and that gets no controller requests
            behind = calls_to(f"127.0.0.1:{targets[1]}")
            assert behind.fetch(topic, 0).error.code == NotLeaderError.code, "the broker knows that it no longer leads"
            for port in ports:
                port.accept_again()
            writer.until_more()
            eventually(lambda: cluster.leader(topic) in (1, 2), "the new leader")
            eventually(lambda: set(cluster.isr(topic)) == {1, 2, 3}, "the ISR")
            writer.until_more()
            assert registrations.is_alive(session)
        assert values(cluster, topic) == writer.acknowledged
    finally:
        cluster.stop(3)
        for port in ports:
            port.close()


def test_a_whole_cluster_that_was_killed_starts_again_before_its_sessions_end(
    cluster: Cluster, registrations: Registrations, topic: str
) -> None:
    start(cluster, 1, 2)
    cluster.admin.create_topic(topic, assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"0", partition=0).result(STALL_S)
    sessions = [registrations.session(each) for each in (1, 2)]
    for process in cluster.processes.values():
        process.end(signal.SIGKILL)
    start(cluster, 1, 2)
    eventually(lambda: set(cluster.isr(topic)) == {1, 2}, "the ISR")
    assert values(cluster, topic) == [0]
    assert all(registrations.is_alive(each) for each in sessions)
