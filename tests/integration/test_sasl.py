"""Tests of listeners with the SASL mechanisms PLAIN and SCRAM.

The tests cover Kafka's clients, clients of millrace, brokers and refusals.
"""

from __future__ import annotations

import base64
import logging
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaProducer

from millrace.clients import Admin, Producer
from millrace.config.broker import BrokerConfig
from millrace.errors import SaslAuthenticationError, SslAuthenticationError
from millrace.kafka_protocol.calls.api_versions import ApiVersionsRequest
from millrace.kafka_protocol.calls.metadata import MetadataRequest
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest
from millrace.kafka_protocol.calls.sasl_handshake import SaslHandshakeRequest
from millrace.security.sasl import SaslCredentials, exchange
from millrace.security.scram import ScramClient, ScramCredential
from millrace_broker.listeners import connection, tcp_listener
from millrace_broker.listeners.connection_states import State
from millrace_broker.metadata import ScramCredentials
from millrace_broker.security import ANONYMOUS, ListenerAccess
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority
from ..planted_secrets import planted
from .broker_cluster import Cluster
from .kafka_clients import read, send
from .kafka_wire import KafkaWire, written
from .round_trips import round_trip
from .waiting import AN_HOUR_MS, STALL_S, eventually
from .zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.usefixtures("finest_log")

