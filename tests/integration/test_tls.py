"""Tests of listeners and clients with TLS.

The tests cover certificates, also changing ones, principals and refusals.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaConsumer, KafkaProducer

from millrace.clients import Admin
from millrace.errors import BrokerUnavailableError, InvalidConfigError, SslAuthenticationError
from millrace.kafka_protocol.calls.api_versions import ApiVersionsRequest
from millrace_broker.api import RequestContext
from millrace_broker.listeners import tcp_listener
from millrace_broker.listeners.shared import UNARY_METHODS
from millrace_broker.security import ACL_AUTHORIZER
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority, Identity
from .frame_calls import framing
from .kafka_clients import read, send
from .kafka_wire import KafkaWire
from .round_trips import round_trip
from .waiting import STALL_S, eventually

RULES = "RULE:^CN=([^,]*),.*$/$1/L,DEFAULT"
LARGE = 3 * 2**20
TLS_1_3_SUITES = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"


class Files:
    """The stores of one test module."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.make()
        self.ca = self.authority.write(directory / "ca.pem")
        self.broker = self.write("broker", self.authority.issue("CN=Broker,OU=servers"))
        self.client = self.write("client", self.authority.issue("CN=Orders,OU=apps"))
        self.revoked_identity = self.authority.issue("CN=Revoked,OU=apps")
        self.revoked = self.write("revoked", self.revoked_identity)
        self.crl = self.authority.revoke(directory / "crl.pem", self.revoked_identity)

    def write(self, name: str, identity: Identity, password: str = "") -> str:
        return identity.write(self.directory / f"{name}.pem", password)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def contexts() -> Iterator[list[RequestContext]]:
    """Record the contexts of calls of the module's broker."""
    seen: list[RequestContext] = []
    with pytest.MonkeyPatch.context() as patch:
        for name, method in list(UNARY_METHODS.items()):

            def recorded(handler: Any = method.handler) -> Any:
                async def handle(broker: Any, request: Any, context: RequestContext) -> Any:
                    seen.append(context)
                    return await handler(broker, request, context)

                return handle

            patch.setitem(UNARY_METHODS, name, method._replace(handler=recorded()))
        yield seen


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: Files, contexts: Any) -> Iterator[EmbeddedBroker]:
    names = ("SSL", "MUTUAL", "PLAINTEXT", "GRPC", "GRPC_MUTUAL")
    options = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
        "listener.protocol.map": "GRPC:grpc,GRPC_MUTUAL:grpc",
        "listener.security.protocol.map": "MUTUAL:SSL,GRPC:SSL,GRPC_MUTUAL:SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.location": files.broker,
        "ssl.truststore.location": files.ca,
        "ssl.principal.mapping.rules": RULES,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.crl.location": files.crl,
        "listener.name.grpc_mutual.ssl.client.auth": "required",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("tls"), options=options) as running:
        yield running


def address(broker: EmbeddedBroker, listener: str) -> str:
    return f"127.0.0.1:{broker.server.ports[listener]}"


def client(broker: EmbeddedBroker, files: Files, listener: str = "SSL", **options: str) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return {
        "bootstrap.servers": address(broker, listener),
        "security.protocol": "SSL",
        "ssl.truststore.location": files.ca,
        **named,
    }


@pytest.mark.parametrize(
    ("listener", "transport", "principal"),
    [
        ("SSL", "auto", "User:ANONYMOUS"),
        ("MUTUAL", "auto", "User:orders"),
        ("GRPC", "grpc", "User:ANONYMOUS"),
        ("GRPC_MUTUAL", "grpc", "User:orders"),
    ],
)
def test_clients_send_and_read_as_the_principal_of_their_certificate(
    broker: EmbeddedBroker,
    files: Files,
    contexts: list[RequestContext],
    topic: str,
    listener: str,
    transport: str,
    principal: str,
) -> None:
    options = client(broker, files, listener, transport=transport, ssl_keystore_location=files.client)
    options["client.id"] = topic
    round_trip(options, topic, [b"small", bytes(LARGE), b"last"])
    own = [each for each in contexts if each.client_id == topic]
    assert {(str(each.principal), each.listener_name) for each in own} == {(principal, listener)}


