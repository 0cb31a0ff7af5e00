"""Tests of SCRAM credentials by ``Admin`` and by ``millrace configs``.

A broker has users with passwords, and clients authenticate with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.clients import Admin, UserScramCredentialDeletion, UserScramCredentialUpsertion
from millrace.errors import (
    BrokerUnavailableError,
    ClusterAuthorizationError,
    DuplicateResourceError,
    ResourceNotFoundError,
    SaslAuthenticationError,
    UsageError,
)
from millrace_broker.testing import EmbeddedBroker

from ..planted_secrets import planted
from ..ports import free_port
from .commands import run_millrace

pytestmark = pytest.mark.usefixtures("finest_log")

PASSWORD = planted("swordfish")
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    options = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "authorizer.class.name": "millrace_broker.security.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("scram"), options=options) as running:
        yield running


@pytest.fixture
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(f"127.0.0.1:{broker.server.ports['PLAINTEXT']}") as admin:
        yield admin


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """A user of this test."""
    return f"user-of-{request.node.name}"


@pytest.fixture
def environment(broker: EmbeddedBroker) -> dict[str, str]:
    return {
        "MILLRACE_BOOTSTRAP_SERVERS": f"127.0.0.1:{broker.server.ports['PLAINTEXT']}",
        "PASSWORD_OF_USER": PASSWORD,
    }


def log_in(broker: EmbeddedBroker, user: str, password: str, mechanism: str = SHA_512) -> None:
    """Authenticate by SCRAM. Raises ``SaslAuthenticationError``."""
    options = {
        "bootstrap.servers": f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    with Admin(options) as own:
        own.broker_version()


def test_an_admin_sets_describes_and_deletes_credentials(broker: EmbeddedBroker, admin: Admin, user: str) -> None:
    set_both = [
        UserScramCredentialUpsertion(user, SHA_256, PASSWORD, iterations=16_384),
        UserScramCredentialUpsertion(user, SHA_512, PASSWORD),
    ]
    assert admin.alter_user_scram_credentials(set_both) == {user: None}
    assert admin.describe_user_scram_credentials([user, user]) == {user: {SHA_256: 16_384, SHA_512: 4096}}
    assert admin.describe_user_scram_credentials()[user] == {SHA_256: 16_384, SHA_512: 4096}
    for mechanism in (SHA_256, SHA_512):
        log_in(broker, user, PASSWORD, mechanism)
    assert admin.alter_user_scram_credentials([UserScramCredentialDeletion(user, SHA_256)]) == {user: None}
    with pytest.raises(SaslAuthenticationError):
        log_in(broker, user, PASSWORD, SHA_256)
    assert admin.describe_user_scram_credentials([user]) == {user: {SHA_512: 4096}}
    assert PASSWORD not in repr(set_both)


def test_the_error_of_one_user_leaves_the_changes_of_others(admin: Admin, user: str) -> None:
    done = admin.alter_user_scram_credentials(
        [
            UserScramCredentialUpsertion(user, SHA_512, PASSWORD),
            UserScramCredentialDeletion("nobody", SHA_512),
            UserScramCredentialUpsertion("twice", SHA_512, PASSWORD),
            UserScramCredentialDeletion("twice", SHA_512),
        ]
    )
    assert done[user] is None
    assert isinstance(done["nobody"], ResourceNotFoundError)
    assert isinstance(done["twice"], DuplicateResourceError)
    assert admin.describe_user_scram_credentials([user, "nobody", "twice"]) == {user: {SHA_512: 4096}}


@pytest.mark.parametrize(
    ("mechanism", "password", "iterations"),
    [("SCRAM-SHA-1", PASSWORD, 4096), (SHA_512, "", 4096), (SHA_512, PASSWORD, 4095), (SHA_512, PASSWORD, 16_385)],
)
def test_a_credential_that_no_broker_accepts_is_refused(mechanism: str, password: str, iterations: int) -> None:
    with pytest.raises(UsageError) as refused:
        UserScramCredentialUpsertion("user", mechanism, password, iterations)
    assert PASSWORD not in str(refused.value)


def test_a_user_needs_rights_on_the_cluster(broker: EmbeddedBroker, admin: Admin, user: str) -> None:
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, SHA_512, PASSWORD)])
    options = {
        "bootstrap.servers": f"127.0.0.1:{broker.server.ports['SASL_PLAINTEXT']}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": user,
        "sasl.password": PASSWORD,
    }
    with Admin(options) as own:
        with pytest.raises(ClusterAuthorizationError):
            own.describe_user_scram_credentials([user])
        errors = own.alter_user_scram_credentials([UserScramCredentialDeletion(user, SHA_512)])
    assert isinstance(errors[user], ClusterAuthorizationError)


def test_a_cluster_that_does_not_answer_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    with Admin(address) as admin, pytest.raises(BrokerUnavailableError, match=address):
        admin.describe_user_scram_credentials()


def test_the_command_takes_a_reference_to_a_password(
    broker: EmbeddedBroker, environment: dict[str, str], user: str
) -> None:
    credential = f"{SHA_512}=[iterations=8192,password=${{env:PASSWORD_OF_USER}}]"
    done = run_millrace("configs", "alter", "users", user, "--add", credential, environment=environment)
    assert done.stdout == f"changed the SCRAM credentials of user {user}\n"
    log_in(broker, user, PASSWORD)
    shown = run_millrace("configs", "describe", "users", user, environment=environment).stdout
    assert shown.split()[-2:] == [SHA_512, "iterations=8192"]


@pytest.mark.parametrize("form", ["[password={}]", "password={}", "[iterations=-1,password={}]"])
def test_the_command_takes_passwords_of_a_file(
    broker: EmbeddedBroker, environment: dict[str, str], user: str, form: str, tmp_path: Path
) -> None:
    password = f"{PASSWORD}, with=commas]"
    file = tmp_path / "user.properties"
    file.write_text(f"{SHA_256}={form.format(password)}\n")
    run_millrace("configs", "alter", "users", user, "--add-file", file, environment=environment)
    log_in(broker, user, password, SHA_256)
    text = f"{SHA_512}={form.format(password)}\n"
    run_millrace("configs", "alter", "users", user, "--add-file", "-", stdin=text, environment=environment)
    log_in(broker, user, password, SHA_512)


def test_the_command_shows_quotas_and_credentials_and_deletes_credentials(
    admin: Admin, environment: dict[str, str], user: str
) -> None:
    both = [UserScramCredentialUpsertion(user, each, PASSWORD) for each in (SHA_256, SHA_512)]
    admin.alter_user_scram_credentials(both)
    run_millrace("configs", "alter", "users", user, "--add", "producer_byte_rate=1024", environment=environment)

    def described(*arguments: str) -> list[str]:
        shown = run_millrace("configs", "describe", "users", *arguments, "--json", environment=environment).stdout
        return [f"{each['name']}={each['value']}" for each in json.loads(shown)]

    credentials = [f"{SHA_256}=iterations=4096", f"{SHA_512}=iterations=4096"]
    assert described(user) == ["producer_byte_rate=1024", *credentials]
    assert described(user, "--client", "reports") == []
    delete = ("--delete", SHA_256, "--delete", SHA_512)
    run_millrace("configs", "alter", "users", user, *delete, environment=environment)
    assert described(user) == ["producer_byte_rate=1024"]
    refused = run_millrace("configs", "alter", "users", user, "--delete", SHA_256, environment=environment, code=1)
    assert f"user {user} has no" in refused.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([f"{SHA_512}=[password=%s]"], f"--add {SHA_512}: the value is a secret"),
        ([f"{SHA_512}=[iterations=8192,password=%s]"], "with --add-file (`-`: the input), or as a reference"),
        ([f"{SHA_512}=[%s]"], f"{SHA_512} is no SCRAM credential: expected {SHA_512}=[iterations="),
        ([f"{SHA_512}=[password=%s,iterations=8192]"], "give iterations before the password"),
        ([f"{SHA_256}=[password=%s],{SHA_512}=[password=%s]"], "each credential with an --add"),
        ([f"{SHA_512} [%s]"], "expected NAME=VALUE"),
        (["password=%s"], "--add password: the value is a secret"),
        (["scram-sha-512=[%s]"], "scram-sha-512 is no quota of user bob: its quotas are producer_byte_rate"),
        (["producer_byte_rate=%s"], "producer_byte_rate of user bob: expected a number"),
    ],
)
def test_no_refusal_of_the_command_shows_a_password(
    environment: dict[str, str], given: list[str], message: str
) -> None:
    added = [each for text in given for each in ("--add", text.replace("%s", PASSWORD))]
    refused = run_millrace("configs", "alter", "users", "bob", *added, environment=environment, code=2).stderr
    assert message in refused
    assert PASSWORD not in refused


def test_an_argument_without_an_option_is_not_shown(environment: dict[str, str]) -> None:
    arguments = ("configs", "alter", "users", "bob", f"{SHA_512}=[password={PASSWORD}]")
    refused = run_millrace(*arguments, environment=environment, code=2).stderr
    assert "give changes with --add" in refused
    assert PASSWORD not in refused


@pytest.mark.parametrize("kind", ["topics", "brokers", "groups", "clients", "broker-loggers"])
def test_no_kind_of_entity_takes_a_password_on_the_command_line(environment: dict[str, str], kind: str) -> None:
    for option in ("--add", "--append", "--subtract"):
        if (kind, option) in {("clients", "--append"), ("clients", "--subtract")}:
            continue
        given = f"listener.name.ssl.ssl.key.password={PASSWORD}"
        refused = run_millrace("configs", "alter", kind, "1", option, given, environment=environment, code=2).stderr
        assert f"{option} listener.name.ssl.ssl.key.password: the value is a secret" in refused
        assert PASSWORD not in refused


REFERRED = f"{SHA_512}=[password=${{env:PASSWORD_OF_USER}}]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bob", "--add", REFERRED, "--client", "x"], "user bob, client-id x has no SCRAM credentials"),
        (["default", "--add", REFERRED], "default user has no SCRAM credentials"),
        (["bob", "--add", REFERRED, "--delete", "producer_byte_rate"], "use a command for each"),
        (["bob", "--add", REFERRED, "--validate-only"], "--validate-only is not for SCRAM credentials"),
        (["bob", "--add", f"{SHA_512}=[password=${{env:NONE_SUCH}}]"], "${env:NONE_SUCH} cannot be resolved"),
        (["bob", "--add", REFERRED.replace("[", "[iterations=1,")], "1 iterations of SCRAM-SHA-512: expected 4096 to"),
    ],
)
def test_credentials_are_those_of_one_user_and_change_alone(
    environment: dict[str, str], arguments: list[str], message: str
) -> None:
    code = 1 if "NONE_SUCH" in message else 2
    refused = run_millrace("configs", "alter", "users", *arguments, environment=environment, code=code).stderr
    assert message in refused


def test_quotas_are_shown_if_the_credentials_cannot_be(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, options={"kafka.clients.enable": "false"}) as broker:
        environment = {"MILLRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
        run_millrace("configs", "alter", "users", "bob", "--add", "request_percentage=50", environment=environment)
        shown = run_millrace("configs", "describe", "users", "bob", environment=environment)
    assert "request_percentage" in shown.stdout
    assert "the SCRAM credentials of user bob are not shown: " in shown.stderr
