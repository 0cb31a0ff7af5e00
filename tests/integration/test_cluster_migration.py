"""Test of a single broker's migration to a cluster.

The broker becomes the first member of a cluster on a real ZooKeeper.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.cli.main import main
from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import EnvironmentProblemError
from millrace_broker.testing import EmbeddedBroker

from .broker_cluster import OPTIONS, Cluster
from .waiting import eventually
from .zookeeper_server import ZooKeeperServer

QUICK = {"retry.backoff.ms": "20"}
GROUP = {"group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": "false", **QUICK}
OF_ZOOKEEPER = "zookeeper."


def produce(bootstrap_servers: str, values: range) -> None:
    with Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": "writer", **QUICK}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.send("orders", value=b"%d" % value, partition=0)
        producer.commit_transaction()


def consume(bootstrap_servers: str, count: int) -> list[int]:
    """Read so many records after the group's offset, and commit."""
    found: list[int] = []

    def has_all(consumer: Consumer) -> bool:
        found.extend(int(record.value) for record in consumer.poll(200))  # type: ignore[arg-type]
        return len(found) >= count

    with Consumer({"bootstrap.servers": bootstrap_servers, "isolation.level": "read_committed", **GROUP}) as consumer:
        consumer.subscribe(["orders"])
        eventually(lambda: has_all(consumer))
        consumer.commit()
    return found


def test_a_single_broker_becomes_a_cluster_with_its_topics_groups_and_transactions(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Cluster(zookeeper_server, tmp_path) as cluster:
        directory = tmp_path / "broker-1"
        alone = {name: value for name, value in OPTIONS.items() if not name.startswith(OF_ZOOKEEPER)}
        with EmbeddedBroker(directory, options=alone | {"broker.id": "1"}) as broker:
            with Admin(broker.bootstrap_servers) as admin:
                admin.create_topic("orders")
            produce(broker.bootstrap_servers, range(10))
            assert consume(broker.bootstrap_servers, 10) == list(range(10))
        options = cluster.options(1)
        with pytest.raises(EnvironmentProblemError, match="has no cluster"):
            cluster.start(1)
        command = ["cluster", "migrate", "--data-dir", str(directory)]
        for name in ("broker.id", "zookeeper.connect"):
            command += ["-o", f"{name}={options[name]}"]
        assert main(command) == 0
        assert "is in ZooKeeper at" in capsys.readouterr().out
        assert main(command) == 0
        assert "was complete before" in capsys.readouterr().out

        cluster.start(1, 2)
        produce(cluster.bootstrap_servers, range(10, 20))
        assert consume(cluster.bootstrap_servers, 10) == list(range(10, 20))
        plan = tmp_path / "plan.json"
        plan.write_text(
            json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [2, 1]}]})
        )
        assert main(["reassign", "execute", str(plan), "-b", cluster.bootstrap_servers]) == 0
        eventually(lambda: set(cluster.isr("orders")) == {1, 2})
        cluster.admin.elect_leaders([TopicPartition("orders", 0)])
        eventually(lambda: cluster.leader("orders") == 2)
        assert cluster.end_offset("orders") == 22
