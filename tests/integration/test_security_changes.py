"""Tests of security changes while a cluster works.

The changes are from plaintext to TLS, new certificates, new authorities and ACLs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from millrace.acls import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import AuthorizationError, MillraceError, UsageError
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.listeners.listener_set import ListenerSet
from millrace_broker.listeners.tcp_listener import TcpListener

from ..ports import free_port
from .broker_cluster import Cluster
from .security_files import RELOAD_MS, SecurityFiles
from .waiting import STALL_S, eventually
from .zookeeper_server import ZooKeeperServer

TOPIC = "orders"
TRUSTED_NETWORK = {
    "allow.plaintext.listeners": "true",
    "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Options of brokers with plaintext beyond loopback."""
_OVERLAP_S = 4 * RELOAD_MS / 1000
"""The time in which brokers and clients have read a file."""


class Load:
    """A producer that sends until the end of its block.

    The producer also keeps the acknowledged records.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[bytes] = []
        self.errors: list[Exception] = []

    def _run(self) -> None:
        try:
            with Producer(self._config) as producer:
                number = 0
                while not self._is_ending.is_set():
                    value = b"%d-%d" % (id(self), number)
                    producer.send(TOPIC, value).result(STALL_S)
                    self.acknowledged.append(value)
                    number += 1
        except MillraceError as error:
            self.errors.append(error)

    def goes_on(self) -> None:
        """Wait until more records are acknowledged."""
        before = len(self.acknowledged)
        eventually(lambda: len(self.acknowledged) >= before + 3 or self.errors)
        assert self.errors == []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        self._thread.join()


class KafkaLoad(Load):
    """The same with librdkafka."""

    def _run(self) -> None:
        producer = confluent_kafka.Producer({**self._config, "enable.idempotence": True})

        def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None:
                self.acknowledged.append(message.value())
            else:
                self.errors.append(confluent_kafka.KafkaException(error))

        number = 0
        while not self._is_ending.is_set():
            producer.produce(TOPIC, b"%d-%d" % (id(self), number), on_delivery=delivered)
            producer.flush(STALL_S)
            number += 1


def read_all(config: dict[str, Any], partitions: int, expected: int) -> list[bytes]:
    """Read all records of the topic."""
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(partitions)])
        consumer.seek_to_beginning()
        found: list[bytes] = []

        def has_all() -> bool:
            found.extend(record.value or b"" for record in consumer.poll(timeout_ms=500))
            return len(found) >= expected

        eventually(has_all, progress=lambda: len(found))
    return found


def test_a_cluster_changes_from_plaintext_to_tls_while_producers_work(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """The three rolling restarts of docs/security.md, with clients that move between the second and the third.

    The brokers have the options of a cluster with plaintext beyond loopback.
    """
    files = SecurityFiles(tmp_path / "security", brokers=3)
    ports = {number: {name: free_port() for name in ("PLAINTEXT", "SASL_SSL", "SSL")} for number in (1, 2, 3)}

    def listeners(number: int, *names: str) -> dict[str, str]:
        return {"listeners": ",".join(f"{name}://127.0.0.1:{ports[number][name]}" for name in names)}

    everything = ("PLAINTEXT", "SASL_SSL", "SSL")

    def options(step: int, number: int) -> dict[str, str]:
        if step == 0:
            return TRUSTED_NETWORK | listeners(number, "PLAINTEXT")
        secure = files.broker(number)
        if step == 1:
            between = {"inter.broker.listener.name": "PLAINTEXT"}
            return secure | TRUSTED_NETWORK | listeners(number, *everything) | between
        if step == 2:
            both = {"broker.principals": "User:broker;User:ANONYMOUS"}
            return secure | TRUSTED_NETWORK | listeners(number, *everything) | both
        return secure | listeners(number, "SASL_SSL", "SSL")

    def client(name: str, listener: str) -> dict[str, Any]:
        servers = ",".join(f"127.0.0.1:{each[listener]}" for each in ports.values())
        given = {} if name == "plaintext" else files.client(name)
        return given | {"bootstrap.servers": servers}

    with Cluster(zookeeper_server, tmp_path / "cluster") as cluster:

        def roll(step: int, loads: list[Load], config: dict[str, Any]) -> None:
            for number in (1, 2, 3):
                cluster.stop(number)
                cluster.start(number, **options(step, number))
                for load in loads:
                    load.goes_on()
                with Admin(config) as admin:
                    eventually(
                        lambda admin=admin: all(len(each.isr) == 3 for each in admin.describe_topic(TOPIC).partitions)
                    )

        for number in (1, 2, 3):
            cluster.start(number, **options(0, number))
        plain, secure = client("plaintext", "PLAINTEXT"), client("admin", "SASL_SSL")
        with Admin(plain) as admin:
            replicas = {number: [1 + (number + each) % 3 for each in range(3)] for number in range(3)}
            admin.create_topic(TOPIC, assignment=replicas, configs={"min.insync.replicas": "2"})
        kafka_secure = client("admin.librdkafka", "SASL_SSL")
        before: list[Load] = [Load(plain), KafkaLoad(plain)]
        both: list[Load] = [Load(secure), KafkaLoad(kafka_secure)]
        after: list[Load] = [Load(secure), KafkaLoad(kafka_secure)]
        with before[0], before[1]:
            roll(1, before, plain)
            roll(2, before, plain)
            with both[0], both[1]:
                for load in (*both, *before):
                    load.goes_on()
        with after[0], after[1]:
            roll(3, after, secure)
        loads = (*before, *both, *after)
        assert [error for load in loads for error in load.errors] == []
        sent = [value for load in loads for value in load.acknowledged]
        assert set(sent) <= set(read_all(client("admin.tls", "SSL"), 3, len(sent)))
        with pytest.raises(AuthorizationError), Admin(client("guest", "SASL_SSL")) as admin:
            admin._connections.call(lambda stub: stub.LeaderAndIsr, pb.LeaderAndIsrRequest())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> SecurityFiles:
    return SecurityFiles(tmp_path_factory.mktemp("files") / "security", brokers=2)


@pytest.fixture(scope="module")
def cluster(
    files: SecurityFiles, zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two brokers, whose controller has a listener of its own."""
    with Cluster(zookeeper_server, tmp_path_factory.mktemp("cluster")) as cluster:
        for number in (1, 2):
            cluster.start(
                number,
                **files.broker(number)
                | {
                    "listeners": "SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
                    "listener.security.protocol.map": "CONTROLLER:SSL",
                    "control.plane.listener.name": "CONTROLLER",
                    "listener.name.controller.ssl.client.auth": "required",
                },
            )
        with Admin(files.client("admin", *cluster.brokers.values())) as admin:
            admin.create_topic(TOPIC, assignment={0: [1, 2], 1: [2, 1]}, configs={"min.insync.replicas": "2"})
            admin.create_acls([allowed(TOPIC, AclOperation.WRITE), allowed(TOPIC, AclOperation.READ)])
        yield cluster


