"""Tests of listeners for gRPC with SASL.

The tests cover sessions, their end, and refusals.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from millrace.clients import Admin
from millrace.errors import SaslAuthenticationError
from millrace.protocol import grpc_sasl
from millrace.protocol.status import error_from_rpc
from millrace.security.scram import ScramCredential
from millrace_broker.listeners.grpc_sasl import GrpcSessions
from millrace_broker.metadata.scram_credentials import ScramChange
from millrace_broker.security import KafkaPrincipal
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority
from ..oidc_provider import AUDIENCE, CLIENT_ID, SECRET, Provider, running
from ..planted_secrets import planted
from .round_trips import round_trip
from .waiting import AN_HOUR_MS, STALL_S, eventually

pytestmark = pytest.mark.usefixtures("finest_log")

PASSWORD = planted("swordfish")
JAAS = f'PlainLoginModule required user_alice="{PASSWORD}";'
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory = tmp_path_factory.mktemp("stores")
    authority = Authority.make()
    return authority.write(directory / "ca.pem"), authority.issue("CN=broker").write(directory / "broker.pem")


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, provider: Provider, stores: tuple[str, str]
) -> Iterator[EmbeddedBroker]:
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,GRPC://127.0.0.1:0,GRPC_PLAIN://127.0.0.1:0",
        "listener.protocol.map": "GRPC:grpc,GRPC_PLAIN:grpc",
        "listener.security.protocol.map": "GRPC:SASL_SSL,GRPC_PLAIN:SASL_PLAINTEXT",
        "ssl.keystore.location": stores[1],
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.jaas.config": JAAS,
        "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "offsets.topic.num.partitions": "1",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("grpc_sasl"), options=options) as found:
        credential = ScramCredential.of_password("SCRAM-SHA-256", PASSWORD)
        found.server.broker.scram_credentials.alter("alice", [ScramChange("SCRAM-SHA-256", credential)])
        yield found


def client(
    broker: EmbeddedBroker, provider: Provider, stores: tuple[str, str], listener: str, mechanism: str, **more: str
) -> dict[str, Any]:
    login = {"sasl.username": "alice", "sasl.password": PASSWORD}
    if mechanism == "OAUTHBEARER":
        login = {
            "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/token",
            "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        }
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.server.ports[listener]}",
        "security.protocol": "SASL_PLAINTEXT" if listener == "GRPC_PLAIN" else "SASL_SSL",
        "ssl.truststore.location": stores[0],
        "transport": "grpc",
        "sasl.mechanism": mechanism,
        **login,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.mark.parametrize("listener", ["GRPC", "GRPC_PLAIN"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_send_and_read_over_grpc(
    broker: EmbeddedBroker, provider: Provider, stores: tuple[str, str], topic: str, listener: str, mechanism: str
) -> None:
    options = client(broker, provider, stores, listener, mechanism)
    round_trip(options, topic)


def test_a_session_that_has_ended_is_replaced(
    broker: EmbeddedBroker, provider: Provider, stores: tuple[str, str]
) -> None:
    options = client(broker, provider, stores, "GRPC_PLAIN", "PLAIN")
    with Admin(options) as admin:
        admin.list_topics()
        session = admin._connections._links.to(options["bootstrap.servers"]).grpc._session
        assert session is not None
        assert session._expires < time.monotonic() + 3600
        first = session._metadata
        session._expires = 0.0
        admin.list_topics()
        assert session._metadata != first, "before its end"
        session._metadata = ((grpc_sasl.SESSION_KEY, GrpcSessions().issue(KafkaPrincipal("User", "alice"), 60_000)),)
        admin.list_topics()
        assert session._metadata != first, "after the restart of the broker, which has another key"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sasl_password": "wrong"}, "authentication failed: invalid credentials"),
        ({"sasl_mechanism": "SCRAM-SHA-512"}, "sasl.mechanism=SCRAM-SHA-512 is not enabled here"),
        ({"security_protocol": "PLAINTEXT"}, "wants SASL first"),
    ],
)
def test_a_refused_client_fails_at_once(
    broker: EmbeddedBroker,
    provider: Provider,
    stores: tuple[str, str],
    changes: dict[str, str],
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = client(broker, provider, stores, "GRPC_PLAIN", "PLAIN", default_api_timeout_ms=str(AN_HOUR_MS), **changes)
    with caplog.at_level(logging.DEBUG), Admin(options) as admin, pytest.raises(Exception, match=problem) as raised:
        admin.list_topics()
    assert PASSWORD not in caplog.text + str(raised.value)


def _call(broker: EmbeddedBroker, *metadata: tuple[str, str]) -> Exception:
    with grpc.insecure_channel(f"127.0.0.1:{broker.server.ports['GRPC_PLAIN']}") as channel:
        call = channel.unary_unary("/millrace.v1.Broker/Metadata", request_serializer=bytes)
        with pytest.raises(grpc.RpcError) as raised:
            call(b"", timeout=STALL_S, metadata=metadata)
        return error_from_rpc(raised.value)


def test_a_call_without_a_session_of_this_listener_is_refused(broker: EmbeddedBroker) -> None:
    forged = GrpcSessions().issue(KafkaPrincipal("User", "admin"), 60_000)
    for session in ("", "a", "a.b.c", "!.!", forged):
        error = _call(broker, (grpc_sasl.SESSION_KEY, session))
        assert isinstance(error, SaslAuthenticationError), session
    assert "wants SASL first" in str(_call(broker))


def test_a_client_that_does_not_authenticate_in_time_is_refused(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_broker.listeners.grpc_sasl.AUTHENTICATION_S", 0.01)
    assert "has not authenticated within" in _exchange(broker, silent=True)


def test_a_client_that_says_nothing_takes_no_place_of_running_calls(broker: EmbeddedBroker) -> None:
    """Otherwise some silent clients, which need no password, could keep the heartbeats of all groups out."""
    admission = broker.server.broker.admission
    connections = admission.statistics().connections
    with grpc.insecure_channel(f"127.0.0.1:{broker.server.ports['GRPC_PLAIN']}") as channel:
        over = threading.Event()

        def requests() -> Iterator[bytes]:
            over.wait(STALL_S)
            yield from ()

        method = channel.stream_stream(f"/{grpc_sasl.SERVICE}/{grpc_sasl.METHOD}", request_serializer=bytes)
        calls = [method(requests(), metadata=((grpc_sasl.MECHANISM_KEY, "PLAIN"),)) for _ in range(3)]
        try:
            eventually(lambda: admission.statistics().parked == 3, "the exchanges to wait for their clients")
            assert admission.statistics().requests == 0
            assert admission.statistics().connections <= connections, "their connection takes no place either"
        finally:
            over.set()
            for call in calls:
                call.cancel()
    eventually(lambda: admission.statistics().parked == 0, "the exchanges to end")


def test_a_message_that_is_too_large_is_refused(broker: EmbeddedBroker) -> None:
    assert "more than 131072 bytes" in _exchange(broker, b"x" * 600_000)


def _exchange(broker: EmbeddedBroker, *messages: bytes, silent: bool = False) -> str:
    """Return the error of an exchange with these messages, after which a silent client waits."""
    over = threading.Event()

    def requests() -> Iterator[bytes]:
        yield from messages
        if silent:
            over.wait(STALL_S)

    with grpc.insecure_channel(f"127.0.0.1:{broker.server.ports['GRPC_PLAIN']}") as channel:
        method = channel.stream_stream(f"/{grpc_sasl.SERVICE}/{grpc_sasl.METHOD}", request_serializer=bytes)
        call: Any = method(requests(), timeout=STALL_S, metadata=((grpc_sasl.MECHANISM_KEY, "PLAIN"),))
        try:
            with pytest.raises(grpc.RpcError) as raised:
                list(call)
        finally:
            over.set()
        return str(error_from_rpc(raised.value))


def test_a_session_ends_and_cannot_be_changed() -> None:
    now_s = 1000.0
    sessions = GrpcSessions(lambda: now_s)
    session = sessions.issue(KafkaPrincipal("User", "böb"), 1000)

    class Call:
        def __init__(self, value: str) -> None:
            self._value = value

        def invocation_metadata(self) -> Any:
            return ((grpc_sasl.SESSION_KEY, self._value),)

    assert sessions.principal(Call(session)) == KafkaPrincipal("User", "böb")
    content, signature = session.split(".")
    other = sessions.issue(KafkaPrincipal("User", "admin"), 1000).split(".")[0]
    with pytest.raises(SaslAuthenticationError, match="of another broker"):
        sessions.principal(Call(f"{other}.{signature}"))
    now_s += 1
    with pytest.raises(SaslAuthenticationError, match="has expired"):
        sessions.principal(Call(f"{content}.{signature}"))
