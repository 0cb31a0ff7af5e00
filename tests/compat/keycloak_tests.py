"""Tests with tokens of Keycloak.

The tests cover clients of millrace and of Kafka, renewed keys, and refusals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from millrace.clients import Admin, Consumer, Producer
from millrace.clients.aio import AsyncProducer
from millrace.errors import SaslAuthenticationError
from millrace_broker.testing import EmbeddedBroker

from ..integration.kafka_clients import read, send
from ..integration.waiting import AN_HOUR_MS, STALL_S
from . import keycloak
from .keycloak import CLIENT_ID, SECRET, STRANGER_ID, STRANGER_SECRET, Keycloak


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keycloak]:
    with keycloak.running(tmp_path_factory.mktemp("keycloak")) as found:
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: Keycloak) -> Iterator[EmbeddedBroker]:
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": "x.OAuthBearerLoginModule required;",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": provider.jwks_endpoint,
        "sasl.oauthbearer.expected.audience": keycloak.AUDIENCE,
        "sasl.oauthbearer.expected.issuer": provider.issuer,
        "sasl.oauthbearer.sub.claim.name": keycloak.PRINCIPAL_CLAIM,
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


def address(broker: EmbeddedBroker) -> str:
    return f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}"


def client(
    broker: EmbeddedBroker, provider: Keycloak, client_id: str = CLIENT_ID, secret: str = SECRET
) -> dict[str, Any]:
    return {
        "bootstrap.servers": address(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": provider.token_endpoint,
        "sasl.oauthbearer.client.credentials.client.id": client_id,
        "sasl.oauthbearer.client.credentials.client.secret": secret,
        "default.api.timeout.ms": str(AN_HOUR_MS),
    }


def librdkafka(broker: EmbeddedBroker, provider: Keycloak) -> dict[str, Any]:
    return {
        "bootstrap.servers": address(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": provider.token_endpoint,
    }


def test_clients_authenticate_as_the_client_of_the_claim(broker: EmbeddedBroker, provider: Keycloak) -> None:
    options = client(broker, provider)
    with Admin(options) as admin:
        admin.create_topic("orders")

    async def send_async() -> None:
        async with AsyncProducer(options) as producer:
            await producer.send("orders", b"asyncio")

    asyncio.run(send_async())
    with Producer(options) as producer:
        producer.send("orders", b"millrace").result(STALL_S)
    send(confluent_kafka.Producer(librdkafka(broker, provider)), "orders", [{"value": b"librdkafka"}])
    reader = confluent_kafka.Consumer(
        {**librdkafka(broker, provider), "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    reader.subscribe(["orders"])
    assert [each.value() for each in read(reader, 3)] == [b"asyncio", b"millrace", b"librdkafka"]
    reader.close()
    with Consumer({**options, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions_for("orders"))
        assert consumer.poll(STALL_S * 1000)[0].value == b"asyncio"


def test_tokens_of_a_new_key_are_taken(broker: EmbeddedBroker, provider: Keycloak) -> None:
    with Admin(client(broker, provider)) as admin:
        admin.list_topics()
    provider.rotate_keys()
    with Admin(client(broker, provider)) as admin:
        admin.list_topics()


@pytest.mark.parametrize(
    ("client_id", "secret", "message"),
    [
        (STRANGER_ID, STRANGER_SECRET, "it is for another audience"),
        (CLIENT_ID, "wrong", "sasl.oauthbearer.client.credentials"),
        ("nobody", "wrong", "sasl.oauthbearer.client.credentials"),
    ],
    ids=["audience", "secret", "client"],
)
def test_a_client_that_is_refused_fails_at_once(
    broker: EmbeddedBroker, provider: Keycloak, client_id: str, secret: str, message: str
) -> None:
    with (
        pytest.raises(SaslAuthenticationError, match=message),
        Admin(client(broker, provider, client_id, secret)) as admin,
    ):
        admin.list_topics()


def test_a_client_that_the_provider_disables_gets_no_further_connection(
    broker: EmbeddedBroker, provider: Keycloak
) -> None:
    options = client(broker, provider, STRANGER_ID, STRANGER_SECRET)
    provider.disable(STRANGER_ID)
    with (
        pytest.raises(SaslAuthenticationError, match=r"sasl\.oauthbearer\.client\.credentials"),
        Admin(options) as admin,
    ):
        admin.list_topics()
