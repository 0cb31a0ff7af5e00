"""Tests of the cluster commands on three real brokers and ZooKeeper.

One command also starts and ends a whole cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.cli.main import main
from millrace.clients import Admin, Consumer, Producer, TopicPartition

from .broker_cluster import MILLRACE, Cluster
from .waiting import STALL_S, eventually
from .zookeeper_server import ZooKeeperServer

Run = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(zookeeper_server, tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start(1, 2, 3)
        yield cluster


@pytest.fixture
def run(cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command against the cluster and returns its output."""
    monkeypatch.setenv("MILLRACE_BOOTSTRAP_SERVERS", cluster.bootstrap_servers)

    def run(*arguments: str, status: int = 0) -> str:
        capsys.readouterr()
        assert main(arguments) == status, capsys.readouterr().err
        captured = capsys.readouterr()
        return captured.out if status == 0 or captured.out else captured.err

    return run


def test_a_plan_is_proposed_carried_out_and_verified(cluster: Cluster, run: Run, topic: str, tmp_path: Path) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2], 1: [1, 2]})
    plan = tmp_path / "plan.json"
    plan.write_text(run("reassign", "generate", "--topics", topic, "--brokers", "2,3"))
    wanted = {each["partition"]: each["replicas"] for each in json.loads(plan.read_text())["partitions"]}
    assert all(sorted(replicas) == [2, 3] for replicas in wanted.values())
    assert "2 partitions are moving" in run("reassign", "execute", str(plan), "--throttle", "10000000")
    eventually(lambda: main(["reassign", "verify", str(plan), "--preserve-throttles"]) == 0)
    assert {each.partition: list(each.replicas) for each in cluster.admin.describe_topic(topic).partitions} == wanted
    assert "leader.replication.throttled.replicas" in run("configs", "describe", "topics", topic)
    verified = json.loads(run("reassign", "verify", str(plan), "--json"))
    assert [each["state"] for each in verified] == ["complete", "complete"]
    assert "throttled" not in run("configs", "describe", "topics", topic)
    assert "elected" in run("elect-leaders", "--topic", topic) or "not needed" in run("elect-leaders", "--topic", topic)
    eventually(lambda: [cluster.leader(topic, n) for n in (0, 1)] == [wanted[n][0] for n in (0, 1)])


def test_a_move_that_cannot_complete_is_cancelled(cluster: Cluster, run: Run, topic: str, tmp_path: Path) -> None:
    # The copy needs more than one fetch. The second fetch waits until the throttle allows more.
    cluster.admin.create_topic(topic, assignment={0: [1, 2], 1: [1, 2]})
    _fill(cluster, TopicPartition(topic, 0), records=4, size_bytes=900_000)
    slow, quick = (str(_plan(tmp_path, topic, number, 3, 2)) for number in (0, 1))
    run("reassign", "execute", slow, "--throttle", "1")
    assert "moving already" in run("reassign", "execute", quick, status=1)
    run("reassign", "execute", quick, "--additional")
    eventually(lambda: main(["reassign", "verify", quick]) == 0)
    assert _throttled(run, topic) == [
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
    ]
    assert len(_throttled(run, "3", "brokers")) == 2, "a completed move removes no throttle of a move in progress"
    assert "in progress" in run("reassign", "verify", slow, status=1)
    assert "cancelled 1 of 1" in run("reassign", "cancel", slow)
    eventually(lambda: not cluster.admin.list_partition_reassignments())
    assert (sorted(cluster.replicas(topic, 0)), cluster.replicas(topic, 1)) == ([1, 2], (3, 2))
    eventually(lambda: not (cluster.directory / "broker-3" / f"{topic}-0").exists())
    assert _throttled(run, topic) == []
    assert [_throttled(run, broker_id, "brokers") for broker_id in ("1", "2", "3")] == [[], [], []]
    assert "elsewhere" in run("reassign", "verify", slow, status=1)


def test_a_plan_that_is_refused_changes_nothing(cluster: Cluster, run: Run, topic: str, tmp_path: Path) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2]})
    unknown = _plan(tmp_path, topic, 0, 9, 2)
    assert "[9] are unknown or not alive" in run("reassign", "execute", str(unknown), "--throttle", "1", status=2)
    assert f"{topic}-7" in run("reassign", "execute", str(_plan(tmp_path, topic, 7, 1)), status=2)
    assert not cluster.admin.list_partition_reassignments()
    assert _throttled(run, topic) == _throttled(run, "1", "brokers") == []


def _throttled(run: Run, name: str, kind: str = "topics") -> list[str]:
    """Return the replication throttles of a topic or broker."""
    described = json.loads(run("configs", "describe", kind, name, "--json"))
    return sorted(each["name"] for each in described if "throttled" in each["name"])


def _fill(cluster: Cluster, partition: TopicPartition, *, records: int, size_bytes: int) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for _ in range(records):
            producer.send(partition.topic, os.urandom(size_bytes), partition=partition.partition).result(STALL_S)


