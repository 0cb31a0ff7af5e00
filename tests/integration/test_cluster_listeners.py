"""Tests of the listeners of a cluster on a real ZooKeeper.

Clients learn the addresses of the listener to which they are connected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from millrace.clients import Admin, Consumer, Producer
from millrace.errors import ListenerNotFoundError
from millrace.kafka_protocol.calls.describe_cluster import DescribeClusterRequest
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.kafka_protocol.calls.find_coordinator import FindCoordinatorRequest
from millrace.kafka_protocol.calls.metadata import MetadataRequest, MetadataRequestTopic
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.kafka_protocol.fields import NIL_UUID
from millrace.protocol import millrace_pb2 as pb
from millrace.records import Record, build_rows_batch
from millrace_broker.kafka_api.misdirected_clients import REQUESTS_MAX

from .broker_cluster import Cluster
from .kafka_clients import read, send
from .kafka_wire import KafkaWire
from .waiting import STALL_S
from .zookeeper_server import ZooKeeperServer

LISTENERS = "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0,GRPC://127.0.0.1:0"
_BOTH = ("INTERNAL", "EXTERNAL")
TOPIC = "orders"
REFUSED = "refused"
"""Topic of requests that one broker gets for partitions of all."""


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Brokers 1 and 2 with all listeners, and broker 3 without EXTERNAL. Each leads a partition."""
    with Cluster(zookeeper_server, tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start(1, 2, listeners=LISTENERS)
        cluster.start(3, listeners="INTERNAL://127.0.0.1:0,GRPC://127.0.0.1:0")
        for topic in (TOPIC, REFUSED):
            cluster.admin.create_topic(
                topic,
                assignment={number: [number + 1] for number in range(3)},
                configs={"retention.ms": "-1"},  # some records are from 1970
            )
        yield cluster


def _ports(cluster: Cluster, listener: str) -> dict[int, int]:
    """Return the port of each broker that has the listener."""
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


@pytest.mark.parametrize("listener", _BOTH)
@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_a_produce_answer_names_the_leader_and_its_address(cluster: Cluster, listener: str, version: int) -> None:
    """KIP-951, from version 10 on."""
    batch = bytes(build_rows_batch([Record(value=b"x", timestamp_ms=1)]))
    with KafkaWire(_ports(cluster, listener)[1]) as wire:
        data = TopicProduceData(
            name=REFUSED if version < 13 else "",
            topic_id=_topic_id(wire) if version >= 13 else NIL_UUID,
            partition_data=tuple(PartitionProduceData(index=number, records=batch) for number in range(3)),
        )
        answer = wire.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(data,)), version)
    (topic,) = answer.responses
    partitions = {each.index: each for each in topic.partition_responses}
    assert [partitions[number].error_code for number in range(3)] == [0, 6, 6]
    _check_leaders(cluster, listener, partitions, answer.node_endpoints, is_named=version >= 10)


@pytest.mark.parametrize("listener", _BOTH)
@pytest.mark.parametrize("version", [12, 15, 16, 18])
def test_a_fetch_answer_names_the_leader_and_its_address(cluster: Cluster, listener: str, version: int) -> None:
    """KIP-951, from version 16 on."""
    with KafkaWire(_ports(cluster, listener)[1]) as wire:
        wanted = FetchTopic(
            topic=REFUSED if version < 13 else "",
            topic_id=_topic_id(wire) if version >= 13 else NIL_UUID,
            partitions=tuple(
                FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1000) for number in range(3)
            ),
        )
        answer = wire.call(FetchRequest(max_wait_ms=0, min_bytes=0, topics=(wanted,)), version)
    (topic,) = answer.responses
    partitions = {each.partition_index: each for each in topic.partitions}
    assert [partitions[number].error_code for number in range(3)] == [0, 6, 6]
    _check_leaders(cluster, listener, partitions, answer.node_endpoints, is_named=version >= 16)


def _topic_id(wire: KafkaWire) -> UUID:
    (found,) = wire.call(MetadataRequest(topics=(MetadataRequestTopic(name=REFUSED),)), 12).topics
    topic_id: UUID = found.topic_id
    return topic_id


def _check_leaders(
    cluster: Cluster, listener: str, partitions: dict[int, Any], endpoints: Sequence[Any], *, is_named: bool
) -> None:
    """Partition 0 has no error. Broker 3, which leads partition 2, has no listener EXTERNAL."""
    leaders = [partitions[number].current_leader for number in range(3)]
    assert [each.leader_id for each in leaders] == ([-1, 2, 3] if is_named else [-1, -1, -1])
    assert [each.leader_epoch for each in leaders] == ([-1, 0, 0] if is_named else [-1, -1, -1])
    ports = {number: port for number, port in _ports(cluster, listener).items() if number > 1 and is_named}
    assert {each.node_id: each.port for each in endpoints} == ports
    assert {each.host for each in endpoints} <= {"127.0.0.1"}


def test_a_client_whose_address_leads_to_another_broker_is_named_in_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A forwarded port may do that. Each request is refused with the leader, and costs nothing else."""
    batch = bytes(build_rows_batch([Record(value=b"x", timestamp_ms=1)]))
    data = TopicProduceData(name=REFUSED, partition_data=(PartitionProduceData(index=1, records=batch),))
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(data,))
    with KafkaWire(_ports(cluster, "INTERNAL")[1]) as wire:
        for _ in range(REQUESTS_MAX + 5):
            (topic,) = wire.call(request, 12).responses
            assert [each.error_code for each in topic.partition_responses] == [6]
    (line,) = [each.message for each in caplog.records if "again and again" in each.message]
    assert line.startswith(
        "client 'wire' of 127.0.0.1 asks this broker again and again for partitions of other brokers"
    )