def test_kafkas_clients_send_and_read(broker: EmbeddedBroker, files: Files, topic: str) -> None:
    with Admin(client(broker, files)) as admin:
        admin.create_topic(topic)
    librdkafka = {
        "bootstrap.servers": address(broker, "MUTUAL"),
        "security.protocol": "SSL",
        "ssl.ca.location": files.ca,
        "ssl.certificate.location": files.client,
        "ssl.key.location": files.client,
    }
    send(confluent_kafka.Producer(librdkafka), topic, [{"value": b"librdkafka"}, {"value": bytes(10_000)}])
    python = {
        "bootstrap_servers": address(broker, "MUTUAL"),
        "security_protocol": "SSL",
        "ssl_cafile": files.ca,
        "ssl_certfile": files.client,
        "ssl_keyfile": files.client,
    }
    with_kafka_python = KafkaProducer(**python)
    with_kafka_python.send(topic, b"kafka-python").get(STALL_S)
    with_kafka_python.close()
    reader = confluent_kafka.Consumer({**librdkafka, "group.id": topic, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    assert [each.value() for each in read(reader, 3)] == [b"librdkafka", bytes(10_000), b"kafka-python"]
    reader.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", **python)
    assert next(iter(consumer)).value == b"librdkafka"
    consumer.close()


@pytest.mark.parametrize(
    ("listener", "options", "problem"),
    [
        ("MUTUAL", {}, r"there is none\. It wants one: set ssl\.keystore\.location"),
        ("MUTUAL", {"ssl_keystore_location": "{revoked}"}, "it is revoked"),
        ("MUTUAL", {"ssl_keystore_location": "{stranger}"}, "does not know its authority"),
        ("MUTUAL", {"ssl_keystore_location": "{expired}", "ssl_reload_interval_ms": "0"}, "it has expired"),
        ("SSL", {"ssl_truststore_location": "{stranger}"}, "is refused: .*certificate.* ssl.truststore.location"),
        ("SSL", {"security_protocol": "PLAINTEXT"}, "this is a listener with TLS: set security.protocol=SSL"),
    ],
)
def test_a_refused_client_fails_at_once_with_the_reason(
    broker: EmbeddedBroker,
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
    options: dict[str, str],
    problem: str,
) -> None:
    from datetime import timedelta

    from millrace.security import stores

    monkeypatch.setattr(stores, "_check_validity", lambda *_: None)  # the broker has to notice by itself
    stranger = Authority.make("CN=stranger")
    known = {
        "revoked": files.revoked,
        "stranger": files.write("stranger", stranger.issue("CN=x,OU=y")),
        "expired": files.write("expired", files.authority.issue("CN=x,OU=y", ends=-timedelta(hours=1))),
    }
    given = {name: value.format(**known) for name, value in options.items()}
    with (
        Admin(client(broker, files, listener, **given)) as admin,
        pytest.raises(SslAuthenticationError, match=problem),
    ):
        admin.list_topics()


def test_a_certificate_of_another_host_is_refused_unless_the_check_is_off(tmp_path: Path, files: Files) -> None:
    elsewhere = files.write("elsewhere", files.authority.issue("CN=x", hosts=("elsewhere.example",)))
    options = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": elsewhere}
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        with Admin(client(broker, files)) as admin, pytest.raises(SslAuthenticationError, match="IP address mismatch"):
            admin.list_topics()
        with Admin(client(broker, files, ssl_endpoint_identification_algorithm="")) as admin:
            assert admin.list_topics() == []


def test_a_client_with_tls_at_a_listener_without_gets_the_remedy(broker: EmbeddedBroker, files: Files) -> None:
    options = client(broker, files, "PLAINTEXT", socket_connection_setup_timeout_ms="100")
    with Admin(options) as admin, pytest.raises(BrokerUnavailableError, match="is this a listener with"):
        admin.list_topics()


def test_a_client_of_kafkas_framing_at_a_listener_for_grpc_gets_the_right_address(
    broker: EmbeddedBroker, files: Files
) -> None:
    with Admin(client(broker, files, "GRPC")) as admin, pytest.raises(InvalidConfigError, match="for gRPC: set"):
        admin.list_topics()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64])
