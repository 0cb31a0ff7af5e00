"""Tests of clients that a broker refuses, or that refuse the broker.

Clients of each kind fail at once and name the option.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, Producer, ShareConsumer, TopicPartition
from millrace.clients.aio import AsyncConsumer, AsyncProducer
from millrace.clients.delegation_tokens import describe_tokens
from millrace.config.broker import BrokerConfig
from millrace.config.client import ClientConfig
from millrace.errors import InvalidConfigError, MillraceError, SaslAuthenticationError, SslAuthenticationError
from millrace.kafka_protocol.calls.api_versions import ApiVersionsRequest
from millrace_broker.security import ListenerAccess
from millrace_broker.testing import EmbeddedBroker

from ..certificates import DAY, Authority
from ..planted_secrets import planted
from ..properties_files import write_properties
from .commands import run_millrace
from .kafka_wire import KafkaWire
from .waiting import AN_HOUR_MS, STALL_S, eventually

pytestmark = pytest.mark.usefixtures("finest_log")

PASSWORD = planted("swordfish")
TOPIC = "orders"
PATIENT = {
    "request.timeout.ms": str(AN_HOUR_MS),
    "default.api.timeout.ms": str(AN_HOUR_MS),
    "socket.connection.setup.timeout.ms": str(AN_HOUR_MS),
}
"""Timeouts that a test does not live to see."""
PATIENT_PRODUCER = {**PATIENT, "delivery.timeout.ms": str(2 * AN_HOUR_MS), "max.block.ms": str(AN_HOUR_MS)}


class Stores:
    """Key stores and trust stores by the file's names.

    There are good and expired ones, and some of another authority.
    """

    def __init__(self, directory: Path) -> None:
        authority, other = Authority.make(), Authority.make("CN=another authority")
        self.ca = authority.write(directory / "ca.pem")
        self.other_ca = other.write(directory / "other-ca.pem")
        self.broker = authority.issue("CN=broker").write(directory / "broker.pem")
        self.client = authority.issue("CN=client").write(directory / "client.pem")
        self.expired = authority.issue("CN=client", begins=-2 * DAY, ends=-DAY / 24).write(directory / "expired.pem")
        self.stranger = other.issue("CN=client").write(directory / "stranger.pem")
        self.unmapped = authority.issue("CN=unmapped").write(directory / "unmapped.pem")
        self.elsewhere = authority.issue("CN=broker", ["elsewhere"]).write(directory / "elsewhere.pem")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, stores: Stores) -> Iterator[EmbeddedBroker]:
    listeners = ("PLAINTEXT", "SASL_SSL", "SSL", "ELSEWHERE", "GRPC", "GRPC_SSL", "GRPC_PLAIN")
    options = {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in listeners),
        "listener.security.protocol.map": "ELSEWHERE:SSL,GRPC:SASL_SSL,GRPC_SSL:SSL,GRPC_PLAIN:PLAINTEXT",
        "listener.protocol.map": "GRPC:grpc,GRPC_SSL:grpc,GRPC_PLAIN:grpc",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": f'PlainLoginModule required user_alice="{PASSWORD}";',
        "ssl.keystore.location": stores.broker,
        "ssl.truststore.location": stores.ca,
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=(client)$/$1/",
        "listener.name.grpc_ssl.ssl.client.auth": "required",
        "listener.name.elsewhere.ssl.keystore.location": stores.elsewhere,
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        with Admin(f"127.0.0.1:{running.server.ports['PLAINTEXT']}") as admin:
            admin.create_topic(TOPIC)
        yield running


def _admin(config: dict[str, Any]) -> None:
    with Admin({**config, **PATIENT}) as admin:
        admin.list_topics()


def _producer(config: dict[str, Any]) -> None:
    with Producer({**config, **PATIENT_PRODUCER}) as producer:
        producer.send(TOPIC, b"value").result()


def _transactional_producer(config: dict[str, Any]) -> None:
    with Producer({**config, **PATIENT_PRODUCER, "transactional.id": "t"}) as producer:
        producer.init_transactions()


def _consumer(config: dict[str, Any]) -> None:
    with Consumer({**config, **PATIENT}) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0)])
        consumer.poll(AN_HOUR_MS)


def _group_member(config: dict[str, Any]) -> None:
    with Consumer({**config, **PATIENT, "group.id": "g"}) as consumer:
        consumer.subscribe([TOPIC])
        consumer.poll(AN_HOUR_MS)


def _share_group_member(config: dict[str, Any]) -> None:
    with ShareConsumer({**config, **PATIENT, "group.id": "s"}) as consumer:
        consumer.subscribe(TOPIC)
        consumer.poll(AN_HOUR_MS)


def _async_producer(config: dict[str, Any]) -> None:
    async def send() -> None:
        async with AsyncProducer({**config, **PATIENT_PRODUCER}) as producer:
            await producer.send(TOPIC, b"value")

    asyncio.run(send())


def _async_consumer(config: dict[str, Any]) -> None:
    async def read() -> None:
        async with AsyncConsumer({**config, **PATIENT, "group.id": "a"}) as consumer:
            await consumer.subscribe([TOPIC])
            await consumer.poll(AN_HOUR_MS)

    asyncio.run(read())


def _single_call(config: dict[str, Any]) -> None:
    describe_tokens(ClientConfig.load({**config, **PATIENT}))


CLIENTS = (
    _admin,
    _producer,
    _transactional_producer,
    _consumer,
    _group_member,
    _share_group_member,
    _async_producer,
    _async_consumer,
    _single_call,
)
WRONG = planted("wrong")
REFUSALS = {
    "wrong password": (
        "SASL_SSL",
        {"sasl.password": WRONG},
        SaslAuthenticationError,
        r"invalid credentials: check sasl\.username and sasl\.password.* \(PLAIN of alice\)",
    ),
    "mechanism that is not enabled": (
        "SASL_SSL",
        {"sasl.mechanism": "SCRAM-SHA-256"},
        SaslAuthenticationError,
        r"does not take sasl\.mechanism=SCRAM-SHA-256: it takes PLAIN",
    ),
    "untrusted authority": (
        "SASL_SSL",
        {"ssl.truststore.location": "other_ca"},
        SslAuthenticationError,
        r"certificate of the broker at 127\.0\.0\.1:\d+ is refused: .*ssl\.truststore\.location=.*other-ca\.pem",
    ),
    "certificate of another host": (
        "ELSEWHERE",
        {},
        SslAuthenticationError,
        r"is refused: .*127\.0\.0\.1.*advertised\.listeners",
    ),
    "expired certificate": (
        "SSL",
        {"ssl.keystore.location": "expired"},
        InvalidConfigError,
        r"ssl\.keystore\.location=.*expired\.pem: the certificate has expired at .*: renew it",
    ),
    "certificate of a stranger": (
        "SSL",
        {"ssl.keystore.location": "stranger"},
        SslAuthenticationError,
        r"refuses this client's certificate: .*ssl\.keystore\.location=.*stranger\.pem",
    ),
    "no certificate": (
        "SSL",
        {"ssl.keystore.location": ""},
        SslAuthenticationError,
        r"refuses this client's certificate: .*ssl\.keystore\.location",
    ),
}


def config_of(broker: EmbeddedBroker, stores: Stores, listener: str, changed: dict[str, str]) -> dict[str, Any]:
    protocol = "SASL_SSL" if listener in ("SASL_SSL", "GRPC") else "SSL"
    config: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{broker.server.ports[listener]}",
        "security.protocol": protocol,
        "ssl.truststore.location": stores.ca,
    }
    if protocol == "SASL_SSL":
        config |= {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}
    else:
        config |= {"ssl.keystore.location": stores.client}
    return config | {name: getattr(stores, value, value) for name, value in changed.items()}


def at_once(use: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
    """Use a client, which raises its error before the test's patience ends."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            done.set_result(use(config))
        except BaseException as error:  # noqa: BLE001  the test raises it
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # it does not keep the run from ending
    done.result(STALL_S)


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("use", CLIENTS, ids=[each.__name__.strip("_") for each in CLIENTS])
def test_a_refused_client_fails_at_once_with_the_option_to_change(
    broker: EmbeddedBroker, stores: Stores, use: Callable[[dict[str, Any]], None], case: str
) -> None:
    listener, changed, kind, message = REFUSALS[case]
    config = config_of(broker, stores, listener, changed)
    with pytest.raises(kind, match=message) as raised:
        at_once(use, config)
    assert WRONG not in str(raised.value)