def allowed(topic: str, operation: AclOperation, principal: str = "User:client") -> AclBinding:
    pattern = ResourcePattern(ResourceType.TOPIC, topic, PatternType.LITERAL)
    return AclBinding(pattern, AccessControlEntry(principal, "*", operation, AclPermission.ALLOW))


OF_THE_CONTROLLER = {
    "LeaderAndIsr": pb.LeaderAndIsrRequest(),
    "StopReplica": pb.StopReplicaRequest(),
    "UpdateMetadata": pb.UpdateMetadataRequest(),
}


@pytest.mark.parametrize(
    ("listener", "call", "request_", "remedy"),
    [
        *(("SSL", call, request, "Brokers come by listener CONTROLLER") for call, request in OF_THE_CONTROLLER.items()),
        ("CONTROLLER", "Fetch", pb.FetchRequest(replica_id=2), "Brokers come by listener SSL"),
        ("CONTROLLER", "WriteTxnMarkers", pb.WriteTxnMarkersRequest(), "Brokers come by listener SSL"),
        ("SASL_SSL", "UpdateMetadata", pb.UpdateMetadataRequest(), "Brokers come by listener CONTROLLER"),
    ],
)
def test_a_broker_calls_by_the_listener_for_the_call_alone(
    files: SecurityFiles, cluster: Cluster, listener: str, call: str, request_: Any, remedy: str
) -> None:
    broker = cluster.brokers[1]
    config = files.client("admin.tls" if listener != "SASL_SSL" else "admin", broker)
    if listener != "SASL_SSL":  # with the certificate of a broker
        config["ssl.keystore.location"] = str(files.path / "broker-2.pem")
        config["bootstrap.servers"] = f"127.0.0.1:{broker.server.ports[listener]}"
    with Admin(config) as admin, pytest.raises(AuthorizationError, match=remedy):
        admin._connections.call(lambda stub: getattr(stub, call), request_)


