"""Tests of the pages about a secure broker and cluster.

The commands of the pages make both from nothing. They run as they stand except for ports.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import SessionClosedRequireSaslError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_acl

from millrace.clients import Admin, Consumer, TopicPartition
from millrace.config.base import read_properties
from millrace.config.zookeeper import ZooKeeperConfig
from millrace.coordination import AccessDeniedError
from millrace.coordination.zookeeper import ZooKeeperStore
from millrace_broker.cli.local_zookeeper import LocalZooKeeper

from ..ports import free_port
from .broker_cluster import MILLRACE
from .documented import ROOT
from .waiting import STALL_S, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
pytestmark = pytest.mark.slow


def section(page: str, title: str) -> list[tuple[str, str]]:
    """Return the blocks of a section, with their languages."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return _BLOCK.findall(text)


def port_with_room() -> int:
    """Return a port for three brokers, whose listeners for certificates are 100 ports above it."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in (first + distance + number for distance in (0, 100) for number in range(3)):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


@contextlib.contextmanager
def running(command: str, until: str, directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a command in the background until the block ends. Yield what it printed until it is ready."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    printed = ""
    try:
        while until not in printed:
            line = process.stdout.readline()
            assert line, printed
            printed += line
        yield printed
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STALL_S)


def follow(script: str, directory: Path, environment: dict[str, str]) -> str:
    done = run_to_end(["bash", "-e", "-o", "pipefail"], input=script, cwd=directory, env=environment)
    assert done.returncode == 0, script + done.stdout + done.stderr
    return done.stdout + done.stderr


def environment_of(directory: Path) -> dict[str, str]:
    path = f"{MILLRACE.parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "MILLRACE_CLIENT_CONFIG": str(directory)} | {"COLUMNS": "120"}


def leaks(secrets: set[str], directory: Path) -> set[str]:
    """Return the places that contain one of the secrets.

    The places are files of the directory outside of its security directories, and command lines of processes.
    """
    found = set()
    places = [path for path in directory.rglob("*") if path.is_file() and "security" not in path.parent.name]
    places += [Path("/proc", name, "cmdline") for name in os.listdir("/proc") if name.isdigit()]
    assert len(places) > 20
    for path in places:
        with contextlib.suppress(OSError):  # a process that has ended
            content = path.read_bytes()
            found |= {str(path) for secret in secrets if secret.encode() in content}
    return found


def test_the_readme_makes_a_secure_cluster_from_nothing(tmp_path: Path) -> None:
    (_, start), (language, program), (_, rotate) = section("README.md", "A secure cluster in five minutes")
    assert language == "python"
    first, *rest = start.replace("9192", str(port_with_room())).splitlines()
    environment = environment_of(tmp_path / "secure" / "security" / "admin.properties")
    quick = " -o offsets.topic.num.partitions=3 -o controlled.shutdown.retry.backoff.ms=200"
    with running(first.partition("&")[0] + quick, "the cluster is up", tmp_path, environment) as up:
        follow("\n".join(rest), tmp_path, environment)
        (tmp_path / "program.py").write_text(program)
        follow("python program.py", tmp_path, environment)
        printed = follow(rotate, tmp_path, environment)
        assert "broker-3.pem is valid until" in printed
        assert "a pen" in printed
        assert "a book" in printed
        security = tmp_path / "secure" / "security"
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in security.glob("*.properties"))
        secrets = {read_properties(each)["sasl.password"] for each in security.glob("*.librdkafka.properties")}
        secrets.add((security / "zookeeper.secret").read_text())
        assert len(secrets) == 3
        assert acls_of(zookeeper_of(up), security, "/config/users/admin") == [[make_acl("sasl", "broker", all=True)]]
        assert leaks(secrets, tmp_path) == set()
        refused = run_to_end(["millrace", "topics", "list", "-b", "localhost:1"], cwd=tmp_path, env=environment)
        assert refused.returncode == 1


def zookeeper_of(printed: str) -> str:
    """Return the address of the ZooKeeper that a cluster has started."""
    found = re.search(r"^ZooKeeper listening on (.*)$", printed, re.MULTILINE)
    assert found is not None
    return found[1]


@contextlib.contextmanager
def opened(address: str, **options: Any) -> Iterator[KazooClient]:
    """Open a session of ZooKeeper, also with a server that refuses it."""
    client = KazooClient(address, connection_retry={"max_tries": 0}, **options)
    try:
        client.start(STALL_S)
        yield client
    finally:
        client.stop()
        client.close()


def login(password: str) -> dict[str, str]:
    return {"mechanism": "DIGEST-MD5", "username": "broker", "password": password}


ATTACKS: list[Callable[[KazooClient], object]] = [
    lambda client: client.get("/config/users/admin"),
    lambda client: client.get_children("/config/users"),
    lambda client: client.set("/config/users/admin", b"{}"),
    lambda client: client.create("/config/users/mallory", b"{}"),
    lambda client: client.set_acls("/config/users/admin", OPEN_ACL_UNSAFE),
]
STRANGERS: list[dict[str, Any]] = [{}, {"auth_data": [("digest", "broker:guessed")]}]
"""Options of clients that do not authenticate by SASL."""
BROKERS: dict[str, dict[str, Any]] = {
    "ZooKeeper demands authentication for /x: set zookeeper.sasl.mechanism": {},
    "ZooKeeper refuses the credentials: check zookeeper.sasl": {
        "zookeeper.sasl.mechanism": "DIGEST-MD5",
        "zookeeper.sasl.username": "broker",
        "zookeeper.sasl.password": "guessed",
    },
}
"""What brokers without the secret are told, and their options."""


def assert_for_brokers_alone(address: str, security: Path) -> None:
    """Check that ZooKeeper carries out requests of a client with the secret of the directory, and no others."""
    for options in STRANGERS:
        for call in ATTACKS:
            with opened(address, **options) as client, pytest.raises(SessionClosedRequireSaslError):
                call(client)
    for problem, options in BROKERS.items():
        with pytest.raises(AccessDeniedError, match=problem):
            ZooKeeperStore(ZooKeeperConfig.load({"zookeeper.connect": f"{address}/x", **options})).connect()
    with opened(address, sasl_options=login((security / "zookeeper.secret").read_text())) as client:
        assert sorted(client.get_children("/config/users")) == ["admin", "client"]
        assert b"iterations" in client.get("/config/users/admin")[0]


def acls_of(address: str, security: Path, *paths: str) -> list[list[ACL]]:
    with opened(address, sasl_options=login((security / "zookeeper.secret").read_text())) as client:
        return [client.get_acls(path)[0] for path in paths]


def test_a_local_zookeeper_is_for_brokers_alone_also_with_the_data_of_before(tmp_path: Path) -> None:
    data, security = tmp_path / "data", tmp_path / "data" / "security"
    environment = environment_of(security / "admin.properties")
    up = f"millrace cluster up --secure --brokers 1 --data-dir data --port {port_with_room()}"
    up += " -o offsets.topic.num.partitions=1 -o controlled.shutdown.retry.backoff.ms=200"
    with (
        LocalZooKeeper(data / "zookeeper") as earlier,  # without a secret, as before there was one
        running(f"{up} --zookeeper {earlier.address}", "the cluster is up", tmp_path, environment) as printed,
    ):
        assert f"everyone who reaches ZooKeeper at {earlier.address} can change users and ACLs" in printed
        follow("millrace topics create early", tmp_path, environment)
        assert not (security / "zookeeper.secret").exists()

    with running(up, "the cluster is up", tmp_path, environment) as printed:
        follow("millrace topics create late", tmp_path, environment)
        address = zookeeper_of(printed)
        assert "everyone who reaches" not in printed
        assert_for_brokers_alone(address, security)
        early, late, user = acls_of(
            address, security, "/brokers/topics/early", "/brokers/topics/late", "/config/users/admin"
        )
        owner = make_acl("sasl", "broker", all=True)
        assert (early, late) == (OPEN_ACL_UNSAFE, [owner, *READ_ACL_UNSAFE])
        assert user == OPEN_ACL_UNSAFE
        follow("millrace security rotate --directory data/security", tmp_path, environment)
        secret = (security / "zookeeper.secret").read_text()
        assert leaks({secret}, tmp_path) == set()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in security.iterdir()}
        assert (modes["zookeeper.secret"], modes["zookeeper.jaas.conf"]) == (0o600, 0o600)
        assert stat.S_IMODE((data / "zookeeper").stat().st_mode) == 0o700

    refused = run_to_end([MILLRACE, "cluster", "up", "--data-dir", "data"], cwd=tmp_path, env=environment)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "data has the metadata of a secure cluster: add --secure" in refused.stderr

    (security / "zookeeper.secret").unlink()  # brokers and ZooKeeper get another one
    with running(up, "the cluster is up", tmp_path, environment) as printed:
        listed = follow("millrace topics list", tmp_path, environment)
        assert re.findall(r"^(early|late) ", listed, re.MULTILINE) == ["early", "late"]
        follow("millrace topics delete early late", tmp_path, environment)
        assert (security / "zookeeper.secret").read_text() != secret
        assert_for_brokers_alone(zookeeper_of(printed), security)


def test_the_security_page_makes_a_secure_broker_from_nothing(tmp_path: Path) -> None:
    [(_, script)] = section("docs/security.md", "From nothing")
    init, broker, *rest = script.splitlines()
    port = port_with_room()
    environment = environment_of(tmp_path / "millrace-security" / "admin.properties")
    follow(f"{init} --broker localhost:{port}", tmp_path, environment)
    with running(broker.rstrip("& "), "listening on", tmp_path, environment):
        printed = follow("\n".join(rest), tmp_path, environment)
        assert "created topic orders" in printed
        assert "User:client" in printed


@pytest.mark.spark
def test_each_kind_of_client_works_with_the_files_of_the_security_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(_, script)] = section("docs/security.md", "From nothing")
    init, broker, *_ = script.splitlines()
    environment = environment_of(tmp_path / "millrace-security" / "admin.properties")
    follow(f"{init} --broker localhost:{port_with_room()}", tmp_path, environment)
    options = read_properties(tmp_path / "millrace-security" / "admin.properties")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    with running(broker.rstrip("& "), "listening on", tmp_path, environment), Admin(options) as admin:
        admin.create_topic("orders")
        for language, program in section("docs/security.md", "Programs"):
            assert language == "python"
            program = program.replace("checkpoints/", f"{tmp_path}/checkpoints/")  # Spark's JVM has another directory
            exec(compile(program, "docs/security.md", "exec", dont_inherit=True), names)
        assert values_of(options, "more-copies") == [b"a pen", b"a book"]
    checkpoints = [each.read_bytes() for each in tmp_path.glob("checkpoints/**/*") if each.is_file()]
    assert checkpoints
    assert not any(options["sasl.jaas.config"].encode() in each for each in checkpoints)


def values_of(options: dict[str, str], topic: str) -> list[object]:
    """Return the values of a topic of one partition."""
    with Consumer(options) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found: list[object] = []
        end = consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        while consumer.position(TopicPartition(topic, 0)) < end:
            found += [record.value for record in consumer.poll(timeout_ms=1000)]
        return found


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--port", "0"], "--port 0 with --secure: the clients' properties have the ports, so name the first one"),
        (["--brokers", "2"], "has no broker-2.properties: it was made for fewer brokers"),
    ],
)
def test_a_cluster_that_cannot_be_secure_is_refused(tmp_path: Path, arguments: list[str], problem: str) -> None:
    made = run_to_end([str(MILLRACE), "security", "init", "--directory", "data/security"], cwd=tmp_path)
    assert made.returncode == 0
    done = run_to_end([str(MILLRACE), "cluster", "up", "--secure", "--data-dir", "data", *arguments], cwd=tmp_path)
    assert done.returncode == 2
    assert problem in done.stderr