@pytest.mark.parametrize("case", [name for name, each in REFUSALS.items() if each[0] != "ELSEWHERE"])
def test_a_refused_client_over_grpc_fails_at_once(broker: EmbeddedBroker, stores: Stores, case: str) -> None:
    listener, changed, _, _ = REFUSALS[case]
    config = config_of(broker, stores, {"SASL_SSL": "GRPC", "SSL": "GRPC_SSL"}[listener], changed)
    for use in (_admin, _producer, _consumer):
        with pytest.raises(MillraceError, match=r"sasl\.\w+|ssl\.\w+\.location"):
            at_once(use, {**config, "transport": "grpc"})


@pytest.mark.parametrize(
    ("listener", "protocol", "remedy"),
    [
        ("GRPC", "SASL_PLAINTEXT", "this is a listener with TLS: set security.protocol=SSL or SASL_SSL"),
        ("GRPC_SSL", "PLAINTEXT", "this is a listener with TLS: set security.protocol=SSL or SASL_SSL"),
        ("GRPC_PLAIN", "SSL", "set security.protocol=PLAINTEXT"),
    ],
)
def test_a_client_over_grpc_with_or_without_tls_by_mistake_fails_at_once(
    broker: EmbeddedBroker, stores: Stores, listener: str, protocol: str, remedy: str
) -> None:
    config = config_of(broker, stores, "GRPC" if protocol == "SASL_PLAINTEXT" else listener, {})
    if protocol == "PLAINTEXT":
        del config["ssl.truststore.location"], config["ssl.keystore.location"]
    for use in (_admin, _producer, _consumer):
        with pytest.raises(SslAuthenticationError, match=remedy):
            at_once(use, {**config, "security.protocol": protocol, "transport": "grpc"})


