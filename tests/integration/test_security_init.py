"""Tests of the files of ``millrace security init``.

One broker uses its files, and clients of each kind use theirs.
"""

from __future__ import annotations

import logging
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from millrace.clients import Admin, Consumer, Producer
from millrace.config.base import read_properties
from millrace.config.broker import BrokerConfig
from millrace.config.client import ClientConfig
from millrace.errors import SaslAuthenticationError, TopicAuthorizationError
from millrace_broker.metadata.scram_credentials import ScramChange
from millrace_broker.testing import EmbeddedBroker

from ..ports import free_port
from ..properties_files import write_properties
from .commands import run_millrace
from .kafka_clients import read, send
from .security_files import SecurityFiles
from .waiting import STALL_S, eventually
from .zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.usefixtures("finest_log")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> SecurityFiles:
    return SecurityFiles(tmp_path_factory.mktemp("files") / "security")


@pytest.fixture(scope="module")
def broker(files: SecurityFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    options = files.broker(metrics_port="0")
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as broker:
        yield broker


@pytest.fixture
def properties(files: SecurityFiles, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a command with the administrator's properties, at the ports of this broker."""
    path = tmp_path / "admin.properties"
    write_properties(path, files.client("admin", broker))
    yield {"MILLRACE_CLIENT_CONFIG": str(path)}
    path.unlink()


def test_every_client_works_with_its_properties_and_what_acls_allow(
    files: SecurityFiles, broker: EmbeddedBroker, topic: str, properties: dict[str, str]
) -> None:
    run_millrace("topics", "create", topic, environment=properties)
    for rights in (["--producer"], ["--consumer", "--group", topic]):
        add = ["acls", "add", "--allow-principal", "User:client", *rights, "--topic", topic]
        run_millrace(*add, environment=properties)
    for name in ("client", "client.tls"):  # the principal is the same by password and by certificate
        with Producer(files.client(name, broker)) as producer:
            producer.send(topic, name.encode()).result(STALL_S)
    given = files.client("client.librdkafka", broker)
    send(confluent_kafka.Producer(given), topic, [{"value": b"librdkafka"}])
    reader = confluent_kafka.Consumer({**given, "group.id": topic, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    assert [each.value() for each in read(reader, 3)] == [b"client", b"client.tls", b"librdkafka"]
    reader.close()
    with (
        Producer(files.client("guest.tls", broker)) as producer,
        pytest.raises(TopicAuthorizationError, match=topic),
    ):
        producer.send(topic, b"value").result(STALL_S)


def test_a_broker_takes_the_credentials_at_its_first_start_alone(files: SecurityFiles, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", options=files.broker()) as broker:
        credentials = broker.server.broker.scram_credentials
        assert set(credentials.of_users()) == {"admin", "client", "guest"}
        with Admin(files.client("admin", broker)) as admin:
            assert admin.list_topics() == []
        # An administrator changes the password of a user. The next start of the broker leaves it.
        mechanism = "SCRAM-SHA-512"
        changed = type(credentials.of_users()["guest"][mechanism]).of_password(mechanism, "another")
        credentials.alter("guest", [ScramChange(mechanism, changed)])
    with EmbeddedBroker(tmp_path / "data", options=files.broker()) as broker:
        assert broker.server.broker.scram_credentials.get("guest", mechanism) == changed


def test_malformed_credentials_of_the_configuration_are_refused_without_quoting_them(files: SecurityFiles) -> None:
    for text in ("admin=secret", "SCRAM-SHA-512=[name=admin]"):
        with pytest.raises(Exception, match=r"sasl\.scram\.credentials=\(hidden\): .*expected SCRAM-SHA-512"):
            BrokerConfig.load({**files.broker(), "sasl.scram.credentials": text})


def test_certificates_of_the_command_are_used_without_a_restart(files: SecurityFiles, broker: EmbeddedBroker) -> None:
    with Admin(files.client("admin.tls", broker)) as admin:
        connection = admin._connections._links.to(f"127.0.0.1:{broker.server.ports['SSL']}")
        assert admin.list_topics() is not None
        shown = run_millrace("security", "rotate", "--directory", files.path).stdout
        assert "broker-1.pem is valid until" in shown
        eventually(lambda: files.is_served(1, broker))
        assert admin.list_topics() is not None
        assert connection is admin._connections._links.to(f"127.0.0.1:{broker.server.ports['SSL']}")


def test_secrets_are_shown_nowhere(
    files: SecurityFiles,
    broker: EmbeddedBroker,
    topic: str,
    properties: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    shown = [repr(broker), repr(broker.server), repr(broker._config), repr(broker.server.broker.authorizer)]
    shown += [repr(BrokerConfig.load(files.broker())), str(BrokerConfig.load(files.broker()))]
    with caplog.at_level(logging.DEBUG):
        for name in ("admin", "client", "client.tls", "guest"):
            given = files.client(name, broker)
            shown.append(repr(ClientConfig.load(given)))
            with Admin(given) as admin, Producer(given) as producer, Consumer(given) as consumer:
                shown += [repr(admin), repr(producer), repr(consumer), repr(admin.list_topics())]
        wrong = files.client("client.librdkafka", broker)
        password = wrong["sasl.password"]
        refused = {
            "bootstrap.servers": wrong["bootstrap.servers"],
            "security.protocol": "SASL_SSL",
            "ssl.truststore.location": wrong["ssl.ca.location"],
            "sasl.username": "admin",
            "sasl.password": password,
        }
        with pytest.raises(SaslAuthenticationError) as error, Admin(refused) as admin:
            admin.list_topics()
        shown.append(str(error.value) + repr(error.value))
        for given in ({"sasl.jaas.config": f"nothing {password}"}, {"sasl.password": f"x{password}", "acks": "9"}):
            with pytest.raises(Exception, match=r".") as error:
                Producer({**refused, **given})
            shown.append(str(error.value) + repr(error.value))
        for command in (["topics", "list"], ["configs", "describe", "brokers", "1"], ["cluster", "describe"]):
            done = run_millrace(*command, environment=properties)
            shown.append(done.stdout + done.stderr)
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as response:
        shown.append(response.read().decode())
    assert "millrace_topics" in shown[-1]
    shown.append(caplog.text)
    written = [path for path in Path(broker._config.log_dirs).rglob("*") if path.is_file()]
    running = [Path(entry) / "cmdline" for entry in _processes()]
    found = {
        str(where)
        for where, content in [
            *((f"output {number}", text) for number, text in enumerate(shown)),
            *((path, path.read_bytes().decode("latin-1")) for path in written),
            *((path, _read(path)) for path in running),
        ]
        for secret in files.secrets()
        if secret in content
    }
    assert found == set()
    assert len(written) > 5
    assert any("python" in _read(path) for path in running), "the search sees processes"


def _processes() -> list[str]:
    return [f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit()]


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("latin-1")
    except OSError:  # the process has ended
        return ""


def test_a_user_is_added_to_the_running_cluster(
    files: SecurityFiles, broker: EmbeddedBroker, topic: str, properties: dict[str, str], tmp_path: Path
) -> None:
    added = files.copied(tmp_path / "copy")
    directory = added.path
    write_properties(directory / "admin.properties", added.client("admin", broker))
    run_millrace("topics", "create", topic, environment=properties)
    done = run_millrace("security", "add-user", "orders", "--directory", directory)
    assert f"--client-config {directory}/orders.properties" in done.stdout
    assert "orders can authenticate now" in done.stderr
    run_millrace(
        "acls", "add", "--allow-principal", "User:orders", "--producer", "--topic", topic, environment=properties
    )
    for name in ("orders", "orders.tls"):
        with Producer(added.client(name, broker)) as producer:
            producer.send(topic, name.encode()).result(STALL_S)
    assert (
        "has the files of a user orders"
        in run_millrace("security", "add-user", "orders", "--directory", directory, code=2).stderr
    )
    for path in directory.glob("orders.*"):
        path.unlink()
    refused = run_millrace("security", "add-user", "orders", "--directory", directory, code=2).stderr
    assert "the cluster has a user orders, whose password would change" in refused
    assert not list(directory.glob("orders.*"))
    write_properties(directory / "admin.properties", files.client("guest", broker))
    refused = run_millrace("security", "add-user", "others", "--directory", directory, code=1).stderr
    assert "User:guest may not DESCRIBE Cluster kafka-cluster" in refused


def test_a_user_is_added_at_the_next_start(files: SecurityFiles, tmp_path: Path) -> None:
    added = files.copied(tmp_path / "copy")
    done = run_millrace("security", "add-user", "later", "--directory", added.path, "--next-start")
    assert "after the next start of the brokers" in done.stderr
    with (
        EmbeddedBroker(tmp_path / "data", options=added.broker()) as broker,
        Admin(added.client("later", broker)) as admin,
    ):
        assert admin.list_topics() == []


def test_a_broker_is_added_to_a_cluster(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    directory, port = tmp_path / "security", free_port()
    options = ["--directory", directory, "--broker", f"localhost:{port}"]
    run_millrace("security", "init", *options, "--zookeeper", f"{zookeeper_server.address}/added")
    done = run_millrace("security", "add-broker", f"localhost:{port + 1}", "--directory", directory)
    assert "broker-2.properties and broker-2.pem" in done.stdout
    added = SecurityFiles.of(directory)
    with (
        EmbeddedBroker(tmp_path / "one", options=added.broker(1)) as one,
        EmbeddedBroker(tmp_path / "two", options=added.broker(2)) as two,
        Admin(added.client("admin", one)) as admin,
        Producer(added.client("admin", two)) as producer,
    ):
        eventually(lambda: len(admin.describe_cluster().brokers) == 2)
        admin.create_topic("t", assignment={0: [1, 2]}, configs={"min.insync.replicas": "2"})
        producer.send("t", b"value").result(STALL_S)


def test_the_help_shows_examples() -> None:
    for command in ("init", "add-user", "add-broker", "rotate"):
        shown = run_millrace("security", command, "--help").stdout
        assert f"millrace security {command}" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--broker", "a", "--broker", "b"], "2 brokers have their metadata in ZooKeeper: name it with --zookeeper"),
        (["--broker", "a", "--broker", "a:9092", "--zookeeper", "z:1"], "two of --broker have the same address"),
        (["--broker", "a:b"], "broker a:b: expected HOST or HOST:PORT"),
        (["--client", "broker"], "no 'broker'"),
    ],
)
def test_invalid_arguments_are_refused_before_any_file_is_written(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    directory = tmp_path / "security"
    done = run_millrace("security", "init", "--directory", directory, *arguments, code=2)
    assert problem in done.stderr
    assert not directory.exists()


def test_the_command_names_the_files_and_refuses_to_overwrite_them(tmp_path: Path) -> None:
    directory = tmp_path / "security"
    done = run_millrace("security", "init", "--directory", directory, "--broker", "localhost:9192", "--client", "a")
    assert "1 broker(s) and of admin, a" in done.stdout
    assert "ca-key.pem apart" in done.stderr
    assert read_properties(directory / "a.properties")["bootstrap.servers"] == "localhost:9192"
    assert "none is overwritten" in run_millrace("security", "init", "--directory", directory, code=2).stderr
    run_millrace("security", "rotate", "--directory", directory, "--ca")
    assert "try again in" in run_millrace("security", "rotate", "--directory", directory, code=2).stderr
    run_millrace("security", "rotate", "--directory", directory, "--overlap", 0)
    assert (
        "is without CN=authority" in run_millrace("security", "rotate", "--directory", directory, "--retire-ca").stdout
    )
