"""Tests of clients of three real brokers.

Leaders and coordinators are on other brokers, and brokers are lost.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from millrace.clients import Admin, Consumer, Producer, ShareConsumer, TopicPartition
from millrace.errors import GroupIdNotFoundError, InconsistentGroupProtocolError, MillraceError
from millrace.records import scan_headers

from .broker_cluster import Cluster
from .waiting import STALL_S, Stall, eventually
from .zookeeper_server import ZooKeeperServer

QUICK = {"retry.backoff.ms": "20", "socket.connection.setup.timeout.ms": "10000"}


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start brokers 1, 2 and 3, which every test leaves unchanged."""
    with Cluster(zookeeper_server, tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.start(1, 2, 3)
        yield cluster


def fill(cluster: Cluster, topic: str, partitions: int, count: int) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap_servers, **QUICK}) as producer:
        for partition in range(partitions):
            producer.send_table(topic, {"value": [b"%d" % n for n in range(count)]}, partition=partition)


def test_a_client_knows_all_brokers_when_its_bootstrap_broker_is_gone(cluster: Cluster, topic: str) -> None:
    with Admin({"bootstrap.servers": cluster.brokers[1].bootstrap_servers, **QUICK}) as admin:
        assert len(admin.describe_cluster().brokers) == 3
        cluster.stop(1)
        created = admin.create_topic(topic, replication_factor=2)
        assert created is not None
        assert [each.node_id for each in admin.describe_cluster().brokers] == [2, 3]
        cluster.start(1)
        eventually(lambda: len(admin.describe_cluster().brokers) == 3)


def test_a_request_to_a_moved_leader_is_retried_at_the_next_leader(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2], 1: [2, 3], 2: [3, 1]})
    fill(cluster, topic, 3, 50)
    wanted = {TopicPartition(topic, n): "latest" for n in range(3)}
    with Admin({"bootstrap.servers": cluster.bootstrap_servers, **QUICK}) as admin:
        assert [each.offset for each in admin.list_offsets(wanted).values()] == [50, 50, 50]
        cluster.stop(1)  # the client's metadata names this broker as leader of partition 0
        assert [each.offset for each in admin.list_offsets(wanted).values()] == [50, 50, 50]
        cluster.start(1)
        eventually(lambda: set(cluster.isr(topic)) == {1, 2})
        cluster.admin.elect_leaders()
        eventually(lambda: cluster.leader(topic) == 1)
        # Broker 1 leads it again, and this client still has broker 2 as the leader.
        located = admin.locate_range(topic, 0, 0)
        assert (located.log_start_offset, located.high_watermark) == (0, 50)
        read = b"".join(admin.read_range(topic, 0, 0, 50))
        assert sum(header.last_offset_delta + 1 for _, header in scan_headers(read)) == 50
        assert admin.delete_records({TopicPartition(topic, 0): 20}) == {TopicPartition(topic, 0): 20}


def test_a_group_continues_when_its_coordinator_is_gone(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [2, 3]})
    fill(cluster, topic, 1, 20)
    group = f"group-{topic}"
    partition = TopicPartition(topic, 0)
    options = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    with Consumer({**options, **QUICK, "enable.auto.commit": "false"}) as consumer:
        consumer.assign([partition])
        consumer.commit({partition: 7})
        coordinator = int(cluster.admin.describe_group(group).coordinator.rpartition("(")[2].rstrip(")"))
        cluster.stop(coordinator)
        assert consumer.committed([partition])[partition].offset == 7
        consumer.commit({partition: 9})
        with Admin({"bootstrap.servers": cluster.bootstrap_servers, **QUICK}) as admin:
            assert admin.list_group_offsets(group)[partition].offset == 9
        cluster.start(coordinator)
        eventually(lambda: len(cluster.admin.describe_cluster().brokers) == 3)


def test_metadata_of_an_older_leader_epoch_is_not_believed(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2]})
    with Admin({"bootstrap.servers": cluster.bootstrap_servers, **QUICK}) as admin:
        before = admin.describe_topic(topic)
        cluster.admin.alter_partition_reassignments({TopicPartition(topic, 0): [2, 1]})
        eventually(lambda: not cluster.admin.list_partition_reassignments())
        eventually(lambda: admin.describe_topic(topic).partitions[0].leader_epoch > before.partitions[0].leader_epoch)
        assert admin._metadata._as_last_heard(before).partitions == admin.describe_topic(topic).partitions


@pytest.mark.spark
def test_spark_reads_each_partition_from_its_leader(cluster: Cluster, topic: str, spark: object) -> None:
    cluster.admin.create_topic(topic, partitions=6, replication_factor=2)
    fill(cluster, topic, 6, 100)

    def count() -> int:
        reader = spark.read.format("millrace").option("kafka.bootstrap.servers", cluster.bootstrap_servers)  # type: ignore[attr-defined]
        return int(reader.option("subscribe", topic).load().count())

    assert count() == 600
    cluster.stop(3)
    try:
        assert count() == 600
    finally:
        cluster.start(3)


