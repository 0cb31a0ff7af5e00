"""Listeners with GSSAPI: tickets of a real KDC, in Kafka's framing and over gRPC, and what is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, Producer
from millrace.errors import InvalidConfigError, SaslAuthenticationError
from millrace_broker.testing import EmbeddedBroker

from .. import kerberos
from .waiting import AN_HOUR_MS, STALL_S, eventually

needs_kdc = pytest.mark.skipif(not kerberos.is_installed(), reason="needs a KDC (krb5-kdc) and the package gssapi")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kerberos.Realm]:
    with kerberos.running(tmp_path_factory.mktemp("realm")) as running:
        yield running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, realm: kerberos.Realm) -> Iterator[EmbeddedBroker]:
    keytab = realm.keytab("kafka/127.0.0.1")
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,GRPC://127.0.0.1:0",
        "listener.security.protocol.map": "GRPC:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.jaas.config": f'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="{keytab}";',
        "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
        "super.users": "User:alice",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("kerberos"), options=options) as running:
        yield running


def client(broker: EmbeddedBroker, keytab: str, principal: str, listener: str = "SASL_PLAINTEXT") -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.server.ports[listener]}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.jaas.config": f'x.Krb5LoginModule required useKeyTab=true keyTab="{keytab}" principal="{principal}";',
        "transport": "grpc" if listener == "GRPC" else "auto",
        "default.api.timeout.ms": str(AN_HOUR_MS),
    }


@pytest.fixture(scope="module")
def alice(realm: kerberos.Realm, broker: EmbeddedBroker) -> str:
    """The keytab of alice, once the KDC answers."""
    keytab = realm.keytab("alice")

    def has_ticket() -> bool:
        try:
            realm.run("kinit", "-k", "-t", keytab, "alice")
        except subprocess.CalledProcessError:
            return False
        return True

    eventually(has_ticket)
    return keytab


@needs_kdc
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "GRPC"])
def test_clients_authenticate_with_a_keytab(broker: EmbeddedBroker, alice: str, topic: str, listener: str) -> None:
    options = client(broker, alice, "alice", listener)
    with Admin(options) as admin:
        admin.create_topic(topic)  # which only alice may do
    with Producer(options) as producer:
        producer.send(topic, b"value").result(STALL_S)
    with Consumer({**options, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        assert [record.value for record in consumer.poll(STALL_S * 1000)] == [b"value"]


@needs_kdc
def test_a_client_authenticates_with_the_ticket_of_kinit(broker: EmbeddedBroker, alice: str, topic: str) -> None:
    options = client(broker, alice, "alice")
    del options["sasl.jaas.config"]
    with Admin(options) as admin:
        admin.create_topic(topic)


@needs_kdc
def test_a_client_without_a_ticket_fails_at_once_with_the_remedy(
    broker: EmbeddedBroker, alice: str, tmp_path: Path
) -> None:
    options = client(broker, str(tmp_path / "none.keytab"), "nobody")
    with Admin(options) as admin, pytest.raises(SaslAuthenticationError, match="run kinit, or set keyTab"):
        admin.list_topics()
    options = client(broker, alice, "alice") | {"sasl.kerberos.service.name": "other"}
    with Admin(options) as admin, pytest.raises(SaslAuthenticationError, match="Kerberos refuses the client"):
        admin.list_topics()


def test_without_the_package_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.security.kerberos.find_spec", lambda name: None)
    options = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "GSSAPI"}
    with (
        pytest.raises(InvalidConfigError, match=r"pip install 'millrace\[kerberos\]'"),
        EmbeddedBroker(tmp_path, options=options),
    ):
        pass
    with pytest.raises(InvalidConfigError, match=r"pip install 'millrace\[kerberos\]'"):
        Admin({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"})
