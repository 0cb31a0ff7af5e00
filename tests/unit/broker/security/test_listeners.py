"""Tests of whom a listener takes for a broker."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from millrace.config.broker import BrokerConfig
from millrace_broker.security import (
    ACL_AUTHORIZER,
    ANONYMOUS,
    KafkaPrincipal,
    ListenerAccess,
    warn_of_open_zookeeper,
)

from ....certificates import Authority

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


def test_a_listener_with_sasl_ssl_tells_that_it_asks_for_no_certificates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority.make()
    options = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": authority.issue("CN=broker").write(tmp_path / "broker.pem"),
        "ssl.truststore.location": authority.write(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
    }
    warning = "set listener.name.sasl_ssl.ssl.client.auth"

    def verification(**more: str) -> ssl.VerifyMode:
        access = ListenerAccess(BrokerConfig.load({**options, **more}), "SASL_SSL")
        assert access.tls is not None
        return access.tls.value.context.verify_mode

    assert verification() is ssl.CERT_NONE
    assert warning in caplog.text
    caplog.clear()
    assert verification(**{"listener.name.sasl_ssl.ssl.client.auth": "required"}) is ssl.CERT_REQUIRED
    assert verification(**{"ssl.client.auth": "none"}) is ssl.CERT_NONE
    assert not caplog.text


AUTHORIZED = {"authorizer.class.name": ACL_AUTHORIZER, "zookeeper.connect": "127.0.0.1:2181,203.0.113.7:2181/millrace"}


def test_a_broker_warns_of_acls_in_a_zookeeper_that_does_not_know_it(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_open_zookeeper(BrokerConfig.load(AUTHORIZED))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "does not authenticate to ZooKeeper at 127.0.0.1:2181,203.0.113.7:2181" in caplog.text
    assert "set zookeeper.sasl.mechanism, .username and .password, or zookeeper.ssl.client.enable=true" in caplog.text


def test_encryption_alone_tells_zookeeper_nothing_of_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_open_zookeeper(BrokerConfig.load({**AUTHORIZED, "zookeeper.ssl.client.enable": "true"}))
    assert "does not authenticate" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {"zookeeper.connect": "127.0.0.1:2181,[::1]:2181"},
        {"zookeeper.connect": ""},
        {"authorizer.class.name": ""},
        {
            "zookeeper.sasl.mechanism": "DIGEST-MD5",
            "zookeeper.sasl.username": "broker",
            "zookeeper.sasl.password": "secret",
        },
        {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": "broker-1.pem"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_zookeeper_that_is_not_open_is_no_reason_to_warn(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_open_zookeeper(BrokerConfig.load({**AUTHORIZED, **options}))
    assert not caplog.text