PASSWORD = planted("swordfish") + ', =" \\ grün'
ESCAPED = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
ADMIN = planted("admin")
JAAS = f'x.PlainLoginModule required username="admin" password="{ADMIN}" user_alice="{ESCAPED}";'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The trust store and the key store of the broker."""
    directory = tmp_path_factory.mktemp("stores")
    authority = Authority.make()
    return authority.write(directory / "ca.pem"), authority.issue("CN=broker").write(directory / "broker.pem")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, ca: tuple[str, str]) -> Iterator[EmbeddedBroker]:
    """A broker where alice has a password for each mechanism."""
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,"
        "SHORT://127.0.0.1:0,SCRAM://127.0.0.1:0",
        "listener.security.protocol.map": "SHORT:SASL_PLAINTEXT,SCRAM:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.jaas.config": JAAS,
        "ssl.keystore.location": ca[1],
        "listener.name.short.connections.max.reauth.ms": str(AN_HOUR_MS),
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("sasl"), options=options) as running:
        admin = AdminClient({"bootstrap.servers": address(running, "PLAINTEXT")})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            upsert(admin, "alice", mechanism)
        yield running


def address(broker: EmbeddedBroker, listener: str) -> str:
    return f"127.0.0.1:{broker.server.ports[listener]}"


def upsert(admin: AdminClient, user: str, mechanism: Any, password: str = PASSWORD) -> None:
    change = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(STALL_S)


def client(broker: EmbeddedBroker, ca: tuple[str, str], listener: str = "SASL_PLAINTEXT", **options: str) -> Any:
    return {
        "bootstrap.servers": address(broker, listener),
        "security.protocol": "SASL_SSL" if listener == "SASL_SSL" else "SASL_PLAINTEXT",
        "ssl.truststore.location": ca[0],
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
        **{name.replace("_", "."): value for name, value in options.items()},
    }


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_of_millrace_authenticate(
    broker: EmbeddedBroker, ca: tuple[str, str], topic: str, listener: str, mechanism: str
) -> None:
    options = client(broker, ca, listener, sasl_mechanism=mechanism, client_id=topic)
    round_trip(options, topic)


def test_clients_of_millrace_authenticate_where_those_of_kafka_are_refused(tmp_path: Path, topic: str) -> None:
    options = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": JAAS,
        "kafka.clients.enable": "false",
    }
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        round_trip(client(broker, ("", ""), sasl_mechanism="PLAIN"), topic)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkas_clients_authenticate(broker: EmbeddedBroker, ca: tuple[str, str], topic: str, mechanism: str) -> None:
    with Admin(client(broker, ca)) as admin:
        admin.create_topic(topic)
    librdkafka = {
        "bootstrap.servers": address(broker, "SASL_SSL"),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": ca[0],
        "sasl.mechanisms": mechanism,
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    send(confluent_kafka.Producer(librdkafka), topic, [{"value": b"librdkafka"}])
    python = KafkaProducer(
        bootstrap_servers=address(broker, "SASL_PLAINTEXT"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="alice",
        sasl_plain_password=PASSWORD,
    )
    python.send(topic, b"kafka-python").get(STALL_S)
    python.close()
    reader = confluent_kafka.Consumer({**librdkafka, "group.id": topic, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    assert [each.value() for each in read(reader, 2)] == [b"librdkafka", b"kafka-python"]
    reader.close()


def test_a_jaas_configuration_is_the_same_as_user_and_password(broker: EmbeddedBroker, ca: tuple[str, str]) -> None:
    jaas = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{ESCAPED}";'
    options = client(broker, ca, sasl_jaas_config=jaas, sasl_username="", sasl_password="")
    with Admin(options) as admin:
        admin.list_topics()


@pytest.mark.parametrize(
    ("listener", "options", "problem"),
    [
        ("SASL_PLAINTEXT", {"sasl_password": "wrong"}, "authentication failed: invalid credentials"),
        ("SASL_PLAINTEXT", {"sasl_password": "wrong", "sasl_mechanism": "PLAIN"}, "invalid credentials"),
        ("SASL_PLAINTEXT", {"sasl_username": "nobody"}, "authentication failed: invalid credentials"),
        ("SCRAM", {"sasl_mechanism": "PLAIN"}, "does not take sasl.mechanism=PLAIN: it takes SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", {"security_protocol": "PLAINTEXT"}, "wants SASL first: set security.protocol=SASL_SSL"),
        ("PLAINTEXT", {}, "this listener has no SASL: set security.protocol=PLAINTEXT"),
    ],
)
def test_a_refused_client_fails_at_once_with_the_reason(
    broker: EmbeddedBroker,
    ca: tuple[str, str],
    listener: str,
    options: dict[str, str],
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = client(broker, ca, listener, socket_connection_setup_timeout_ms=str(AN_HOUR_MS), **options)
    with (
        caplog.at_level(logging.DEBUG),
        Admin(config) as admin,
        pytest.raises(SaslAuthenticationError, match=problem) as raised,
    ):
        admin.list_topics()
    assert PASSWORD not in caplog.text + str(raised.value) + repr(admin._connections.config)


def test_a_connection_without_authentication_may_only_ask_for_versions(broker: EmbeddedBroker) -> None:
    for request, version in ((MetadataRequest(topics=()), 1), (SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), 1)):
        with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
            wire.send(request, version)
            if isinstance(request, SaslAuthenticateRequest):
                assert wire.receive(request.API_KEY, version)[1].error_code == 34
            assert wire.received == b"", "the broker closes the connection"


def _scram(wire: KafkaWire, scram: ScramClient, final: bytes | None = None) -> Any:
    """Authenticate with SCRAM-SHA-256, or with a recorded last message. Return it and the answer."""
    assert wire.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1).error_code == 0
    challenge = wire.call(SaslAuthenticateRequest(auth_bytes=scram.first()), 2)
    last = final or scram.final(bytes(challenge.auth_bytes))
    return last, wire.call(SaslAuthenticateRequest(auth_bytes=last), 2)


def test_a_replayed_exchange_is_refused_and_the_connection_closed(broker: EmbeddedBroker) -> None:
    scram = ScramClient("SCRAM-SHA-256", "alice", PASSWORD)
    with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
        recorded, answer = _scram(wire, scram)
        assert answer.error_code == 0
    with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
        _, answer = _scram(wire, scram, recorded)
        assert answer.error_code == 58
        assert "does not belong to this connection" in answer.error_message
        assert wire.received == b""


def test_an_unknown_user_gets_a_challenge_as_a_known_one_does(broker: EmbeddedBroker) -> None:
    salts = []
    for _ in range(2):
        with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
            wire.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
            scram = ScramClient("SCRAM-SHA-256", "nobody", "x")
            answer = wire.call(SaslAuthenticateRequest(auth_bytes=scram.first()), 2)
            assert answer.error_code == 0
            salts.append(bytes(answer.auth_bytes).split(b",")[1:])
    assert salts[0] == salts[1]


def test_the_challenge_of_an_unknown_user_is_like_those_of_users(broker: EmbeddedBroker) -> None:
    """Each tool makes salts of its own length and letters, and administrators choose the iterations."""
    credentials = broker.server.broker.scram_credentials

    def shape(salt: bytes, iterations: int) -> tuple[int, bool, int]:
        return len(salt), salt.isalnum(), iterations

    def shape_of(user: str) -> tuple[int, bool, int]:
        with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
            wire.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
            scram = ScramClient("SCRAM-SHA-512", user, "x")
            challenge = bytes(wire.call(SaslAuthenticateRequest(auth_bytes=scram.first()), 2).auth_bytes).decode()
        parts = dict(part.split("=", 1) for part in challenge.split(","))
        return shape(base64.b64decode(parts["s"]), int(parts["i"]))

    made_by_kafka = ScramCredential.of_salted_password("SCRAM-SHA-512", b"x" * 64, b"1kq2tov03nn7sqpd0plkq9a2j", 8192)
    before = credentials._of_users
    credentials._replace({**before, "kafka-made": {"SCRAM-SHA-512": made_by_kafka}})
    try:
        users = {shape(each["SCRAM-SHA-512"].salt, each["SCRAM-SHA-512"].iterations) for each in known(credentials)}
        assert {shape_of(f"nobody-{number}") for number in range(20)} == users
        assert len(users) > 1
    finally:
        credentials._replace(before)


def known(credentials: ScramCredentials) -> list[Mapping[str, ScramCredential]]:
    return [each for each in credentials.of_users().values() if "SCRAM-SHA-512" in each]


def test_all_brokers_answer_an_unknown_user_with_the_same_challenge(broker: EmbeddedBroker) -> None:
    credentials = broker.server.broker.scram_credentials
    other = ScramCredentials(credentials._coordination)
    for name in ("nobody", "stranger"):
        assert credentials.model(name, "SCRAM-SHA-512") == other.model(name, "SCRAM-SHA-512")


def test_a_large_request_before_authentication_is_refused_before_it_is_received(broker: EmbeddedBroker) -> None:
    head = struct.pack(">ihhi", 1_000_000, ApiVersionsRequest.API_KEY, 3, 1)
    with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
        wire.sock.sendall(head)
        assert wire.received == b"", "the broker closes the connection"


def test_more_connections_without_a_call_than_the_limit_end_the_oldest(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise clients that say nothing could take all file descriptors of the broker."""
    monkeypatch.setattr(tcp_listener, "_UNCOUNTED_MAX", 2)
    port = broker.server.ports["SASL_PLAINTEXT"]
    with KafkaWire(port) as first, KafkaWire(port) as second, KafkaWire(port) as third:
        with pytest.raises((ConnectionResetError, EOFError)):
            first._exactly(1)
        for each in (second, third):
            assert _scram(each, ScramClient("SCRAM-SHA-256", "alice", PASSWORD))[1].error_code == 0
            each.call(MetadataRequest(topics=()), 1)
        with KafkaWire(port) as fourth, KafkaWire(port) as fifth:
            for each in (fourth, fifth):
                each.call(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
            assert second.call(MetadataRequest(topics=()), 1).brokers, "connections with calls stay"


def test_clients_without_authentication_take_no_connection_place(tmp_path: Path) -> None:
    """Otherwise some of them could keep all others out, and operators from the reserve."""
    options = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": JAAS,
        "max.connections": "1",
        "control.max.connections": "1",
    }
    versions = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    with EmbeddedBroker(tmp_path, options=options) as broker, ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(KafkaWire(broker)).call(versions, 3)
            stack.enter_context(KafkaWire(broker)).call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        admission = broker.server.broker.admission
        assert admission.statistics().connections == 0
        with KafkaWire(broker) as wire:
            wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            message = f"\0alice\0{PASSWORD}".encode()
            assert wire.call(SaslAuthenticateRequest(auth_bytes=message), 2).error_code == 0
            assert wire.call(MetadataRequest(topics=()), 1).brokers
            assert admission.statistics().connections == 1


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_client_that_authenticates_too_slowly_is_disconnected(
    broker: EmbeddedBroker,
    ca: tuple[str, str],
    listener: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each call is progress for the client, and none for the limit."""
    monkeypatch.setattr(connection, "AUTHENTICATION_S", 0.2)
    with KafkaWire(broker.server.ports[listener]) as wire:
        if listener == "SASL_SSL":
            wire.sock = ssl.create_default_context(cafile=ca[0]).wrap_socket(wire.sock, server_hostname="127.0.0.1")

        def is_closed() -> bool:
            try:
                wire.call(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
            except (ConnectionError, EOFError):
                return True
            return False

        eventually(is_closed)
        eventually(lambda: f"127.0.0.1:{wire.port} is closed: it has not authenticated within" in caplog.text)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_client_that_stops_in_a_message_of_sasl_takes_no_place(broker: EmbeddedBroker, mechanism: str) -> None:
    """Otherwise some clients without a password could keep the heartbeats of all groups out."""
    admission = broker.server.broker.admission
    with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
        message = next(exchange(SaslCredentials(mechanism, "alice", PASSWORD), "127.0.0.1"))
        data = written(SaslAuthenticateRequest(auth_bytes=message), 2)
        wire.send(SaslHandshakeRequest(mechanism=mechanism), 1)
        wire.sock.sendall(data[:-1])
        wire.receive(SaslHandshakeRequest.API_KEY, 1)
        connections = broker.server.listeners.by_name["SASL_PLAINTEXT"]._connections  # type: ignore[union-attr]
        (connection,) = (each for each in connections if each.client_address.port == wire.port)
        eventually(lambda: connection._state in (State.HEAD, State.RECEIVING), "the broker to receive the part")
        assert admission.statistics().requests == 0
        wire.sock.sendall(data[-1:])
        assert wire.receive(SaslAuthenticateRequest.API_KEY, 2)[1].error_code == 0


def test_a_certificate_decides_nothing_at_a_listener_with_sasl(ca: tuple[str, str]) -> None:
    options = {
        "listeners": "SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": ca[1],
        "ssl.principal.mapping.rules": "RULE:^CN=nobody$/nobody/",
    }
    config = BrokerConfig.load(options)
    certificate = ssl.PEM_cert_to_DER_cert(Path(ca[0]).read_text())
    assert ListenerAccess(config, "SASL_SSL").principal(certificate) == ANONYMOUS
    with pytest.raises(SslAuthenticationError, match="no rule"):
        ListenerAccess(config, "SSL").principal(certificate)


def test_a_connection_authenticates_again_or_ends(broker: EmbeddedBroker, ca: tuple[str, str]) -> None:
    with KafkaWire(broker.server.ports["SHORT"]) as wire:
        for _ in range(2):
            answer = _scram(wire, ScramClient("SCRAM-SHA-256", "alice", PASSWORD))[1]
            assert (answer.error_code, answer.session_lifetime_ms) == (0, AN_HOUR_MS)
        wire.call(MetadataRequest(topics=()), 1)
        conversation = next(
            each._sasl
            for listener in broker.server.listeners.by_name.values()
            for each in getattr(listener, "_connections", ())
            if each._client.port == wire.port
        )
        conversation._expires = 0.0
        wire.send(MetadataRequest(topics=()), 1)
        assert wire.received == b""
    with Admin(client(broker, ca, "SHORT")) as admin:
        admin.list_topics()
        frames = admin._connections._links.to(address(broker, "SHORT"))._frames
        assert frames is not None
        (sock,) = frames._idle
        assert sock.expires_at < time.monotonic() + AN_HOUR_MS / 1000, "before the broker ends it"
        sock.expires_at = 0.0
        admin.list_topics()
        assert sock not in frames._idle, "a new connection authenticates"


def test_kafkas_admin_describes_and_deletes_credentials(broker: EmbeddedBroker, ca: tuple[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": address(broker, "PLAINTEXT")})
    upsert(admin, "böb, the builder", ScramMechanism.SCRAM_SHA_512)
    found = {user: each.result(STALL_S) for user, each in admin.describe_user_scram_credentials(["alice"]).items()}
    assert {each.mechanism for each in found["alice"].scram_credential_infos} == {
        ScramMechanism.SCRAM_SHA_256,
        ScramMechanism.SCRAM_SHA_512,
    }
    options = client(broker, ca, sasl_username="böb, the builder")
    with Admin(options) as own:
        own.list_topics()
    deletion = UserScramCredentialDeletion("böb, the builder", ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([deletion])["böb, the builder"].result(STALL_S)
    with Admin(options) as own, pytest.raises(SaslAuthenticationError):
        own.list_topics()
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        admin.alter_user_scram_credentials([deletion])["böb, the builder"].result(STALL_S)
    assert raised.value.args[0].code() == 91


def test_brokers_authenticate_to_each_other_and_share_credentials(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """The credential of the brokers is made from their own password at the first start."""
    jaas = f'ScramLoginModule required username="broker" password="{planted("broker")}";'
    options = {
        "listeners": "INTERNAL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener_security_protocol_map": "INTERNAL:SASL_PLAINTEXT",
        "inter_broker_listener_name": "INTERNAL",
        "sasl_jaas_config": jaas,
    }
    with Cluster(zookeeper_server, tmp_path, **options) as cluster:
        cluster.start(1, 2)
        servers = ",".join(address(each, "PLAINTEXT") for each in cluster.brokers.values())
        with Admin(servers) as admin, Producer(servers) as producer:
            admin.create_topic("t", assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
            producer.send("t", b"value").result(STALL_S)
        admin_client = AdminClient({"bootstrap.servers": address(cluster.brokers[1], "PLAINTEXT")})
        upsert(admin_client, "alice", ScramMechanism.SCRAM_SHA_512)
        credentials = cluster.brokers[2].server.broker.scram_credentials
        eventually(lambda: credentials.get("alice", "SCRAM-SHA-512") is not None)
