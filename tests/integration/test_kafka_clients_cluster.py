"""Tests of Kafka clients of three brokers.

Leaders and coordinators are on other brokers, and brokers restart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .broker_cluster import Cluster
from .kafka_clients import read, send
from .waiting import STALL_S, Stall
from .zookeeper_server import ZooKeeperServer


@pytest.fixture
def cluster(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = {"group.share.heartbeat.interval.ms": "200"}
    with Cluster(zookeeper_server, tmp_path_factory.mktemp("cluster"), **options) as cluster:
        cluster.start(1, 2, 3)
        yield cluster


def _options(cluster: Cluster, *broker_ids: int) -> dict[str, Any]:
    ports = [cluster.brokers[each].port for each in broker_ids]
    return {"bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in ports), "reconnect.backoff.max.ms": 500}


def test_kafkas_clients_find_leaders_and_coordinators_and_continue_when_they_move(cluster: Cluster, topic: str) -> None:
    admin = AdminClient(_options(cluster, 1))
    admin.create_topics([NewTopic(topic, 6, 3)])[topic].result(STALL_S)
    described = admin.list_topics(topic, STALL_S)
    assert {(each.id, each.port) for each in described.brokers.values()} == {
        (number, broker.port) for number, broker in cluster.brokers.items()
    }
    assert {each.leader for each in described.topics[topic].partitions.values()} == {1, 2, 3}

    writer = confluent_kafka.Producer(_options(cluster, 1) | {"acks": "all", "enable.idempotence": True})
    groups = [f"{topic}-{number}" for number in range(6)]  # coordinated by different brokers
    readers = []
    for group in groups:
        reader = confluent_kafka.Consumer(
            _options(cluster, 2, 3) | {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        reader.subscribe([topic])
        readers.append(reader)
    records = [{"value": b"%d" % number, "partition": number % 6} for number in range(60)]
    send(writer, topic, records)
    for reader in readers:
        assert sorted(int(each.value()) for each in read(reader, 60)) == list(range(60))
        reader.commit(asynchronous=False)

    cluster.stop(1)
    send(writer, topic, [{"value": b"%d" % number, "partition": number % 6} for number in range(60, 120)])
    for reader in readers:
        seen: set[int] = set()
        stall = Stall("all later records after a broker has gone")
        while not seen >= set(range(60, 120)):
            stall.check(len(seen))
            message = reader.poll(0.1)
            if message is not None and message.error() is None:
                seen.add(int(message.value()))
        assert seen <= set(range(120))
        assert sorted(each.offset for each in reader.position(reader.assignment())) == [20] * 6
        reader.close()


def test_a_transaction_of_kafkas_producer_spans_brokers(cluster: Cluster, topic: str) -> None:
    admin = AdminClient(_options(cluster, 1))
    admin.create_topics([NewTopic(topic, 6, 3)])[topic].result(STALL_S)
    writer = confluent_kafka.Producer(_options(cluster, 1) | {"transactional.id": topic})
    writer.init_transactions(STALL_S)
    for turn in range(6):
        writer.begin_transaction()
        for partition in range(6):
            writer.produce(topic, b"%d" % turn, partition=partition)
        if turn % 2:
            writer.commit_transaction(STALL_S)
        else:
            writer.abort_transaction(STALL_S)
    reader = confluent_kafka.Consumer(
        _options(cluster, 3) | {"group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )
    reader.assign([TopicPartition(topic, number, 0) for number in range(6)])
    found = sorted((each.partition(), each.value()) for each in read(reader, 18))
    assert found == [(partition, b"%d" % turn) for partition in range(6) for turn in (1, 3, 5)]
    reader.close()


def test_share_groups_of_kafkas_clients_have_coordinators_on_all_brokers_and_continue_when_they_move(
    cluster: Cluster, topic: str
) -> None:
    admin = AdminClient(_options(cluster, 1))
    admin.create_topics([NewTopic(topic, 6, 3)])[topic].result(STALL_S)
    writer = confluent_kafka.Producer(_options(cluster, 1) | {"acks": "all"})
    aborted = confluent_kafka.Producer(_options(cluster, 1) | {"transactional.id": topic})
    aborted.init_transactions(STALL_S)
    aborted.begin_transaction()
    for partition in range(6):
        aborted.produce(topic, b"-1", partition=partition)
    aborted.abort_transaction(STALL_S)
    groups = [f"{topic}-{number}" for number in range(4)]  # coordinated by different brokers
    readers = []
    for number, group in enumerate(groups):
        options = {"share.auto.offset.reset": "by_duration:PT1H" if number % 2 else "earliest"}
        options["share.isolation.level"] = "read_committed"
        cluster.admin.alter_configs(group, options, resource="group")
        reader = confluent_kafka.ShareConsumer(_options(cluster, 2, 3) | {"group.id": group})
        reader.subscribe([topic])
        readers.append(reader)
    send(writer, topic, [{"value": b"%d" % number, "partition": number % 6} for number in range(60)])
    for reader in readers:
        assert _shared(reader, set(range(60)), "the first records") == Counter(range(60))
    coordinators = {cluster.admin.describe_group(group).coordinator for group in groups}
    assert len(coordinators) > 1
    cluster.stop(1)
    send(writer, topic, [{"value": b"%d" % number, "partition": number % 6} for number in range(60, 120)])
    for reader in readers:
        _shared(reader, set(range(60, 120)), "all later records after a broker has gone")
        reader.close()
    cluster.start(1)


def _shared(reader: confluent_kafka.ShareConsumer, wanted: set[int], what: str) -> Counter[int]:
    """Poll and accept until all wanted values were delivered."""
    found: Counter[int] = Counter()
    stall = Stall(what)
    while not wanted <= found.keys():
        stall.check(len(found))
        found.update(int(each.value()) for each in reader.poll(0.2) if each.error() is None)
    reader.commit_sync(STALL_S)
    return found
