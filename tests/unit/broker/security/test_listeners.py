"""Tests of whom a listener takes for a broker."""

from __future__ import annotations

import pytest

from millrace.config.broker import BrokerConfig
from millrace_broker.security import ANONYMOUS, KafkaPrincipal, ListenerAccess

ALICE = KafkaPrincipal("User", "alice")
BROKER = KafkaPrincipal("User", "broker")
TWO = {
    "listeners": "INTERNAL://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "inter.broker.listener.name": "INTERNAL",
    "sasl.jaas.config": 'ScramLoginModule required username="broker" password="secret";',
}
PLAIN_INSIDE = {**TWO, "listener.security.protocol.map": "INTERNAL:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT"}
SASL_INSIDE = {**TWO, "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT"}


@pytest.mark.parametrize(
    ("options", "listener", "principal", "is_believed"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:0"}, "PLAINTEXT", ANONYMOUS, True),  # nobody can be told from brokers
        (PLAIN_INSIDE, "INTERNAL", ANONYMOUS, True),
        (PLAIN_INSIDE, "OUTSIDE", ALICE, False),
        (PLAIN_INSIDE, "OUTSIDE", BROKER, True),  # of brokers that use the next listener already, in an upgrade
        (SASL_INSIDE, "INTERNAL", BROKER, True),
        (SASL_INSIDE, "INTERNAL", ALICE, False),
        (SASL_INSIDE, "OUTSIDE", ALICE, False),
        (SASL_INSIDE, "OUTSIDE", ANONYMOUS, False),
    ],
)
def test_a_client_that_calls_itself_a_broker_is_believed_only_where_it_can_be_one(
    options: dict[str, str], listener: str, principal: KafkaPrincipal, is_believed: bool
) -> None:
    assert ListenerAccess(BrokerConfig.load(options), listener).believes_broker(principal) is is_believed


def test_calls_of_brokers_are_allowed_only_at_the_inter_broker_listener() -> None:
    config = BrokerConfig.load(SASL_INSIDE)
    assert ListenerAccess(config, "INTERNAL").is_broker(BROKER)
    assert not ListenerAccess(config, "OUTSIDE").is_broker(BROKER)
    assert not ListenerAccess(config, "INTERNAL").is_broker(ALICE)