def test_a_coordinator_needs_as_many_brokers_as_its_topic_is_to_have_replicas(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Cluster(zookeeper_server, tmp_path_factory.mktemp("two")) as two:
        two.start(1, 2)
        with (
            Admin({"bootstrap.servers": two.bootstrap_servers, "default.api.timeout.ms": "500", **QUICK}) as admin,
            pytest.raises(MillraceError, match="replication factor 3: expected between 1 and 2"),
        ):
            admin.describe_group("g")
        two.start(3)
        with Admin({"bootstrap.servers": two.bootstrap_servers, **QUICK}) as admin:
            assert admin.list_group_offsets("g") == {}


def test_a_topic_is_found_at_once_at_brokers_that_have_not_heard_of_it_yet(cluster: Cluster, topic: str) -> None:
    with (
        Admin(cluster.brokers[1].bootstrap_servers) as one,
        Admin(cluster.brokers[2].bootstrap_servers) as two,
        Admin(cluster.brokers[3].bootstrap_servers) as three,
    ):
        for number in range(20):
            name = f"{topic}-{number}"
            one.create_topic(name, partitions=2, replication_factor=3, configs={"retention.ms": "5"})
            assert all(each.leader in (1, 2, 3) for each in two.describe_topic(name).partitions)
            assert three.describe_configs(name)["retention.ms"].value == "5"
            three.alter_configs(name, {"retention.ms": "6"})
            two.delete_topic(name)


def test_a_new_leader_answers_the_ends_of_a_topic_before_its_metadata_arrives(cluster: Cluster, topic: str) -> None:
    # The broker learns that it leads before it learns the topic's name and options. Here it never learns these.
    cluster.admin.create_topic(topic, assignment={0: [2]})
    eventually(lambda: cluster.end_offset(topic) == 0)
    catalog = cluster.brokers[2].server.broker.catalog
    catalog._swap({name: each for name, each in catalog.topics.items() if name != topic})
    assert cluster.end_offset(topic) == 0


def test_all_brokers_are_restarted_in_turn_and_nothing_is_lost_doubled_or_out_of_order(
    cluster: Cluster, topic: str
) -> None:
    partitions = 3
    cluster.admin.create_topic(topic, partitions=partitions, replication_factor=3, configs={"min.insync.replicas": "2"})
    ending = threading.Event()
    sent: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    futures = []

    def write() -> None:
        with Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", **QUICK}) as producer:
            number = 0
            while not ending.is_set():
                value = b"%d" % number
                futures.append(producer.send(topic, value, partition=number % partitions))
                sent[number % partitions].append(value)
                number += 1
                if number % 20 == 0:
                    producer.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for broker_id in (1, 2, 3):
            cluster.stop(broker_id)
            cluster.start(broker_id)
            eventually(lambda: all(len(cluster.isr(topic, number)) == 3 for number in range(partitions)))
    finally:
        ending.set()
        writer.join()
    for future in futures:
        future.result(STALL_S)
    with Consumer({"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
        found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
        while sum(map(len, found.values())) < len(futures):
            for record in consumer.poll(5_000):
                found[record.partition].append(record.value)
    assert found == sent


def test_a_share_group_gets_records_of_all_brokers_and_survives_its_coordinator(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2], 1: [2, 3], 2: [3, 1]})
    group = f"shared-{topic}"
    cluster.admin.alter_configs(group, {"share.auto.offset.reset": "earliest"}, resource="group")
    options = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, **QUICK}
    found: Counter[bytes] = Counter()

    def take(count: int) -> None:
        stall = Stall("records")
        while sum(found.values()) < count:
            stall.check(dict(found))
            found.update(record.value or b"" for record in consumer.poll(1_000))
            consumer.commit()

    with ShareConsumer(options) as consumer:
        consumer.subscribe(topic)
        fill(cluster, topic, 3, 40)
        take(120)
        coordinator = int(cluster.admin.describe_group(group).coordinator.rpartition("(")[2].rstrip(")"))
        cluster.stop(coordinator)
        fill(cluster, topic, 3, 10)  # while it waits for records of brokers that are not its coordinator
        take(150)
        cluster.start(coordinator)
        eventually(lambda: len(cluster.admin.describe_cluster().brokers) == 3)
    assert found == Counter({b"%d" % n: 6 if n < 10 else 3 for n in range(40)})


def test_an_id_is_that_of_one_kind_of_group_also_on_two_coordinators(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, replication_factor=3)
    options = {"bootstrap.servers": cluster.bootstrap_servers, **QUICK}
    for name in ("__consumer_offsets", "__share_group_state"):  # created by the first such group
        kind = Consumer if name == "__consumer_offsets" else ShareConsumer
        with kind({**options, "group.id": f"first-{name}-{topic}"}) as first:
            first.subscribe([topic])
            first.poll(100)
    # No partition of one topic may have the leader of the other topic's partition of the same number.
    leaders = {each.partition: each.leader for each in cluster.admin.describe_topic("__consumer_offsets").partitions}
    others = {number: [each for each in (1, 2, 3) if each != leader] for number, leader in leaders.items()}
    moves = {TopicPartition("__share_group_state", n): [*ids, leaders[n]] for n, ids in others.items()}
    cluster.admin.alter_partition_reassignments(moves)
    cluster.admin.elect_leaders(list(moves))
    for number, leader in leaders.items():
        eventually(lambda n=number, leader=leader: cluster.leader("__share_group_state", n) not in (-1, leader))

    def refuses(kind: type[Consumer | ShareConsumer], group: str, error: type[MillraceError]) -> None:
        with kind({**options, "group.id": f"{group}-{topic}"}) as refused:
            refused.subscribe([topic])
            with pytest.raises(error, match="choose another id"):
                refused.poll(20_000)

    with Consumer({**options, "group.id": f"classic-{topic}"}) as consumer:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(100)
        refuses(ShareConsumer, "classic", GroupIdNotFoundError)
    refuses(ShareConsumer, "classic", GroupIdNotFoundError)
    with ShareConsumer({**options, "group.id": f"shared-{topic}"}) as sharer:
        sharer.subscribe([topic])
        eventually(lambda: sharer.poll(50) is not None and cluster.admin.describe_group(f"shared-{topic}").members)
        refuses(Consumer, "shared", InconsistentGroupProtocolError)
    refuses(Consumer, "shared", InconsistentGroupProtocolError)
