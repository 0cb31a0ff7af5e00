"""Tests of listeners with GSSAPI, and of their refusals.

The clients have tickets of a real KDC, and use Kafka's framing and gRPC.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Producer
from millrace.config.broker import BrokerConfig
from millrace.config.listeners import Listener
from millrace.config.security_options import SaslLogin
from millrace.errors import ClusterAuthorizationError, InvalidConfigError, SaslAuthenticationError
from millrace.protocol import millrace_pb2 as pb
from millrace.security.kerberos import KerberosLogin
from millrace.security.sasl import credentials_source
from millrace_broker.network.peers import PeerListener, Peers
from millrace_broker.testing import EmbeddedBroker

from .. import kerberos
from .broker_cluster import Cluster
from .round_trips import round_trip
from .waiting import AN_HOUR_MS, STALL_S, eventually
from .zookeeper_server import ZooKeeperServer

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
    round_trip(options, topic)  # only alice may create topics


@needs_kdc
def test_a_client_authenticates_with_the_ticket_of_kinit(broker: EmbeddedBroker, alice: str, topic: str) -> None:
    options = client(broker, alice, "alice")
    del options["sasl.jaas.config"]
    with Admin(options) as admin:
        admin.create_topic(topic)


@needs_kdc
def test_rules_make_the_user_of_a_principal_with_a_host(realm: kerberos.Realm, alice: str, tmp_path: Path) -> None:
    rules = "RULE:[2:$1-$2](.*-web)s/-web//U,RULE:[2:$1](kafka)"
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.jaas.config": f'x.Krb5LoginModule required keyTab="{realm.keytab("kafka/127.0.0.1")}";',
        "sasl.kerberos.principal.to.local.rules": rules,
        "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
        "super.users": "User:ORDERS",
    }
    with EmbeddedBroker(tmp_path / "broker", options=options) as broker:
        with Admin(client(broker, realm.keytab("orders/web"), "orders/web")) as admin:
            admin.create_topic("orders")  # only ORDERS may do so
        refused = pytest.raises(
            SaslAuthenticationError, match=r"no rule of sasl\.kerberos\.principal\.to\.local\.rules"
        )
        with Admin(client(broker, alice, "alice")) as admin, refused:
            admin.list_topics()


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


@needs_kdc
def test_brokers_authenticate_to_each_other_with_keytabs(
    zookeeper_server: ZooKeeperServer, realm: kerberos.Realm, alice: str, tmp_path: Path
) -> None:
    """The brokers' principals differ in their hosts alone, so that all of them are ``User:kafka``."""
    keytab = realm.keytab("kafka/127.0.0.1")
    options = {
        "listeners": "INTERNAL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener_security_protocol_map": "INTERNAL:SASL_PLAINTEXT",
        "inter_broker_listener_name": "INTERNAL",
        "sasl_enabled_mechanisms": "GSSAPI",
        "sasl_mechanism_inter_broker_protocol": "GSSAPI",
        "sasl_jaas_config": f'x.Krb5LoginModule required useKeyTab=true keyTab="{keytab}" '
        f'principal="kafka/127.0.0.1@{kerberos.REALM}";',
    }
    with Cluster(zookeeper_server, tmp_path, **options) as cluster:
        cluster.start(1, 2)
        servers = ",".join(f"127.0.0.1:{each.server.ports['PLAINTEXT']}" for each in cluster.brokers.values())
        with Admin(servers) as admin, Producer(servers) as producer:
            admin.create_topic("t", assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
            producer.send("t", b"value").result(STALL_S)
        # A user of the realm is no broker.
        listener = f"127.0.0.1:{cluster.brokers[1].server.ports['INTERNAL']}"
        credentials = credentials_source("GSSAPI", "", "", SaslLogin(), {"keyTab": alice, "principal": "alice"})

        async def call_as_a_broker() -> None:
            peers = Peers(PeerListener("INTERNAL", credentials=credentials))
            peers.know(1, {"INTERNAL": Listener.parse(listener)})
            try:
                await peers.call(1, "UpdateMetadata", pb.UpdateMetadataRequest(), timeout_s=STALL_S)
            finally:
                await peers.close()

        with pytest.raises(ClusterAuthorizationError, match=r"broker\.principals"):
            asyncio.run(call_as_a_broker())


@needs_kdc
def test_a_ticket_is_renewed_after_its_window_and_not_before_the_least_time(alice: str) -> None:
    now_s, module = 1000.0, {"keyTab": alice, "principal": "alice"}
    lifetime_s = KerberosLogin(SaslLogin(), module).credentials().lifetime
    options = {
        "sasl.kerberos.ticket.renew.window.factor": "0.5",
        "sasl.kerberos.ticket.renew.jitter": "0",
        "sasl.kerberos.min.time.before.relogin": str(int(700 * lifetime_s)),
    }
    login = KerberosLogin(SaslLogin.load(options), module, lambda: now_s)
    first = login.credentials()
    assert login.credentials() is first, "one login for all connections"
    now_s += 0.6 * lifetime_s
    assert login.credentials() is first, "before sasl.kerberos.min.time.before.relogin"
    now_s += 0.2 * lifetime_s
    second = login.credentials()
    assert second is not first
    assert login.credentials() is second


@needs_kdc
def test_a_ticket_is_used_until_it_ends_while_the_kdc_gives_none(
    alice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1000.0
    keytab = tmp_path / "copy.keytab"
    keytab.write_bytes(Path(alice).read_bytes())
    options = SaslLogin.load({"sasl.kerberos.min.time.before.relogin": "0"})
    login = KerberosLogin(options, {"keyTab": str(keytab), "principal": "alice"}, lambda: now_s)
    first = login.credentials()
    lifetime_s = first.lifetime
    keytab.unlink()
    now_s += 0.99 * lifetime_s
    assert login.credentials() is first
    assert "the earlier one is still valid" in caplog.text
    now_s += 0.02 * lifetime_s
    with pytest.raises(SaslAuthenticationError, match="run kinit, or set keyTab"):
        login.credentials()


@needs_kdc
def test_kinit_renews_the_ticket_of_a_client_without_a_keytab(
    alice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 1000.0
    kinit = tmp_path / "kinit"
    kinit.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\necho "cannot renew" >&2\nexit 1\n')
    kinit.chmod(0o700)
    options = SaslLogin.load({"sasl.kerberos.min.time.before.relogin": "0", "sasl.kerberos.kinit.cmd": str(kinit)})
    login = KerberosLogin(options, {}, lambda: now_s)
    first = login.credentials()
    assert not (tmp_path / "calls").exists(), "the ticket is new"
    now_s += 0.99 * first.lifetime
    login.credentials()
    assert (tmp_path / "calls").read_text() == "-R\n"
    assert "does not renew the ticket: cannot renew" in caplog.text
    login = KerberosLogin(options.model_copy(update={"sasl_kerberos_kinit_cmd": "/no/kinit"}), {}, lambda: now_s)
    login.credentials()
    now_s += 0.99 * first.lifetime
    assert login.credentials() is not None
    assert "sasl.kerberos.kinit.cmd=/no/kinit cannot be run" in caplog.text


def test_a_broker_with_kerberos_between_brokers_needs_its_keytab(tmp_path: Path) -> None:
    config = BrokerConfig.load(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "sasl.enabled.mechanisms": "GSSAPI",
            "sasl.mechanism.inter.broker.protocol": "GSSAPI",
            "zookeeper.connect": "127.0.0.1:1",
        }
    )
    with pytest.raises(InvalidConfigError, match=r"gssapi\.sasl\.jaas\.config with keyTab and principal"):
        Peers.of(config)


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
