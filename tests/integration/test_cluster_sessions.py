"""Tests of three real brokers whose ZooKeeper sessions expire at any moment.

ZooKeeper is also unreachable for all of them.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from millrace import errors
from millrace.clients import Admin, Producer

from .broker_cluster import SESSION_MS, Cluster
from .waiting import STALL_S, eventually, pause
from .zookeeper_server import PASSWORD, USER, ZooKeeperServer, proxy_to, zookeeper_client

ROUNDS = 12


def is_whole(admin: Admin, topics: set[str]) -> bool:
    """Tell whether all brokers are registered and all topics exist with every replica in sync."""
    described = admin.list_topics()
    partitions = [partition for topic in described for partition in topic.partitions]
    return (
        len(admin.describe_cluster().brokers) == 3
        and topics <= {topic.name for topic in described}
        and all(each.leader in (1, 2, 3) and len(each.isr) == len(each.replicas) for each in partitions)
    )


@pytest.mark.parametrize("seed", range(3))
def test_sessions_that_end_at_any_moment_leave_a_whole_cluster(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with Cluster(zookeeper_server, tmp_path) as cluster:
        cluster.start(1, 2, 3)
        created: set[str] = set()
        for number in range(ROUNDS):
            pause(chance.choice([0, 0.005, 0.02, 0.1]))  # the test varies this moment
            cluster.expire(chance.choice([1, 2, 3]))
            try:
                cluster.admin.create_topic(f"t{number}", partitions=3)
            except (errors.InvalidReplicationFactorError, errors.RequestTimedOutError, errors.UnknownOutcomeError):
                continue  # no broker is registered now, or the result of the call is unknown
            created.add(f"t{number}")
        assert len(created) > ROUNDS / 3
        eventually(lambda: is_whole(cluster.admin, created))
        epochs = [cluster.member(each).controlling.epoch for each in (1, 2, 3) if cluster.controller == each]
        assert len(epochs) == 1


def test_brokers_continue_without_zookeeper_and_register_again_when_it_is_back(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    with proxy_to(zookeeper_server) as proxy, Cluster(zookeeper_server, tmp_path) as cluster:
        cluster.connect = cluster.connect.replace(zookeeper_server.address, proxy.address)
        cluster._options["zookeeper.connect"] = cluster.connect
        cluster.start(1, 2, 3)
        cluster.admin.create_topic("t", partitions=3, replication_factor=3)
        epochs = {each: cluster.member(each).broker_epoch for each in (1, 2, 3)}
        with Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
            # the producer already has its producer id, which comes from ZooKeeper
            producer.send("t", b"value").result(STALL_S)
            proxy.cut()
            ended = time.monotonic() + 2 * SESSION_MS / 1000
            while time.monotonic() < ended:
                for partition in range(3):
                    producer.send("t", b"value", partition=partition).result(STALL_S)
        with zookeeper_client(zookeeper_server.address + "/" + cluster.connect.partition("/")[2]) as client:
            # The notification is gone when the brokers come back.
            client.set("/config/topics/t", b'{"version":1,"config":{"retention.ms":"777"}}')
            client.create("/config/brokers/2", b'{"version":1,"config":{"leader.replication.throttled.rate":"77"}}')
        proxy.heal()
        eventually(lambda: all(cluster.member(each).broker_epoch > epochs[each] for each in epochs))
        eventually(lambda: is_whole(cluster.admin, {"t"}))
        brokers = {each: cluster.brokers[each].server.broker for each in epochs}
        eventually(lambda: {log.config.retention_ms for each in brokers.values() for log in each.logs.logs()} == {777})
        eventually(lambda: brokers[2].broker_configs.rate("leader.replication.throttled.rate") == 77)
        assert cluster.admin.create_topic("tt", replication_factor=3) is not None


@pytest.mark.parametrize("way", ["SASL", "TLS"])
def test_a_broker_authenticates_to_zookeeper(zookeeper_server: ZooKeeperServer, tmp_path: Path, way: str) -> None:
    options = {
        "SASL": {
            "zookeeper.sasl.mechanism": "DIGEST-MD5",
            "zookeeper.sasl.username": USER,
            "zookeeper.sasl.password": PASSWORD,
            "zookeeper.set.acl": "true",
        },
        "TLS": {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.keystore.location": str(zookeeper_server.certificate),
            "zookeeper.ssl.truststore.location": str(zookeeper_server.authority),
        },
    }[way]
    with Cluster(zookeeper_server, tmp_path, **options) as cluster:
        if way == "TLS":
            secure = cluster.connect.replace(zookeeper_server.address, zookeeper_server.secure_address)
            cluster._options["zookeeper.connect"] = secure
        cluster.start(1)
        assert cluster.admin.create_topic("t") is not None
        shown = cluster.admin.describe_configs("1", resource="broker")
        assert (shown["zookeeper.sasl.password"].value, shown["zookeeper.sasl.password"].is_sensitive) == ("", True)