@pytest.mark.parametrize("case", ["wrong password", "untrusted authority", "expired certificate"])
def test_a_refused_command_fails_at_once(broker: EmbeddedBroker, stores: Stores, case: str, tmp_path: Path) -> None:
    listener, changed, _, _ = REFUSALS[case]
    config = config_of(broker, stores, listener, changed) | PATIENT_PRODUCER
    path = tmp_path / "client.properties"
    write_properties(path, config)
    for command in (
        ["topics", "list"],
        ["produce", TOPIC],
        ["consume", TOPIC, "--from", "beginning"],
        ["groups", "list"],
    ):
        done = run_millrace(*command, "--client-config", path, stdin="value\n", code=1)
        assert any(option in done.stderr for option in changed), done.stderr


def test_a_mechanism_that_does_not_exist_is_refused_before_any_connection() -> None:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "MD5",
        "sasl.username": "a",
        "sasl.password": PASSWORD,
    }
    for kind in (Admin, Producer, Consumer):
        with pytest.raises(InvalidConfigError, match=r"sasl\.mechanism='MD5': .*SCRAM-SHA-512"):
            kind(options)


def test_a_certificate_that_no_rule_matches_is_named_in_the_brokers_log(
    broker: EmbeddedBroker, stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    """A client of millrace is told it too, and at once."""
    reason = "mapping.rules matches the certificate of CN=unmapped"
    context = ssl.create_default_context(cafile=stores.ca)
    context.load_cert_chain(stores.unmapped)
    with KafkaWire(broker.server.ports["SSL"]) as wire:
        wire.sock = context.wrap_socket(wire.sock, server_hostname="127.0.0.1")
        wire.send(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)
        assert wire.received == b""
    eventually(lambda: reason in caplog.text)
    config = {
        "bootstrap.servers": f"127.0.0.1:{broker.server.ports['SSL']}",
        "security.protocol": "SSL",
        "ssl.truststore.location": stores.ca,
        "ssl.keystore.location": stores.unmapped,
    }
    for call in (_admin, _producer):
        with pytest.raises(SslAuthenticationError, match=reason):
            call(config)


def test_a_listener_whose_certificate_does_not_name_its_host_is_told_in_the_log(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "listeners": "SSL://0.0.0.0:0",
        "advertised.listeners": "SSL://b1.example:9093",
        "ssl.keystore.location": stores.broker,
    }
    ListenerAccess(BrokerConfig.load(options), "SSL")
    assert "the certificate of listener SSL does not name b1.example" in caplog.text
    caplog.clear()
    ListenerAccess(BrokerConfig.load({**options, "advertised.listeners": "SSL://127.0.0.1:9093"}), "SSL")
    assert not caplog.records
