"""Listeners of a cluster on a real ZooKeeper: clients learn the addresses of the listener by which they came."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from millrace.clients import Admin, Consumer, Producer
from millrace.errors import ListenerNotFoundError
from millrace.kafka_protocol.calls.describe_cluster import DescribeClusterRequest
from millrace.kafka_protocol.calls.find_coordinator import FindCoordinatorRequest
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.protocol import millrace_pb2 as pb

from .broker_cluster import Cluster
from .kafka_clients import read, send
from .kafka_wire import KafkaWire
from .waiting import STALL_S
from .zookeeper_server import ZooKeeperServer

LISTENERS = "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0,GRPC://127.0.0.1:0"
_BOTH = ("INTERNAL", "EXTERNAL")
TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Brokers 1 and 2 with all listeners, and broker 3 without EXTERNAL. Each leads a partition."""
    with Cluster(zookeeper_server, tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start(1, 2, listeners=LISTENERS)
        cluster.start(3, listeners="INTERNAL://127.0.0.1:0,GRPC://127.0.0.1:0")
        cluster.admin.create_topic(TOPIC, assignment={number: [number + 1] for number in range(3)})
        yield cluster


def _ports(cluster: Cluster, listener: str) -> dict[int, int]:
    """The port of each broker that has the listener."""
    ports = {number: broker.server.ports for number, broker in cluster.brokers.items()}
    return {number: named[listener] for number, named in ports.items() if listener in named}


def test_clients_learn_the_addresses_of_their_listener_from_every_broker(cluster: Cluster) -> None:
    for listener, transport in (("INTERNAL", "auto"), ("EXTERNAL", "auto"), ("GRPC", "grpc")):
        expected = _ports(cluster, listener)
        for port in expected.values():
            with Admin({"bootstrap.servers": f"127.0.0.1:{port}", "transport": transport}) as admin:
                assert {each.node_id: each.port for each in admin.describe_cluster().brokers} == expected
    for listener in _BOTH:
        expected = _ports(cluster, listener)
        for port in expected.values():
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
            described = admin.list_topics(timeout=STALL_S)
            assert {each.id: each.port for each in described.brokers.values()} == expected
            with KafkaWire(port) as wire:
                found = wire.call(DescribeClusterRequest(include_cluster_authorized_operations=False), 1)
                assert {each.broker_id: each.port for each in found.brokers} == expected


@pytest.mark.parametrize("listener", _BOTH)
def test_a_client_of_each_kind_uses_one_address(cluster: Cluster, listener: str) -> None:
    """Partitions 0 and 1 are led by brokers with both listeners."""
    servers = ",".join(f"127.0.0.1:{port}" for port in _ports(cluster, listener).values())
    values = [f"{listener} {number}".encode() for number in range(4)]
    send(
        confluent_kafka.Producer({"bootstrap.servers": servers}),
        TOPIC,
        [{"value": value, "partition": number % 2} for number, value in enumerate(values[:2])],
    )
    with Producer(servers) as producer:
        for number, value in enumerate(values[2:]):
            producer.send(TOPIC, value, partition=number).result(STALL_S)
    with Consumer({"bootstrap.servers": servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([each for each in consumer.partitions_for(TOPIC) if each.partition < 2])
        seen: set[Any] = set()
        while not seen >= set(values):
            seen |= {record.value for record in consumer.poll(STALL_S * 1000)}
    options = {"bootstrap.servers": servers, "group.id": listener, "auto.offset.reset": "earliest"}
    reader = confluent_kafka.Consumer(options)
    reader.assign([confluent_kafka.TopicPartition(TOPIC, number, 0) for number in (0, 1)])
    assert {each.value() for each in read(reader, len(seen))} >= set(values)
    reader.close()


def test_a_leader_without_the_listener_has_an_error_and_its_broker_is_left_out(cluster: Cluster) -> None:
    port = _ports(cluster, "EXTERNAL")[1]
    with KafkaWire(port) as wire:
        asked = MetadataRequest(topics=(MetadataRequestTopic(name=TOPIC),), allow_auto_topic_creation=False)
        for version, error in ((5, 5), (6, 72), (12, 72)):  # clients before KIP-222 know LEADER_NOT_AVAILABLE
            described = wire.call(asked, version)
            assert {each.node_id for each in described.brokers} == {1, 2}
            (topic,) = described.topics
            partitions = {each.partition_index: each for each in topic.partitions}
            assert [partitions[number].leader_id for number in range(3)] == [1, 2, -1]
            assert [partitions[number].error_code for number in range(3)] == [0, 0, error]
            assert list(partitions[2].offline_replicas) == [3]
    with Admin(f"127.0.0.1:{port}") as admin:
        response = admin._connections.call(lambda stub: stub.Metadata, pb.MetadataRequest(topics=[TOPIC]))
    failed = response.topics[0].partitions[2].error
    assert failed.code == ListenerNotFoundError.code
    assert failed.message == (
        "broker 3 leads orders-2 and has no listener EXTERNAL: give all brokers of the cluster the same listeners"
    )


def test_a_coordinator_without_the_listener_is_not_available(cluster: Cluster) -> None:
    keys = tuple(f"group-{number}" for number in range(20))  # which spread over the brokers
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=keys)
    found = {}
    for listener in _BOTH:
        with KafkaWire(_ports(cluster, listener)[2]) as wire:
            found[listener] = {each.key: each for each in wire.call(request, 4).coordinators}
    assert {each.node_id for each in found["INTERNAL"].values()} == {1, 2, 3}
    for key, inside in found["INTERNAL"].items():
        outside = found["EXTERNAL"][key]
        assert inside.port == _ports(cluster, "INTERNAL")[inside.node_id]
        if inside.node_id == 3:
            assert outside.error_code == 15  # COORDINATOR_NOT_AVAILABLE
            assert "has no listener EXTERNAL" in outside.error_message
        else:
            assert (outside.node_id, outside.port) == (inside.node_id, _ports(cluster, "EXTERNAL")[inside.node_id])