def _plan(directory: Path, topic: str, number: int, *replicas: int) -> Path:
    path = directory / f"plan-{number}.json"
    entry = {"topic": topic, "partition": number, "replicas": replicas}
    path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return path


def test_the_cluster_is_described(cluster: Cluster, run: Run, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2, 3]})
    described = json.loads(run("cluster", "describe", "--json"))
    assert [each["broker"] for each in described["brokers"]] == [1, 2, 3]
    assert [each["controller"] for each in described["brokers"]].count("yes") == 1
    assert topic not in {each["partition"].rpartition("-")[0] for each in described["partitions"]}
    assert "CONTROLLER" in run("cluster", "describe")


def test_a_topic_on_chosen_brokers_is_described_with_its_isr(cluster: Cluster, run: Run, topic: str) -> None:
    run("topics", "create", topic, "--replica-assignment", "2:1,3:2")
    described = json.loads(run("topics", "describe", topic, "--json"))["partitions"]
    assert [(each["leader"], each["replicas"], sorted(each["isr"])) for each in described] == [
        (2, [2, 1], [1, 2]),
        (3, [3, 2], [2, 3]),
    ]
    assert "IN SYNC" in run("topics", "describe", topic)
    assert "--replica-assignment x" in run("topics", "create", "other", "--replica-assignment", "x", status=2)


def test_partitions_are_added_on_chosen_brokers_and_elections_read_from_a_file(
    cluster: Cluster, run: Run, topic: str, tmp_path: Path
) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2]})
    run("topics", "alter", topic, "--partitions", "3", "--replica-assignment", "1:2,3:1,2:3")
    assert [cluster.replicas(topic, number) for number in range(3)] == [(1, 2), (3, 1), (2, 3)]
    refused = ("topics", "alter", topic, "--partitions", "5", "--replica-assignment", "1:2,3:1,2:3,1:3")
    assert "names 4 partitions" in run(*refused, status=2)
    file = tmp_path / "partitions.json"
    file.write_text(json.dumps({"partitions": [{"topic": topic, "partition": number} for number in (0, 2)]}))
    elected = json.loads(run("elect-leaders", "--path-to-json-file", str(file), "--json"))
    assert [each["partition"] for each in elected] == [f"{topic}-0", f"{topic}-2"]
    file.write_text('{"partitions": [{"topic": "t"}]}')
    assert "names no partitions" in run("elect-leaders", "--path-to-json-file", str(file), status=2)


def test_a_plan_is_refused_if_only_some_brokers_have_racks(cluster: Cluster, run: Run, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2]})
    cluster.start(4, broker_rack="a")
    try:
        asked = ("reassign", "generate", "--topics", topic, "--brokers", "1,4")
        assert "have no rack, but others have one" in run(*asked, status=1)
        [entry] = json.loads(run(*asked, "--disable-rack-aware"))["partitions"]
        assert sorted(entry["replicas"]) == [1, 4]
    finally:
        cluster.stop(4)


def test_partitions_in_trouble_are_listed(cluster: Cluster, run: Run, topic: str) -> None:
    single = f"{topic}-single"
    cluster.admin.create_topic(topic, assignment={0: [1, 3], 1: [1, 2]}, configs={"min.insync.replicas": "2"})
    cluster.admin.create_topic(single, assignment={0: [3]})

    def listed(name: str, *options: str) -> list[int]:
        found = json.loads(run("topics", "describe", *options, "--json"))
        return [each["partition"] for each in found if each["topic"] == name]

    assert (listed(topic), listed(single)) == ([0, 1], [0])
    assert listed(topic, "--at-min-isr-partitions") == [0, 1]
    assert listed(topic, "--under-replicated-partitions") == listed(single, "--unavailable-partitions") == []
    cluster.stop(3)
    eventually(lambda: listed(single, "--unavailable-partitions") == [0])
    eventually(lambda: listed(topic, "--under-replicated-partitions") == [0])
    assert listed(topic, "--under-min-isr-partitions", topic) == [0]
    assert listed(topic, "--at-min-isr-partitions") == [1]
    cluster.start(3)
    eventually(lambda: listed(topic, "--under-replicated-partitions") == [])
    found = json.loads(run("topics", "describe", "--topics-with-overrides", "--json"))
    assert {"topic": topic, "configs": {"min.insync.replicas": "2"}} in found
    assert "min.insync.replicas=2" in run("topics", "describe", topic, "--topics-with-overrides")
    assert "ADDING" in run("topics", "describe")
    both = ("--unavailable-partitions", "--topics-with-overrides")
    assert "one of the options" in run("topics", "describe", *both, status=2)


def test_options_of_brokers_and_topics_change_while_they_run(cluster: Cluster, run: Run, topic: str) -> None:
    cluster.admin.create_topic(topic, replication_factor=3)
    run("configs", "alter", "topics", topic, "--add", "retention.ms=777")
    assert "777" in run("configs", "describe", "topics", topic)
    run("configs", "alter", "topics", topic, "--delete", "retention.ms")
    assert "777" not in run("configs", "describe", "topics", topic)
    refused = run("configs", "alter", "brokers", "2", "--add", "num.partitions=7", status=1)
    assert "cannot be changed while a broker runs" in refused
    unknown = run("configs", "alter", "brokers", "99", "--add", "log.retention.ms=7", status=1)
    assert "the live brokers are 1, 2, 3" in unknown
    described = json.loads(run("configs", "describe", "brokers", "2", "--json"))
    assert {"name": "broker.id", "value": "2", "source": "STATIC_BROKER_CONFIG"} in described