def test_an_unfinished_or_wrong_handshake_ends_and_leaves_nothing(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(tcp_listener, "_HANDSHAKE_S", 0.1)
    with KafkaWire(broker.server.ports["SSL"]) as wire:
        wire.sock.sendall(sent)
        try:
            while wire.sock.recv(1000):
                pass
        except ConnectionResetError:
            assert len(sent) > 1000, "the broker has not read all of it"
    listener = framing(broker.server)
    assert listener.access.tls is not None
    eventually(lambda: not listener._handshakes)


def client_hello(version: int) -> bytes:
    """Return the first message of a client that knows no later version than this one."""
    suites = b"\xc0\x13\xc0\x09\x00\x2f"
    body = version.to_bytes(2) + bytes(32) + b"\0" + len(suites).to_bytes(2) + suites + b"\x01\0"
    message = b"\x01" + len(body).to_bytes(3) + body
    return b"\x16\x03\x01" + len(message).to_bytes(2) + message


@pytest.mark.parametrize("version", [0x0300, 0x0301, 0x0302])
def test_a_client_of_an_insecure_version_of_tls_is_refused_and_logged(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, version: int
) -> None:
    with caplog.at_level(logging.INFO), KafkaWire(broker.server.ports["SSL"]) as wire:
        wire.sock.sendall(client_hello(version))
        alert = wire.sock.recv(100)
        assert (alert[0], alert[5]) == (21, 2), "a fatal alert"
        assert alert[6] in (40, 70), "handshake_failure, or protocol_version"
        assert wire.sock.recv(100) == b""
        eventually(lambda: "failed: [SSL: " in caplog.text)


def test_a_client_cannot_have_an_earlier_version_than_the_listener_has(tmp_path: Path, files: Files) -> None:
    options = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": files.broker,
        "ssl.enabled.protocols": "TLSv1.3",
    }
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        with Admin(client(broker, files)) as admin:
            admin.list_topics()
        with (
            Admin(client(broker, files, ssl_enabled_protocols="TLSv1.2")) as admin,
            pytest.raises(SslAuthenticationError, match=r"(?i)version"),
        ):
            admin.list_topics()


