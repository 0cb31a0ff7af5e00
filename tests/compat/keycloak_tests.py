"""Tests with tokens of Keycloak.

The tests cover clients of millrace and of Kafka, renewed keys, and refusals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millrace.clients import Admin
from millrace.errors import SaslAuthenticationError
from millrace_broker.testing import EmbeddedBroker

from ..integration.oauth_clients import librdkafka_client, millrace_client, round_trip_of_all
from ..integration.waiting import AN_HOUR_MS
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
    common = millrace_client(address(broker), provider.token_endpoint, client_id, secret)
    return common | {"default.api.timeout.ms": str(AN_HOUR_MS)}


def test_clients_authenticate_as_the_client_of_the_claim(broker: EmbeddedBroker, provider: Keycloak) -> None:
    librdkafka = librdkafka_client(address(broker), provider.token_endpoint, CLIENT_ID, SECRET)
    round_trip_of_all(client(broker, provider), librdkafka, "orders")


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
