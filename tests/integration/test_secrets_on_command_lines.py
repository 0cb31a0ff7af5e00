"""Tests of commands that get secrets by files and references.

No command line shows a secret."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.clients import Admin
from millrace.config.base import read_properties
from millrace_broker.cli.cluster import _Brokers
from millrace_broker.cli.security_directory import Place, SecurityDirectory
from millrace_broker.testing import EmbeddedBroker

from ..planted_secrets import planted, processes_with_secrets
from ..properties_files import write_properties
from .broker_cluster import MILLRACE
from .commands import run_millrace
from .waiting import STALL_S

pytestmark = pytest.mark.usefixtures("finest_log")

PASSWORD = planted("of-alice")
ENCODER = planted("of-encoder")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    options = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": f'x.PlainLoginModule required username="a" password="{PASSWORD}" user_a="{PASSWORD}";',
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("sasl"), options=options) as running:
        yield running


@pytest.mark.parametrize(
    "secret",
    [
        "sasl.password=${env:PASSWORD_OF_A}",
        'sasl.jaas.config=x.PlainLoginModule required username="a" password="${env:PASSWORD_OF_A}";',
    ],
)
def test_a_command_authenticates_with_a_reference(broker: EmbeddedBroker, topic: str, secret: str) -> None:
    options = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", secret]
    if secret.startswith("sasl.password"):
        options.append("sasl.username=a")
    client = {"bootstrap.servers": broker.bootstrap_servers, "sasl.username": "a", "sasl.password": PASSWORD}
    with Admin({**client, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}) as admin:
        admin.create_topic(topic)
    environment = {"PASSWORD_OF_A": PASSWORD, "MILLRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
    given = [each for option in options for each in ("-o", option)]
    run_millrace("produce", topic, *given, stdin="a pen\n", environment=environment)
    shown = run_millrace("consume", topic, "--from", "beginning", "-f", "value", *given, environment=environment)
    assert shown.stdout == "a pen\n"


@contextlib.contextmanager
def _up(directory: Path, *arguments: str) -> Iterator[str]:
    """Run a cluster of one broker, and return the broker's address."""
    command = [str(MILLRACE), "cluster", "up", "--brokers", "1", "--port", "0", "--data-dir", str(directory)]
    # A new session, so that the signal of the end reaches this command alone.
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert "listening on" in lines[-1], lines
            yield lines[-1].split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STALL_S)


def test_brokers_of_a_cluster_get_secrets_by_a_file_that_only_the_owner_reads(tmp_path: Path) -> None:
    config, data = tmp_path / "brokers.properties", tmp_path / "data"
    write_properties(config, {"password.encoder.secret": ENCODER, "num.io.threads": 7})
    made = data / "broker-1.properties"
    with _up(data, "--config", str(config), "-o", "num.partitions=5") as address:
        assert processes_with_secrets() == []
        assert stat.S_IMODE(made.stat().st_mode) == 0o600
        assert read_properties(made)["password.encoder.secret"] == ENCODER
        with Admin(address) as admin:
            options = admin.describe_configs("1", resource="broker")
            found = {name: options[name].value for name in ("num.io.threads", "num.partitions")}
            assert found == {"num.io.threads": "7", "num.partitions": "5"}
            assert options["password.encoder.secret"].source == "STATIC_BROKER_CONFIG"
            # A broker without the secret stores no password.
            added = "listener.name.plaintext.ssl.key.password=${env:KEY_PASSWORD}"
            environment = {"KEY_PASSWORD": PASSWORD, "MILLRACE_BOOTSTRAP_SERVERS": address}
            run_millrace("configs", "alter", "brokers", "1", "--add", added, environment=environment)
            changed = admin.describe_configs("1", resource="broker")["listener.name.plaintext.ssl.key.password"]
            assert (changed.value, changed.is_sensitive) == ("", True)
    assert not made.exists()


def test_a_secure_cluster_has_the_options_of_its_files_and_of_the_given_one(tmp_path: Path) -> None:
    files = SecurityDirectory.at(tmp_path / "security")
    files.create([Place("localhost", 9092)], ["client"], days=1)
    stale = tmp_path / "broker-1.properties"
    stale.write_text("")
    stale.chmod(0o644)
    secret = f'x.PlainLoginModule required user_a="{PASSWORD}\\\\";'
    options = {"listener.name.sasl_ssl.plain.sasl.jaas.config": secret, "num.partitions": "5"}
    brokers = _Brokers(tmp_path, 9092, options, (), files)
    made = brokers._config(1)
    assert made == stale
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o600
    found = read_properties(made)
    assert found.pop("listener.name.sasl_ssl.plain.sasl.jaas.config") == secret
    assert found == read_properties(files.broker_properties(1))
    brokers.stop()
    assert not made.exists()
    stale.write_text("")  # of a command that was killed
    without = _Brokers(tmp_path, 9092, {"num.partitions": "5"}, (), files)
    assert without._config(1) == files.broker_properties(1)
    assert not stale.exists()