def test_a_handshake_that_trickles_ends_at_the_limit_and_is_logged(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each byte is progress for the client, and none for the limit."""
    monkeypatch.setattr(tcp_listener, "_HANDSHAKE_S", 0.2)
    hello = client_hello(0x0303)
    sent = 0
    with caplog.at_level(logging.INFO), KafkaWire(broker.server.ports["SSL"]) as wire:
        wire.sock.settimeout(0.02)
        with contextlib.suppress(ConnectionError):
            while sent < len(hello) - 1:
                wire.sock.sendall(hello[sent : sent + 1])
                sent += 1
                with contextlib.suppress(TimeoutError):
                    if wire.sock.recv(1) == b"":
                        break
        eventually(lambda: "failed: it took longer than 0.2 s" in caplog.text)
    assert not framing(broker.server)._handshakes


def test_more_handshakes_than_the_limit_end_the_oldest(
    broker: EmbeddedBroker, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_listener, "_HANDSHAKES_MAX", 2)
    silent = [KafkaWire(broker.server.ports["SSL"]) for _ in range(3)]
    with silent[0], silent[1], silent[2]:
        with pytest.raises((ConnectionResetError, EOFError)):
            silent[0]._exactly(1)
        with Admin(client(broker, files)) as admin:
            admin.list_topics()
        assert len(framing(broker.server)._handshakes) <= 2


def test_a_request_in_many_records_and_many_requests_in_one_are_answered(broker: EmbeddedBroker, files: Files) -> None:
    context = ssl.create_default_context(cafile=files.ca)
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    with KafkaWire(broker.server.ports["SSL"]) as wire:
        wire.sock = context.wrap_socket(wire.sock, server_hostname="127.0.0.1")
        from .kafka_wire import written

        for byte in written(request, 4, 1):
            wire.sock.sendall(bytes((byte,)))
        wire.sock.sendall(b"".join(written(request, 4, number) for number in range(2, 102)))
        assert [wire.receive(request.API_KEY, 4)[0] for _ in range(101)] == list(range(1, 102))


def test_certificates_change_while_clients_work(tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """The broker and the client move to another authority. Open connections stay, and bad stores change nothing."""
    store, trusted = tmp_path / "broker.pem", tmp_path / "ca.pem"
    files.authority.issue("CN=first").write(store)
    files.authority.write(trusted)
    options = {
        "listeners": "SSL://127.0.0.1:0,GRPC://127.0.0.1:0",
        "listener.security.protocol.map": "GRPC:SSL",
        "ssl.keystore.location": str(store),
        "ssl.reload.interval.ms": "0",
    }
    other = Authority.make("CN=other")

    def served() -> str:
        with socket.create_connection(("127.0.0.1", broker.port)) as sock:
            context = ssl.create_default_context(cafile=str(tmp_path / "both.pem"))
            with context.wrap_socket(sock, server_hostname="127.0.0.1") as secured:
                found: Any = secured.getpeercert()
                return str(found["subject"][0][0][1])

    (tmp_path / "both.pem").write_bytes(
        b"".join(Path(a.write(tmp_path / "x")).read_bytes() for a in (files.authority, other))
    )
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        config = {**client(broker, files), "ssl.truststore.location": str(trusted), "ssl.reload.interval.ms": "0"}
        with Admin(config) as admin, Admin({**config, "transport": "grpc"}) as over_grpc:
            admin.create_topic("t")
            over_grpc.list_topics()
            with caplog.at_level(logging.ERROR):
                store.write_bytes(b"nonsense")
                eventually(lambda: any("keeps its certificates" in each.message for each in caplog.records))
            assert served() == "first"
            other.issue("CN=second").write(store)
            eventually(lambda: served() == "second")
            for each in (admin, over_grpc):
                assert each.describe_topic("t").name == "t", "open connections stay"
            with Admin(config) as late, pytest.raises(SslAuthenticationError):
                late.list_topics()
            grpc = over_grpc._connections._links.to(broker.bootstrap_servers).grpc
            earlier = grpc.channel()
            other.write(trusted)
            assert over_grpc.describe_topic("t").name == "t", "over gRPC with the new authority"
            assert grpc.channel() is not earlier
            frames = admin._connections._links.to(broker.bootstrap_servers)._frames
            while frames is not None and frames._idle:
                frames._idle.pop().close()
            assert admin.describe_topic("t").name == "t", "a new connection of the same client"


def test_a_client_over_grpc_cannot_have_what_grpc_does_not_check(broker: EmbeddedBroker, files: Files) -> None:
    for option, value in (
        ("ssl.crl.location", files.crl),
        ("ssl.enabled.protocols", "TLSv1.3"),
        ("ssl.cipher.suites", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("ssl.endpoint.identification.algorithm", ""),
    ):
        options = {**client(broker, files, "GRPC", transport="grpc"), option: value}
        with pytest.raises(InvalidConfigError, match=f"{option} cannot be set with transport=grpc"), Admin(options):
            pass


def test_a_certificate_that_is_revoked_later_is_refused_to_new_connections(tmp_path: Path, files: Files) -> None:
    revocations = tmp_path / "crl.pem"
    files.authority.revoke(revocations, files.revoked_identity)
    identity = files.authority.issue("CN=leaver")
    options = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": files.broker,
        "ssl.truststore.location": files.ca,
        "ssl.client.auth": "required",
        "ssl.crl.location": str(revocations),
        "ssl.reload.interval.ms": "0",
    }
    with EmbeddedBroker(tmp_path / "data", options=options) as broker:
        leaver = client(broker, files, ssl_keystore_location=identity.write(tmp_path / "leaver.pem"))
        with Admin(leaver) as admin:
            assert admin.list_topics() == []
        files.authority.revoke(revocations, files.revoked_identity, identity)

        def is_refused() -> bool:
            try:
                with Admin(leaver) as admin:
                    admin.list_topics()
            except SslAuthenticationError as error:
                return "it is revoked" in error.message
            return False

        eventually(is_refused)
        with Admin(client(broker, files, ssl_keystore_location=files.client)) as other:
            assert other.list_topics() == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"listeners": "PLAINTEXT://0.0.0.0:0"}, "set allow.plaintext.listeners=true"),
        ({"listeners": "SASL_PLAINTEXT://0.0.0.0:0"}, "has no encryption, and its address is not loopback"),
        (
            {"listeners": "SSL://0.0.0.0:0", "ssl.keystore.location": "{broker}"},
            "without an authorizer everyone who reaches it could do everything: set authorizer.class.name=",
        ),
        (
            {"listeners": "PLAINTEXT://0.0.0.0:0", "allow.plaintext.listeners": "true"},
            "listener PLAINTEXT://0.0.0.0:0 is not on loopback, and without an authorizer",
        ),
        ({"listeners": "SSL://127.0.0.1:0"}, "listener SSL: a listener with TLS needs a certificate"),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0",
                "listener.security.protocol.map": "GRPC:SSL",
                "ssl.client.auth": "requested",
                "ssl.keystore.location": "{broker}",
                "ssl.truststore.location": "{ca}",
            },
            "ssl.client.auth=requested is not for gRPC",
        ),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0",
                "listener.security.protocol.map": "GRPC:SSL",
                "ssl.enabled.protocols": "TLSv1.3",
                "ssl.keystore.location": "{broker}",
            },
            "ssl.enabled.protocols cannot be set with listener GRPC",
        ),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0",
                "listener.security.protocol.map": "GRPC:SSL",
                "ssl.client.auth": "required",
                "ssl.crl.location": "{crl}",
                "ssl.keystore.location": "{broker}",
                "ssl.truststore.location": "{ca}",
            },
            "ssl.crl.location cannot be set with listener GRPC .*: gRPC checks no revocation lists",
        ),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0",
                "listener.security.protocol.map": "GRPC:SSL",
                "listener.name.grpc.ssl.cipher.suites": f"{TLS_1_3_SUITES},ECDHE-ECDSA-AES128-GCM-SHA256",
                "ssl.keystore.location": "{broker}",
            },
            "ssl.cipher.suites cannot be set with listener GRPC .*GRPC_SSL_CIPHER_SUITES",
        ),
    ],
)
def test_a_broker_that_cannot_be_as_secure_as_configured_does_not_start(
    tmp_path: Path, files: Files, options: dict[str, str], problem: str
) -> None:
    given = {name: value.format(broker=files.broker, ca=files.ca, crl=files.crl) for name, value in options.items()}
    with pytest.raises(InvalidConfigError, match=problem):
        EmbeddedBroker(tmp_path / "data", options=given).start()


def test_a_plaintext_listener_beyond_loopback_is_possible_in_a_trusted_network(tmp_path: Path) -> None:
    options = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "allow.plaintext.listeners": "true",
        "authorizer.class.name": ACL_AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedBroker(tmp_path / "data", options=options) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        assert admin.list_topics() == []
