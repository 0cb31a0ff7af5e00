"""Tests of commands that refuse secrets on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.cli.options import client_config
from millrace.cli.secret_options import is_client_secret
from millrace.config.client import ConsumerConfig, ProducerConfig
from millrace.config.secrets import holds_secret
from millrace.errors import UsageError
from millrace_broker.cli.broker import load_config

from ...integration.commands import run_millrace
from ...planted_secrets import planted

PASSWORD = planted("typed")
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("sasl.password", PASSWORD, True),
        ("sasl.password", "", False),
        ("sasl.password", "${env:PASSWORD}", False),
        ("sasl.password", "${file:/run/a.properties:password}", False),
        ("sasl.password", "${directory:/run/secrets:password}", False),
        ("sasl.password", "${env:PASSWORD}1", True),
        ("sasl.password", "${vault:x}", True),
        ("sasl.jaas.config", "${env:JAAS}", False),
        ("sasl.jaas.config", f'{MODULE} username="a" password="{PASSWORD}";', True),
        ("sasl.jaas.config", f'{MODULE} username="a" password="${{env:PASSWORD}}" tokenauth="true";', False),
        ("sasl.jaas.config", 'x.OAuthBearerLoginModule required clientId="a" clientSecret="b";', True),
        ("sasl.jaas.config", 'x.Krb5LoginModule required useKeyTab=true keyTab="/a.keytab" principal="a@B";', False),
        ("listener.name.x.plain.sasl.jaas.config", 'x.PlainLoginModule required user_alice="a";', True),
        ("sasl.jaas.config", "no login module", True),
    ],
)
def test_a_value_holds_a_secret_unless_it_refers_to_one(name: str, value: str, holds: bool) -> None:
    assert holds_secret(name, value) is holds


@pytest.mark.parametrize(
    ("option", "is_secret"),
    [
        ("kafka.sasl.password", True),
        ("ssl.key.password", True),
        ("kafka.ssl.keystore.key", True),
        ("sasl.oauthbearer.client.credentials.client.secret", True),
        ("kafka.sasl.oauthbearer.token.endpoint.url", False),
        ("maxOffsetsPerTrigger", False),
        ("kafka.sasl.username", False),
    ],
)
def test_options_of_clients_are_secret_also_in_spark(option: str, is_secret: bool) -> None:
    assert is_client_secret(option) is is_secret


@pytest.mark.parametrize("option", [name for name in ProducerConfig.option_names() if ProducerConfig.is_secret(name)])
def test_no_client_takes_a_secret_on_the_command_line(option: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"{option}={PASSWORD}\n")
    for kind in (ProducerConfig, ConsumerConfig):
        with pytest.raises(UsageError, match=f"-o {option}: the value is a secret.*--client-config") as refused:
            client_config(kind, None, None, [f"{option}={PASSWORD}"])
        assert PASSWORD not in str(refused.value)
        assert client_config(kind, None, file, [f"{option}=${{env:SECRET}}"])[option] == "${env:SECRET}"
        assert client_config(kind, None, file)[option] == PASSWORD


BROKER_SECRETS: Sequence[tuple[str, str]] = [
    ("listener.name.sasl_plaintext.plain.sasl.jaas.config", f'PlainLoginModule required user_a="{PASSWORD}";'),
    ("ssl.key.password", PASSWORD),
    ("zookeeper.sasl.password", PASSWORD),
    ("password.encoder.secret", PASSWORD),
    ("delegation.token.secret.key", PASSWORD),
    ("sasl.scram.credentials", f"SCRAM-SHA-512=[name=admin,salt={PASSWORD}]"),
]


@pytest.mark.parametrize(("option", "value"), BROKER_SECRETS)
def test_no_broker_takes_a_secret_on_the_command_line(option: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"-o {option}: the value is a secret.*--config") as refused:
        load_config(None, data_dir=None, listen=None, options=[f"{option}={value}"])
    assert PASSWORD not in str(refused.value)


def test_a_broker_takes_a_reference_to_a_secret_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_PASSWORD", PASSWORD)
    loaded = load_config(None, data_dir=None, listen=None, options=["ssl.key.password=${env:KEY_PASSWORD}"])
    assert loaded.ssl_key_password == PASSWORD


@pytest.mark.parametrize(
    "command",
    [
        ["produce", "orders"],
        ["consume", "orders"],
        ["perf", "produce", "--topic", "orders", "--num-records", "1", "--record-size", "1"],
        ["perf", "consume", "--topic", "orders", "--messages", "1"],
        ["broker"],
        ["cluster", "up"],
        ["cluster", "migrate"],
        ["streams", "rebuild", "--checkpoint", "none", "--topology", "none"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("given", ["sasl.jaas.config={}", "{}"])
def test_no_command_takes_a_secret_or_shows_it(command: Sequence[str], given: str) -> None:
    refused = run_millrace(*command, "-o", given.format(PASSWORD), code=2).stderr
    assert ("sasl.jaas.config: the value is a secret" if "=" in given else "expected NAME=VALUE") in refused
    assert PASSWORD not in refused
