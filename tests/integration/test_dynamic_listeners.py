"""Tests of changed listeners of a running broker.

Dynamic options add and remove listeners, and give them other certificates.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.clients import Admin
from millrace.coordination import paths
from millrace.coordination.nodes import ConfigNode
from millrace.errors import InvalidConfigError, InvalidRequestError, SaslAuthenticationError
from millrace.kafka_protocol.calls.metadata import MetadataRequest
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest
from millrace.kafka_protocol.calls.sasl_handshake import SaslHandshakeRequest
from millrace_broker.broker import Broker
from millrace_broker.listeners.tcp_listener import TcpListener
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority, Identity
from ..ports import free_port
from .kafka_wire import KafkaWire
from .waiting import eventually

STATIC = "PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0"
PASSWORD = "the password of a key store"


class Stores:
    """An authority, and key stores with a password."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority.make()
        self.ca = self.authority.write(directory / "ca.pem")

    def write(self, name: str, password: str = PASSWORD) -> tuple[str, Identity]:
        identity = self.authority.issue(f"CN={name}")
        path = self.directory / f"{name}.p12"
        path.write_bytes(identity.pkcs12(password))
        return str(path), identity


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def broker(data: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(data, options={"password.encoder.secret": "one secret"}) as running:
        yield running


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    """Return a client of the broker, whose dynamic options are removed after the test."""
    with Admin(broker.bootstrap_servers) as admin:
        yield admin
        admin.alter_configs("0", delete=list(broker.server.broker.broker_configs.for_this), resource="broker")
        eventually(lambda: broker.server.ports.keys() == {"PLAINTEXT", "GRPC"})


def alter(admin: Admin, **options: str) -> None:
    admin.alter_configs("0", {name.replace("__", "."): value for name, value in options.items()}, resource="broker")


def shown(broker: EmbeddedBroker, listener: str) -> str:
    """Return the certificate that a listener shows to new connections."""
    return ssl.get_server_certificate(("127.0.0.1", broker.server.ports[listener])).strip()


def advertised(port: int) -> list[tuple[str, int]]:
    """Return the address of each broker for the clients of a listener."""
    with KafkaWire(port) as wire:
        return [(each.host, each.port) for each in wire.call(MetadataRequest(topics=()), 1).brokers]


def is_registered(broker: EmbeddedBroker, listener: str) -> bool:
    """Return whether the cluster knows a listener of the broker."""
    return listener in broker.server.broker.member.live_brokers()[0].endpoints


def answers(port: int) -> bool:
    """Return whether something listens at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def authenticated(wire: KafkaWire, name: str, password: str) -> int:
    """Authenticate a connection, or authenticate it again. Return the error's number."""
    assert wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    request = SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{password}".encode())
    code: int = wire.call(request, 2).error_code
    return code


@pytest.mark.parametrize("protocol", ["kafka", "grpc"])
def test_a_listener_is_added_and_removed_while_clients_work(
    broker: EmbeddedBroker, admin: Admin, protocol: str
) -> None:
    alter(admin, listeners=f"{STATIC},ADDED://127.0.0.1:0", listener__protocol__map=f"GRPC:grpc,ADDED:{protocol}")
    eventually(lambda: is_registered(broker, "ADDED"))
    port = broker.server.ports["ADDED"]
    if protocol == "kafka":
        assert advertised(port) == [("127.0.0.1", port)]
    transport = "auto" if protocol == "kafka" else "grpc"
    with Admin({"bootstrap.servers": f"127.0.0.1:{port}", "transport": transport}) as added:
        assert "listeners" in added.describe_configs("0", resource="broker")
        admin.alter_configs("0", delete=["listeners", "listener.protocol.map"], resource="broker")
        eventually(lambda: not is_registered(broker, "ADDED"))
    eventually(lambda: not answers(port))
    assert advertised(broker.port) == [("127.0.0.1", broker.port)]


def test_options_that_are_set_while_listeners_start_are_checked_and_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = {"listeners": f"{STATIC},ADDED://127.0.0.1:0", "listener.protocol.map": "GRPC:grpc,ADDED:kafka"}
    moved = {"listeners": "PLAINTEXT://127.0.0.1:1,GRPC://127.0.0.1:0"}
    refused: list[InvalidConfigError] = []
    start = TcpListener.start

    async def alter_and_start(listener: TcpListener, broker: Broker) -> None:
        for options in (moved, added):
            try:
                await broker.executors.administer(broker.live_config.alter, "0", options, set())
            except InvalidConfigError as error:
                refused.append(error)
        await start(listener, broker)

    monkeypatch.setattr(TcpListener, "start", alter_and_start)
    with EmbeddedBroker(tmp_path) as starting:
        eventually(lambda: "ADDED" in starting.server.broker.member.live_brokers()[0].endpoints)
        assert answers(starting.server.ports["ADDED"])
    assert "address of listener PLAINTEXT" in refused[0].message


@pytest.mark.parametrize("protocol", ["kafka", "grpc"])
def test_another_listener_takes_the_address_of_a_removed_one(
    broker: EmbeddedBroker, admin: Admin, protocol: str
) -> None:
    port = free_port()
    protocols = f"GRPC:grpc,OLD:{protocol},NEW:{protocol}"
    for name in ("OLD", "NEW"):
        alter(admin, listeners=f"{STATIC},{name}://127.0.0.1:{port}", listener__protocol__map=protocols)
        eventually(lambda name=name: broker.server.ports.get(name) == port)
        eventually(lambda name=name: is_registered(broker, name))
        transport = "auto" if protocol == "kafka" else "grpc"
        with Admin({"bootstrap.servers": f"127.0.0.1:{port}", "transport": transport}) as client:
            client.describe_configs("0", resource="broker")
    assert broker.server.ports.keys() == {"PLAINTEXT", "GRPC", "NEW"}


def test_a_listener_gets_another_key_store_for_new_connections(
    broker: EmbeddedBroker, admin: Admin, stores: Stores
) -> None:
    first, identity = stores.write("first")
    alter(
        admin,
        listeners=f"{STATIC},SECURE://127.0.0.1:0",
        listener__security__protocol__map="SECURE:SSL",
        listener__name__secure__ssl__keystore__location=first,
        listener__name__secure__ssl__keystore__password=PASSWORD,
    )
    eventually(lambda: "SECURE" in broker.server.ports)
    eventually(lambda: shown(broker, "SECURE") in identity.pem().decode())
    options = {
        "bootstrap.servers": f"127.0.0.1:{broker.server.ports['SECURE']}",
        "security.protocol": "SSL",
        "ssl.truststore.location": stores.ca,
    }
    with Admin(options) as client:
        client.describe_configs("0", resource="broker")
        second, other = stores.write("second")
        alter(admin, listener__name__secure__ssl__keystore__location=second)
        eventually(lambda: shown(broker, "SECURE") in other.pem().decode())
        # The connection with the first certificate stays.
        found = client.describe_configs("0", resource="broker")["listener.name.secure.ssl.keystore.location"]
        assert (found.value, found.source) == (second, "DYNAMIC_BROKER_CONFIG")


def test_users_of_a_listener_change_for_new_authentications(broker: EmbeddedBroker, admin: Admin) -> None:
    def users(**passwords: str) -> str:
        names = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
        return f"org.apache.kafka.common.security.plain.PlainLoginModule required {names};"

    def login(name: str, password: str) -> Admin:
        return Admin(
            {
                "bootstrap.servers": f"127.0.0.1:{broker.server.ports['LOGIN']}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": name,
                "sasl.password": password,
            }
        )

    jaas = "listener.name.login.sasl.jaas.config"
    options = {
        "listeners": f"{STATIC},LOGIN://127.0.0.1:0",
        "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
    }
    admin.alter_configs("0", {**options, jaas: users(ann="one")}, resource="broker")
    eventually(lambda: is_registered(broker, "LOGIN"))
    with login("ann", "one") as ann, KafkaWire(broker.server.ports["LOGIN"]) as wire:
        ann.describe_configs("0", resource="broker")
        assert authenticated(wire, "ann", "one") == 0
        admin.alter_configs("0", {jaas: users(bob="secret-of-bob")}, resource="broker")
        listener = broker.server.listeners.by_name["LOGIN"]
        assert isinstance(listener, TcpListener)
        eventually(lambda: "user_bob" in listener.access.options.login)
        ann.describe_configs("0", resource="broker")  # by the connection that she has
        assert authenticated(wire, "ann", "one") == SaslAuthenticationError.code
        assert wire.received == b""
    with login("bob", "secret-of-bob") as bob:
        found = bob.describe_configs("0", resource="broker")
        assert found[jaas].is_sensitive
        assert "secret-of-bob" not in str(found)
    with login("ann", "one") as gone, pytest.raises(SaslAuthenticationError):
        gone.describe_configs("0", resource="broker")


def test_a_password_is_stored_encrypted_never_described_and_read_again_after_a_restart(
    tmp_path: Path, stores: Stores
) -> None:
    path, identity = stores.write("restarted")
    listener = {
        "listeners": f"{STATIC},SECURE://127.0.0.1:0",
        "listener.security.protocol.map": "SECURE:SSL",
        "listener.name.secure.ssl.keystore.location": path,
        "listener.name.secure.ssl.keystore.password": PASSWORD,
    }
    password = "listener.name.secure.ssl.keystore.password"
    for secrets in (
        {"password.encoder.secret": "one"},
        {"password.encoder.secret": "two", "password.encoder.old.secret": "one"},
        {"password.encoder.secret": "two"},
    ):
        with EmbeddedBroker(tmp_path, options=secrets) as broker, Admin(broker.bootstrap_servers) as admin:
            if not broker.server.broker.broker_configs.for_this:
                admin.alter_configs("0", listener, resource="broker")
            eventually(lambda broker=broker: "SECURE" in broker.server.ports)
            assert shown(broker, "SECURE") in identity.pem().decode()
            found = admin.describe_configs("0", resource="broker")[password]
            assert (found.value, found.is_sensitive, found.source) == ("", True, "DYNAMIC_BROKER_CONFIG")
            node, _ = broker.server.broker.coordination.get(paths.config_path("brokers/0"))
            stored = ConfigNode.decode(node).config
            assert stored["listener.name.secure.ssl.keystore.location"] == path
            assert stored[password].startswith("keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES")
            assert PASSWORD not in str(stored)


@pytest.mark.parametrize("protocol", ["kafka", "grpc"])
def test_a_broker_starts_without_a_dynamic_listener_whose_address_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    port = free_port()
    added = {"listeners": f"{STATIC},ADDED://127.0.0.1:{port}", "listener.protocol.map": f"GRPC:grpc,ADDED:{protocol}"}
    added["listener.security.protocol.map"] = "ADDED:PLAINTEXT"
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.alter_configs("0", added, resource="broker")
        eventually(lambda: broker.server.ports.get("ADDED") == port)
    with socket.create_server(("127.0.0.1", port)), EmbeddedBroker(tmp_path) as broker:
        assert broker.server.ports.keys() == broker.server.broker.endpoints.keys() == {"PLAINTEXT", "GRPC"}
        assert "listener ADDED cannot be as configured: cannot listen at ADDED" in caplog.text
        with Admin(broker.bootstrap_servers) as admin:
            admin.alter_configs("0", delete=[*added], resource="broker")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"listeners": "GRPC://127.0.0.1:0,OTHER://127.0.0.1:0"}, "brokers call each other by listener PLAINTEXT"),
        ({"listeners": "OTHER://127.0.0.1:0," + STATIC}, "brokers call each other by listener PLAINTEXT, .* by OTHER"),
        (
            {"listeners": "PLAINTEXT://127.0.0.2:0,GRPC://127.0.0.1:0"},
            "the address of listener PLAINTEXT is 127.0.0.1:0",
        ),
        ({"listener.security.protocol.map": "GRPC:SSL"}, "the security protocol of listener GRPC is PLAINTEXT"),
        ({"listener.protocol.map": "GRPC:kafka"}, "the protocol of listener GRPC is grpc"),
        ({"listeners": STATIC + ",OTHER://192.0.2.1:0"}, "no encryption, and its address is not loopback"),
        ({"listeners": STATIC + ",OTHER://127.0.0.1:{taken}"}, "cannot listen at OTHER://127.0.0.1"),
        ({"listener.name.other.ssl.keystore.location": "/x"}, "listener OTHER, which listeners does not name"),
        ({"listeners": STATIC + ",SSL://127.0.0.1:0"}, "ssl.keystore"),
        ({"ssl.keystore.location": "/x"}, r"of all listeners .*: set listener\.name\.<name>\.ssl\.keystore\.location"),
        ({"listener.name.plaintext.plain.sasl.jaas.config": "x"}, r"set listener\.name\.plaintext\.sasl\.jaas\.config"),
        ({"advertised.listeners": "OTHER://127.0.0.1:5"}, "advertised.listeners names OTHER"),
    ],
)
def test_a_change_that_listeners_cannot_make_is_refused_and_not_stored(
    broker: EmbeddedBroker, admin: Admin, options: dict[str, str], message: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = {name: value.replace("{taken}", str(port)) for name, value in options.items()}
        with pytest.raises(InvalidConfigError, match=message):
            admin.alter_configs("0", wanted, resource="broker")
    assert broker.server.broker.broker_configs.for_this == {}
    assert broker.server.ports.keys() == {"PLAINTEXT", "GRPC"}


def test_a_wrong_password_of_a_key_store_is_refused_and_not_stored(
    broker: EmbeddedBroker, admin: Admin, stores: Stores
) -> None:
    path, _ = stores.write("refused")
    with pytest.raises(InvalidConfigError, match="listener SECURE") as refused:
        alter(
            admin,
            listeners=f"{STATIC},SECURE://127.0.0.1:0",
            listener__security__protocol__map="SECURE:SSL",
            listener__name__secure__ssl__keystore__location=path,
            listener__name__secure__ssl__keystore__password="a wrong password",
        )
    assert "a wrong password" not in refused.value.message
    assert broker.server.broker.broker_configs.for_this == {}


def test_options_of_one_broker_are_refused_for_all_and_for_others(admin: Admin) -> None:
    with pytest.raises(InvalidConfigError, match="listeners is an option of one broker and not of all"):
        admin.alter_configs("", {"listeners": STATIC}, resource="broker")
    with pytest.raises(InvalidRequestError, match="only broker 7 can validate its listeners: send the request to"):
        admin.alter_configs("7", {"listeners": STATIC}, resource="broker")
