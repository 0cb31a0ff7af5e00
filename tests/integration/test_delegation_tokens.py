"""Tests of delegation tokens by Kafka's calls.

Users create tokens, and clients use them as the login of SCRAM. The tests also check the limits of a token's rights.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.acls import AccessControlEntry, AclBinding, AclOperation, AclPermission, ResourcePattern, ResourceType
from millrace.clients import Admin
from millrace.errors import SaslAuthenticationError
from millrace.kafka_protocol.calls.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from millrace.kafka_protocol.calls.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from millrace.kafka_protocol.calls.expire_delegation_token import ExpireDelegationTokenRequest
from millrace.kafka_protocol.calls.renew_delegation_token import RenewDelegationTokenRequest
from millrace.kafka_protocol.calls.sasl_authenticate import SaslAuthenticateRequest
from millrace.kafka_protocol.calls.sasl_handshake import SaslHandshakeRequest
from millrace.security.sasl import SaslCredentials, exchange
from millrace_broker.testing import EmbeddedBroker

from ..planted_secrets import planted
from .broker_cluster import Cluster
from .commands import run_millrace
from .kafka_wire import KafkaWire
from .waiting import eventually
from .zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.usefixtures("finest_log")

HOUR_MS = 3_600_000
USERS = ("admin", "bob", "eve")
JAAS = "PlainLoginModule required " + " ".join(f'user_{name}="{planted(name)}"' for name in USERS) + ";"
OPTIONS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.jaas.config": JAAS,
    "delegation.token.secret.key": planted("swordfish"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    options = OPTIONS | {
        "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
        "super.users": "User:admin",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("tokens"), options=options) as running:
        yield running


def wire(broker: EmbeddedBroker, username: str, password: str = "", mechanism: str = "PLAIN") -> KafkaWire:
    """Connect as a user, or with a delegation token if there is a password."""
    login = SaslCredentials(mechanism, username, password or planted(username), is_token=bool(password))
    connection = KafkaWire(broker.server.ports["SASL_PLAINTEXT"])
    assert connection.call(SaslHandshakeRequest(mechanism=mechanism), 1).error_code == 0
    steps = exchange(login, "127.0.0.1")
    message = next(steps)
    while True:
        answer = connection.call(SaslAuthenticateRequest(auth_bytes=message), 2)
        assert answer.error_code == 0, answer.error_message
        try:
            message = steps.send(bytes(answer.auth_bytes))
        except StopIteration:
            return connection


def create(connection: KafkaWire, owner: str = "", renewers: tuple[str, ...] = (), kind: str = "User") -> Any:
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind if owner else None,
        owner_principal_name=owner or None,
        renewers=tuple(CreatableRenewers(principal_type=kind, principal_name=each) for each in renewers),
        max_lifetime_ms=HOUR_MS,
    )
    return connection.call(request, 3)


def described(connection: KafkaWire, *owners: str) -> set[str]:
    named = tuple(DescribeDelegationTokenOwner(principal_type="User", principal_name=each) for each in owners)
    answer = connection.call(DescribeDelegationTokenRequest(owners=named or None), 3)
    assert answer.error_code == 0
    return {each.token_id for each in answer.tokens}


def password(token: Any) -> str:
    return base64.b64encode(bytes(token.hmac)).decode()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_logs_its_owner_in_until_it_ends(broker: EmbeddedBroker, mechanism: str) -> None:
    with wire(broker, "bob") as bob:
        token = create(bob)
        assert (token.error_code, token.principal_name, token.token_requester_principal_name) == (0, "bob", "bob")
        address = f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}"
        options = {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'x.ScramLoginModule required username="{token.token_id}" '
            f'password="{password(token)}" tokenauth="true";',
        }
        with Admin(options) as admin:
            admin.list_topics()
        with wire(broker, token.token_id, password(token), mechanism) as by_token:
            assert create(by_token).error_code == 64, "a token makes no other token"
            refused = by_token.call(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1), 2)
            assert refused.error_code == 64
        ended = bob.call(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1), 2)
        assert ended.error_code == 0
    with Admin(options) as admin, pytest.raises(SaslAuthenticationError, match="invalid credentials"):
        admin.list_topics()


def test_a_token_cannot_log_in_as_a_user(broker: EmbeddedBroker) -> None:
    with wire(broker, "bob") as bob:
        token = create(bob)
    options = {
        "bootstrap.servers": f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": token.token_id,
        "sasl.password": password(token),
    }
    with Admin(options) as admin, pytest.raises(SaslAuthenticationError, match="invalid credentials"):
        admin.list_topics()


def test_the_session_ends_with_the_token(broker: EmbeddedBroker) -> None:
    with wire(broker, "bob") as bob:
        token = create(bob)
    with KafkaWire(broker.server.ports["SASL_PLAINTEXT"]) as connection:
        connection.call(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
        steps = exchange(SaslCredentials("SCRAM-SHA-256", token.token_id, password(token), is_token=True), "127.0.0.1")
        first = connection.call(SaslAuthenticateRequest(auth_bytes=next(steps)), 2)
        answer = connection.call(SaslAuthenticateRequest(auth_bytes=steps.send(bytes(first.auth_bytes))), 2)
        assert 0 < answer.session_lifetime_ms <= HOUR_MS


def test_tokens_of_other_users_need_an_acl(broker: EmbeddedBroker) -> None:
    def allow(operation: AclOperation) -> None:
        entry = AccessControlEntry("User:eve", "*", operation, AclPermission.ALLOW)
        resource = ResourcePattern(ResourceType.USER, "User:bob")
        broker.server.broker.authorizer.create_acls([AclBinding(resource, entry)])  # type: ignore[union-attr]

    allow_nobody = AccessControlEntry("User:nobody", "*", AclOperation.ALL, AclPermission.ALLOW)
    broker.server.broker.authorizer.create_acls(  # type: ignore[union-attr]
        [AclBinding(ResourcePattern(ResourceType.USER, "User:bob"), allow_nobody)]
    )
    with wire(broker, "eve") as eve, wire(broker, "bob") as bob:
        assert create(eve, owner="bob").error_code == 65
        allow(AclOperation.CREATE_TOKENS)
        token = create(eve, owner="bob", renewers=("admin",))
        assert (token.error_code, token.principal_name, token.token_requester_principal_name) == (0, "bob", "eve")
        assert token.token_id in described(bob)
        assert token.token_id in described(bob, "admin"), "as its renewer"
        assert token.token_id in described(bob, "eve"), "as its requester"
        assert described(bob, "nobody") == set()
        closed = ResourcePattern(ResourceType.DELEGATION_TOKEN, token.token_id)
        broker.server.broker.authorizer.create_acls([AclBinding(closed, allow_nobody)])  # type: ignore[union-attr]
        assert token.token_id in described(eve), "eve requested it, and may therefore see it, but not renew it"
        assert eve.call(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1), 2).error_code == 63
        renewed = bob.call(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1), 2)
        assert (renewed.error_code, renewed.expiry_timestamp_ms) == (0, token.max_timestamp_ms)


@pytest.mark.parametrize(("kind", "code"), [("Group", 67)])
def test_owners_and_renewers_must_be_of_the_type_user(broker: EmbeddedBroker, kind: str, code: int) -> None:
    with wire(broker, "bob") as bob:
        assert create(bob, renewers=("a",), kind=kind).error_code == code
        assert create(bob, owner="bob", kind=kind).error_code == code


def test_clients_without_a_login_have_no_tokens(broker: EmbeddedBroker) -> None:
    with KafkaWire(broker.server.ports["PLAINTEXT"]) as anonymous:
        assert create(anonymous).error_code == 64
        assert anonymous.call(DescribeDelegationTokenRequest(owners=None), 3).error_code == 64


def test_the_command_creates_describes_renews_and_ends_tokens(broker: EmbeddedBroker, tmp_path: Path) -> None:
    def properties(name: str, text: str) -> str:
        path = tmp_path / f"{name}.properties"
        path.write_text(
            f"bootstrap.servers=127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}\n"
            f"security.protocol=SASL_PLAINTEXT\n{text}\n"
        )
        return str(path)

    bob = properties("bob", f"sasl.mechanism=PLAIN\nsasl.username=bob\nsasl.password={planted('bob')}")

    def run(*words: str, login: str = bob, code: int = 0) -> Any:
        return run_millrace("delegation-tokens", *words, "--client-config", login, code=code)

    token = json.loads(run("create", "--renewer", "eve", "--max-lifetime", str(2 * HOUR_MS), "--json").stdout)
    assert (token["owner"], token["renewers"]) == ("User:bob", ["User:eve"])
    described = run("describe", "--owner", "bob").stdout
    assert token["token_id"] in described
    assert token["hmac"] not in described
    assert "expires at" in run("renew", "--token-id", token["token_id"], "--period", str(HOUR_MS)).stdout
    module = f'ScramLoginModule required username="{token["token_id"]}" password="{token["hmac"]}" tokenauth="true";'
    by_token = properties("token", f"sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={module}")
    assert "not with a delegation token" in run("create", login=by_token, code=1).stderr
    run("expire", "--token-id", token["token_id"])
    assert "no delegation token with the id" in run("renew", "--token-id", token["token_id"], code=1).stderr


def test_expired_tokens_are_removed_from_the_metadata(tmp_path: Path) -> None:
    options = {**OPTIONS, "delegation.token.expiry.check.interval.ms": "20"}
    with EmbeddedBroker(tmp_path, options=options) as broker, wire(broker, "bob") as bob:
        kept, ended = create(bob), create(bob)
        bob.call(ExpireDelegationTokenRequest(hmac=ended.hmac, expiry_time_period_ms=1), 2)
        coordination = broker.server.broker.coordination
        eventually(lambda: coordination.children("/delegation_token/tokens") == [kept.token_id])


def test_every_broker_of_a_cluster_takes_a_token(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    options = {name.replace(".", "_"): value for name, value in OPTIONS.items()}
    with Cluster(zookeeper_server, tmp_path, inter_broker_listener_name="PLAINTEXT", **options) as cluster:
        cluster.start(1, 2)
        with wire(cluster.brokers[1], "bob") as bob, wire(cluster.brokers[2], "eve") as eve:
            assert create(eve, owner="bob").error_code == 65, "without an authorizer, nobody acts for others"
            token = create(bob)
            assert described(eve) == set()
        tokens = cluster.brokers[2].server.broker.delegation_tokens
        eventually(lambda: tokens.login(token.token_id, "SCRAM-SHA-512") is not None)
        with wire(cluster.brokers[2], token.token_id, password(token), "SCRAM-SHA-512") as by_token:
            assert create(by_token).error_code == 64
