"""Access matrix over the network, at listeners of each kind.

The calls and their needs are those of ``test_access_matrix`` and ``test_kafka_access_matrix``, which call the handlers.
Here clients authenticate by SASL or by certificate, and call in Kafka's framing or by gRPC.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from millrace.acls import AclBinding, AclOperation, AclPermission
from millrace.clients.transport.calls import unary
from millrace.clients.transport.link import Links
from millrace.config.client import ClientConfig
from millrace.errors import MillraceError
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest
from millrace.kafka_protocol.calls.sasl_handshake import SaslHandshakeRequest
from millrace.kafka_protocol.message import Message
from millrace_broker.api import STREAM_HANDLERS
from millrace_broker.testing import EmbeddedBroker

from ..certificates import Authority
from ..planted_secrets import planted
from . import test_access_matrix as own_calls
from . import test_kafka_access_matrix as kafka_calls
from .access_broker import OPTIONS, Secured, acl
from .access_cases import CASES, Case, Need, cluster
from .kafka_wire import KafkaWire
from .waiting import STALL_S

PASSWORD = planted("matrix")
USERS = ("alice", "mallory")
LISTENERS = ("SASL_PLAINTEXT", "SSL", "GRPC")
OF_BROKERS = cluster(AclOperation.CLUSTER_ACTION)
"""The right of brokers. It is worth nothing at these listeners, because brokers call each other at another one."""


@dataclass
class Wired:
    """A broker with listeners of each kind, and its connections."""

    secured: Secured
    ports: dict[str, int]
    stores: dict[str, str]
    stack: ExitStack
    links: dict[tuple[str, str], Links] = field(default_factory=dict)
    wires: dict[tuple[str, str], KafkaWire] = field(default_factory=dict)

    def outcome(self, listener: str, user: str, call: str, request: Any) -> Any:
        """Return the response to a call of millrace, or its error."""
        links = self.links.get((listener, user))
        if links is None:
            links = self.links[listener, user] = Links(self._config(listener, user))
            self.stack.callback(links.close)
        link = links.to(f"127.0.0.1:{self.ports[listener]}")
        try:
            return link.call(unary(lambda stub: getattr(stub, call)), request, STALL_S)
        except MillraceError as error:
            return error

    def answer(self, listener: str, user: str, request: Message, version: int) -> Any:
        """Return the response to a call of Kafka."""
        wire = self.wires.get((listener, user))
        if wire is None:
            wire = self.wires[listener, user] = self.stack.enter_context(KafkaWire(self.ports[listener]))
            self._authenticate(wire, listener, user)
        return wire.call(request, version)

    def _authenticate(self, wire: KafkaWire, listener: str, user: str) -> None:
        if listener == "SSL":
            context = ssl.create_default_context(cafile=self.stores["ca"])
            context.load_cert_chain(self.stores[user])
            wire.sock = context.wrap_socket(wire.sock, server_hostname="127.0.0.1")
        elif listener == "SASL_PLAINTEXT":
            assert wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
            token = f"\0{user}\0{PASSWORD}".encode()
            assert wire.call(SaslAuthenticateRequest(auth_bytes=token), 2).error_code == 0

    def _config(self, listener: str, user: str) -> ClientConfig:
        config = {"bootstrap.servers": f"127.0.0.1:{self.ports[listener]}"}
        if listener == "SSL":
            stores = {"ssl.keystore.location": self.stores[user], "ssl.truststore.location": self.stores["ca"]}
            return ClientConfig.of(config | stores | {"security.protocol": "SSL"})
        if listener == "PLAINTEXT":
            return ClientConfig.of(config)
        login = {"sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": PASSWORD}
        transport = {"transport": "grpc"} if listener == "GRPC" else {}
        return ClientConfig.of(config | login | transport | {"security.protocol": "SASL_PLAINTEXT"})


@contextmanager
def _running(directory: Path, prepared: Any) -> Iterator[Wired]:
    authority = Authority.make()
    stores = {user: authority.issue(f"CN={user}").write(directory / f"{user}.pem") for user in USERS}
    stores["ca"] = authority.write(directory / "ca.pem")
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
    options = {
        **OPTIONS,
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in ("PLAINTEXT", "INTERNAL", *LISTENERS)),
        "inter.broker.listener.name": "INTERNAL",
        "listener.protocol.map": "GRPC:grpc",
        "listener.security.protocol.map": "GRPC:SASL_PLAINTEXT,INTERNAL:SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": f"PlainLoginModule required {users};",
        "ssl.keystore.location": authority.issue("CN=broker").write(directory / "broker.pem"),
        "ssl.truststore.location": stores["ca"],
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
    }
    with EmbeddedBroker(directory / "data", options=options) as broker, ExitStack() as stack:
        yield Wired(prepared(broker), dict(broker.server.ports), stores, stack)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    with _running(tmp_path_factory.mktemp("own"), own_calls.prepared) as found:
        yield found


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    with _running(tmp_path_factory.mktemp("kafka"), kafka_calls.prepared) as found:
        yield found


def _insufficient(way: tuple[Need, ...]) -> Iterator[tuple[str, list[AclBinding]]]:
    """Yield users with ACLs that are not enough."""
    needed = [acl(need) for need in way]
    yield "mallory", needed
    yield "alice", []
    for need in way:
        yield "alice", [acl(each) for each in way if each != need]
        yield "alice", [*needed, acl(need, permission=AclPermission.DENY)]


OWN = [
    pytest.param(case, way, id=f"{case}-{place}")
    for case in CASES
    for place, way in enumerate(case.ways)
    if way and case.call not in STREAM_HANDLERS
]


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(("case", "way"), OWN)
def test_calls_of_millrace_need_their_acls_at_each_listener(
    own: Wired, case: Case, way: tuple[Need, ...], listener: str
) -> None:
    for user, acls in _insufficient(way):
        own.secured.allow(*acls)
        outcome = own.outcome(listener, user, case.call, case.request)
        assert own_calls.is_refused(case, outcome), (user, acls, outcome)
    own.secured.allow(*(acl(need) for need in way))
    outcome = own.outcome(listener, "alice", case.call, case.request)
    assert own_calls.is_refused(case, outcome) is (OF_BROKERS in way), outcome
    outcome = own.outcome("PLAINTEXT", "nobody", case.call, case.request)
    assert own_calls.is_refused(case, outcome), outcome


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SSL"])
@pytest.mark.parametrize("call", [name for name in kafka_calls.CALLS if not name.startswith("Sasl")])
def test_calls_of_kafka_need_their_acls_at_each_listener(kafka: Wired, call: str, listener: str) -> None:
    version = kafka_calls.CALLS[call].versions[-1]
    request = kafka_calls.request_of(kafka.secured, kafka_calls.CALLS[call], version)
    for way in kafka_calls.ways(call, version):
        for user, acls in _insufficient(way) if way else ():
            kafka.secured.allow(*acls)
            answer = kafka.answer(listener, user, request, version)
            assert kafka_calls.is_refused(call, version, answer), (user, acls, answer)
        kafka.secured.allow(*(acl(need) for need in way))
        answer = kafka.answer(listener, "alice", request, version)
        assert kafka_calls.is_refused(call, version, answer) is (OF_BROKERS in way), answer
        if way:
            answer = kafka.answer("PLAINTEXT", "nobody", request, version)
            assert kafka_calls.is_refused(call, version, answer), answer