def test_options_of_all_brokers_change_while_they_run(cluster: Cluster, run: Run, topic: str) -> None:
    cluster.admin.create_topic(topic, replication_factor=3)
    option = "unclean.leader.election.enable"
    run("configs", "alter", "brokers", "default", "--add", f"{option}=true", "--add", "log.retention.ms=777")
    run("configs", "alter", "brokers", "2", "--add", "log.retention.ms=888")
    for broker_id, broker in cluster.brokers.items():
        inner, expected = broker.server.broker, 888 if broker_id == 2 else 777
        eventually(lambda inner=inner, ms=expected: inner.logs.get(topic, 0).config.retention_ms == ms)
        assert inner.catalog.topic(topic).config.unclean_leader_election_enable
    of_all = {"name": option, "value": "true", "source": "DYNAMIC_DEFAULT_BROKER_CONFIG"}
    assert of_all in json.loads(run("configs", "describe", "brokers", "3", "--json"))
    assert of_all in json.loads(run("configs", "describe", "brokers", "default", "--json"))
    own = {"name": "log.retention.ms", "value": "888", "source": "DYNAMIC_BROKER_CONFIG"}
    assert own in json.loads(run("configs", "describe", "brokers", "2", "--json"))
    for name, options in (("default", (option, "log.retention.ms")), ("2", ("log.retention.ms",))):
        run("configs", "alter", "brokers", name, *(word for each in options for word in ("--delete", each)))
    eventually(lambda: all(not each.server.broker.broker_configs.for_all for each in cluster.brokers.values()))


def test_a_listener_that_one_broker_adds_and_removes_is_known_to_all(cluster: Cluster, run: Run) -> None:
    broker = cluster.brokers[2].server.broker
    epoch, listeners = broker.member.broker_epoch, broker.config.listeners

    def knows(broker_id: int) -> bool:
        live = cluster.brokers[broker_id].server.broker.member.live_brokers()
        return any("ADDED" in each.endpoints for each in live if each.broker_id == 2)

    run("configs", "alter", "brokers", "2", "--add", f"listeners={listeners},ADDED://127.0.0.1:0")
    for broker_id in cluster.brokers:
        eventually(lambda broker_id=broker_id: knows(broker_id))
    run("configs", "alter", "brokers", "2", "--delete", "listeners")
    for broker_id in cluster.brokers:
        eventually(lambda broker_id=broker_id: not knows(broker_id))
    assert broker.member.broker_epoch == epoch, "no partition had to move"


@contextlib.contextmanager
def _up(data: Path, brokers: int) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start the command, and return it with the addresses of ZooKeeper and the brokers."""
    command = [str(MILLRACE), "cluster", "up", "--brokers", str(brokers), "--port", "0", "--data-dir", str(data)]
    # A child inherits that a signal is ignored, as SIGHUP is when the tests run under nohup.
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, handler)
    with started as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(1 + brokers)]
            assert lines[0].startswith("ZooKeeper listening on 127.0.0.1:"), process.communicate()
            yield process, [line.split()[-1] for line in lines]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STALL_S)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), STALL_S).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_whole_cluster_is_up_by_one_command_and_ends_with_its_terminal(tmp_path: Path) -> None:
    # Closing the terminal sends SIGHUP. The written records are there after the next start.
    data, values = tmp_path / "data", [b"%d" % number for number in range(10)]
    with _up(data, 3) as (process, addresses):
        brokers = ",".join(addresses[1:])
        with Admin(brokers) as admin:
            eventually(lambda: [each.node_id for each in admin.describe_cluster().brokers] == [1, 2, 3])
            created = admin.create_topic("t", partitions=2)
            assert created is not None
            assert all(len(each.replicas) == 3 for each in created.partitions)
        with Producer(brokers) as producer:
            for value in values:
                producer.send("t", value, partition=0).result(STALL_S)
        process.send_signal(signal.SIGHUP)
        process.wait(STALL_S)
        assert process.returncode == 0
        assert not any(map(_answers, addresses))
    assert "has stopped" in (data / "broker-3.log").read_text()
    with _up(data, 3) as (_, addresses), Consumer(",".join(addresses[1:])) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        found: list[bytes | None] = []
        eventually(lambda: found.extend(each.value for each in consumer.poll(timeout_ms=1000)) or found == values)


def test_a_cluster_ends_with_its_command_even_when_that_is_killed(tmp_path: Path) -> None:
    with _up(tmp_path / "data", 1) as (process, addresses):
        assert all(map(_answers, addresses))
        process.kill()
        process.wait()
        eventually(lambda: not any(map(_answers, addresses)))
    assert "has stopped" in (tmp_path / "data" / "broker-1.log").read_text()
