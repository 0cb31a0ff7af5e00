"""Tests of listeners with OAUTHBEARER and an OpenID provider.

The tests cover clients of millrace and of Kafka, renewed tokens, brokers and refusals.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from millrace.clients import Admin, Producer, ShareConsumer
from millrace.clients.aio import AsyncConsumer, AsyncProducer
from millrace.errors import InvalidConfigError, SaslAuthenticationError
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest
from millrace.kafka_protocol.calls.sasl_handshake import SaslHandshakeRequest
from millrace_broker.testing import EmbeddedBroker

from ..oidc_provider import AUDIENCE, CLIENT_ID, ISSUER, SECRET, Provider, running
from ..properties_files import write_properties
from .broker_cluster import Cluster
from .commands import run_millrace
from .kafka_wire import KafkaWire
from .oauth_clients import librdkafka_client, millrace_client, round_trip_of_all
from .waiting import AN_HOUR_MS, STALL_S
from .zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.usefixtures("finest_log")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running() as found:
        yield found


def listener_options(provider: Provider) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: Provider) -> Iterator[EmbeddedBroker]:
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": "x.OAuthBearerLoginModule required;",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "share.auto.offset.reset": "earliest",
        **listener_options(provider),
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("oauth"), options=options) as running_broker:
        yield running_broker


def address(broker: EmbeddedBroker) -> str:
    return f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}"


def client(broker: EmbeddedBroker, provider: Provider, **options: str) -> dict[str, Any]:
    common = millrace_client(address(broker), f"{provider.url}/token", CLIENT_ID, SECRET)
    return common | {name.replace("_", "."): value for name, value in options.items()}


def test_clients_of_millrace_and_librdkafka_authenticate(
    broker: EmbeddedBroker, provider: Provider, topic: str
) -> None:
    librdkafka = librdkafka_client(address(broker), f"{provider.url}/token", CLIENT_ID, SECRET)
    round_trip_of_all(client(broker, provider), librdkafka, topic)


def test_a_share_group_and_asyncio_clients_authenticate(broker: EmbeddedBroker, provider: Provider, topic: str) -> None:
    options = client(broker, provider)
    with Admin(options) as admin:
        admin.create_topic(topic)

    async def send_and_read() -> bytes:
        async with (
            AsyncProducer(options) as producer,
            AsyncConsumer({**options, "auto.offset.reset": "earliest"}) as own,
        ):
            await producer.send(topic, b"value")
            await own.assign(await own.partitions_for(topic))
            return (await own.poll(STALL_S * 1000))[0].value

    assert asyncio.run(send_and_read()) == b"value"
    with ShareConsumer({**options, "group.id": topic}) as members:
        members.subscribe(topic)
        assert [record.value for record in members.poll(STALL_S * 1000)] == [b"value"]


def test_commands_authenticate_with_tokens_of_the_provider(
    broker: EmbeddedBroker, provider: Provider, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    write_properties(path, client(broker, provider))
    environment = {"MILLRACE_CLIENT_CONFIG": str(path)}
    run_millrace("topics", "create", topic, environment=environment)
    run_millrace("produce", topic, stdin="value\n", environment=environment)
    assert "value" in run_millrace("consume", topic, "--from", "beginning", environment=environment).stdout
    assert topic in run_millrace("topics", "list", environment=environment).stdout


def test_a_session_ends_with_its_token(broker: EmbeddedBroker, provider: Provider) -> None:
    provider.lifetime_s = 60
    try:
        with Admin(client(broker, provider)) as admin:
            admin.list_topics()
            frames = admin._connections._links.to(address(broker))._frames
            assert frames is not None
            (sock,) = frames._idle
            assert sock.expires_at < time.monotonic() + 60 + 30, "the lifetime and the difference of the clocks"
            sock.expires_at = 0.0
            admin.list_topics()
            assert sock not in frames._idle, "a new connection authenticates"
    finally:
        provider.lifetime_s = 3600


def _refusal(broker: EmbeddedBroker, message: bytes) -> str:
    with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
        assert wire.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1).error_code == 0
        answer = wire.call(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert answer.error_code == 58
        assert wire.received == b"", "the broker closes the connection"
        return str(answer.error_message)


def test_wrong_messages_are_refused_and_bounded(broker: EmbeddedBroker, provider: Provider) -> None:
    good = provider.token()
    assert "malformed" in _refusal(broker, b"n,,\x01auth=Basic abc\x01\x01")
    assert "malformed" in _refusal(broker, b"n,,\x01" + b"a=b\x01" * 10_000)
    assert "more than 65536 bytes" in _refusal(broker, f"n,,\x01auth=Bearer {'x' * 100_000}\x01\x01".encode())
    assert "another authorization id" in _refusal(broker, f"n,a=admin,\x01auth=Bearer {good}\x01\x01".encode())
    refused = _refusal(broker, f"n,,\x01auth=Bearer {provider.token(aud='payments')}\x01\x01".encode())
    assert "another audience" in refused


def test_a_message_with_extensions_and_the_own_authorization_id_is_taken(
    broker: EmbeddedBroker, provider: Provider
) -> None:
    message = f"n,a={CLIENT_ID},\x01traceId=1\x01auth=Bearer {provider.token()}\x01cluster=a b\x01\x01".encode()
    with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as wire:
        wire.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        answer = wire.call(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert answer.error_code == 0
        assert 3_500_000 < answer.session_lifetime_ms <= 3_630_000, "the lifetime of the token"


def test_a_client_that_is_refused_fails_at_once_without_its_secret(
    broker: EmbeddedBroker, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"sasl_oauthbearer_client_credentials_client_secret": "swordfish-wrong"}
    options = client(broker, provider, default_api_timeout_ms=str(AN_HOUR_MS), **wrong)
    with (
        caplog.at_level(logging.DEBUG),
        Admin(options) as admin,
        pytest.raises(SaslAuthenticationError, match="answers with HTTP status 401") as raised,
    ):
        admin.list_topics()
    assert "swordfish" not in caplog.text + str(raised.value) + repr(admin._connections.config)


def test_a_listener_needs_the_keys_of_the_provider(tmp_path: Path) -> None:
    options = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "OAUTHBEARER"}
    with pytest.raises(InvalidConfigError, match=r"set sasl\.oauthbearer\.jwks\.endpoint\.url"):
        EmbeddedBroker(tmp_path, options=options)


def test_kafkas_admin_is_the_principal_of_its_token(broker: EmbeddedBroker, provider: Provider) -> None:
    """A function of the application gives librdkafka its tokens, which are of another user."""
    admin = AdminClient(
        {
            "bootstrap.servers": address(broker),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": lambda _: (provider.token(sub="böb"), 4e9),
        }
    )
    assert admin.list_topics(timeout=STALL_S).brokers


def test_brokers_authenticate_to_each_other_with_tokens(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, provider: Provider
) -> None:
    options = {
        "listeners": "INTERNAL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "broker.principals": f"User:{CLIENT_ID}",
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        **listener_options(provider),
    }
    with Cluster(zookeeper_server, tmp_path, **{k.replace(".", "_"): v for k, v in options.items()}) as cluster:
        cluster.start(1, 2)
        servers = ",".join(f"127.0.0.1:{each.server.ports['PLAINTEXT']}" for each in cluster.brokers.values())
        with Admin(servers) as admin, Producer(servers) as producer:
            admin.create_topic("t", assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
            producer.send("t", b"value").result(STALL_S)