def test_brokers_take_other_key_stores_by_options_while_a_producer_works(
    files: SecurityFiles, cluster: Cluster
) -> None:
    brokers, names = cluster.brokers, ("sasl_ssl", "ssl", "controller")
    options = [f"listener.name.{name}.ssl.keystore.location" for name in names]
    with (
        Load(files.client("client", *brokers.values())) as load,
        Admin(files.client("admin", *brokers.values())) as admin,
    ):
        for broker_id, broker in brokers.items():
            moved = files.path / f"moved-{broker_id}.pem"
            moved.write_bytes((files.path / f"broker-{broker_id}.pem").read_bytes())
            admin.alter_configs(str(broker_id), dict.fromkeys(options, str(moved)), resource="broker")
            peers = broker.server.broker.peers
            for listener in (peers._listener, peers._control_plane):
                assert listener.security is not None
                assert listener.security.ssl_keystore_location == str(moved), "for calls to other brokers too"
            eventually(lambda broker=broker, moved=moved: has_key_store(broker.server.listeners, moved))
        with Admin(files.client("admin.tls", *brokers.values())) as new_connection:
            assert len(new_connection.describe_topic(TOPIC).partitions) == 2
        load.goes_on()
        for broker_id in brokers:
            admin.alter_configs(str(broker_id), delete=options, resource="broker")
        load.goes_on()
    assert load.errors == []


def has_key_store(listeners: ListenerSet, path: Path) -> bool:
    """Return whether new connections of all listeners get the certificate of a file."""
    found = (listener for listener in listeners.by_name.values() if isinstance(listener, TcpListener))
    return all(listener.access.options.ssl_keystore_location == str(path) for listener in found)


@pytest.mark.dial("ROTATION_ROUNDS", seconds=5)
def test_no_call_of_an_authorized_client_fails_while_certificates_and_acls_change(
    files: SecurityFiles, cluster: Cluster, rounds: int
) -> None:
    """Each round renews certificates, or the authority in its three steps, and changes an ACL of another user."""
    brokers = list(cluster.brokers.values())
    by_password, by_certificate = (files.client(name, *brokers, retries=0) for name in ("client", "client.tls"))
    directory, admin_config = files.directory, files.client("admin.tls", *brokers)
    guest = files.client("guest.tls", *brokers)
    renewals = (lambda: directory.renew(1, _OVERLAP_S), directory.add_authority, lambda: directory.renew(1, _OVERLAP_S))
    steps = (*renewals, directory.retire)

    def is_done(step: Callable[[], object]) -> bool:
        try:
            step()
        except UsageError:  # the step before it is too recent
            return False
        return True

    with Load(by_password) as one, Load(by_certificate) as other, Admin(admin_config) as admin:
        for number in range(rounds):
            eventually(lambda number=number: is_done(steps[number % len(steps)]))
            changed = time.monotonic()
            for broker_id, broker in enumerate(brokers, start=1):
                for listener in ("SASL_SSL", "SSL"):
                    eventually(lambda each=(broker_id, broker, listener): files.is_served(*each))
            right = allowed(TOPIC, AclOperation.WRITE, "User:guest")
            if number % 2 == 0:
                assert set(admin.create_acls([right]).values()) == {None}
            else:
                admin.delete_acls([AclBindingFilter.of(right)])
            eventually(lambda number=number: may_write(guest) == (number % 2 == 0))
            # New connections of authorized clients, with the new files, while earlier ones go on.
            for config in (by_password, by_certificate):
                with Producer(config) as producer:
                    producer.send(TOPIC, b"new connection").result(STALL_S)
            one.goes_on()
            other.goes_on()
            eventually(lambda changed=changed: time.monotonic() - changed > _OVERLAP_S)
    assert one.errors == other.errors == []


def may_write(config: dict[str, Any]) -> bool:
    """Return whether a client may write to the topic."""
    try:
        with Producer(config) as producer:
            producer.send(TOPIC, b"of a guest").result(STALL_S)
    except AuthorizationError:
        return False
    return True
