"""Tests of the controller on three real brokers and a real ZooKeeper."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace import errors
from millrace.clients import Admin, Producer, TopicPartition
from millrace.coordination import paths
from millrace.coordination.nodes import PartitionStateNode
from millrace.kafka_protocol.calls.delete_topics import DeleteTopicsRequest
from millrace.protocol import millrace_pb2 as pb
from millrace.quotas import QuotaEntity
from millrace_broker.testing import EmbeddedBroker

from .broker_cluster import Cluster
from .kafka_wire import KafkaWire
from .test_broker_directories import BreakingFiles
from .test_broker_metrics import samples
from .waiting import AN_HOUR_MS, STALL_S, eventually
from .zookeeper_server import ZooKeeperServer


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start brokers 1, 2 and 3, which every test leaves unchanged."""
    with Cluster(zookeeper_server, tmp_path_factory.mktemp("cluster"), metrics_port="0") as cluster:
        cluster.start(1, 2, 3)
        yield cluster


def produce(cluster: Cluster, topic: str, count: int) -> None:
    with Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}) as producer:
        for number in range(count):
            producer.send(topic, f"record {number}".encode(), partition=0)
        producer.flush()


def test_a_quota_that_one_broker_stores_holds_at_all_of_them(cluster: Cluster, topic: str) -> None:
    entity = QuotaEntity.of([("user", "alice"), ("client-id", topic)])

    def usages() -> list[bool]:
        quotas = [each.server.broker.client_quotas for each in cluster.brokers.values()]
        return [each.usage("alice", topic, 0) is not None for each in quotas]

    assert usages() == [False] * 3
    cluster.admin.alter_client_quotas(entity, {"producer_byte_rate": 1000})
    eventually(lambda: usages() == [True] * 3)
    cluster.admin.alter_client_quotas(entity, {}, remove=["producer_byte_rate"])
    eventually(lambda: usages() == [False] * 3)


def test_a_topic_has_leaders_on_all_brokers_when_its_creation_is_answered(cluster: Cluster, topic: str) -> None:
    created = cluster.admin.create_topic(topic, partitions=6, replication_factor=3)
    assert created is not None
    assert sorted(each.leader for each in created.partitions) == [1, 1, 2, 2, 3, 3]
    assert all(sorted(each.replicas) == [1, 2, 3] and set(each.isr) == {1, 2, 3} for each in created.partitions)
    for broker in cluster.brokers.values():
        with Admin(broker.bootstrap_servers) as admin:
            eventually(lambda admin=admin: topic in {each.name for each in admin.list_topics()})
            assert admin.describe_topic(topic) == created
            assert [each.node_id for each in admin.describe_cluster().brokers] == [1, 2, 3]
    produce(cluster, topic, 10)
    assert cluster.end_offset(topic) == 10


def test_a_topic_with_a_chosen_assignment_is_created_enlarged_and_deleted(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [3, 1], 1: [2, 3]})
    cluster.admin.create_partitions(topic, 3, assignment={2: [1, 2]})
    described = cluster.admin.describe_topic(topic)
    assert [(each.leader, each.replicas) for each in described.partitions] == [(3, (3, 1)), (2, (2, 3)), (1, (1, 2))]
    cluster.admin.create_partitions(topic, 5)
    assert len(cluster.admin.describe_topic(topic).partitions) == 5
    cluster.admin.delete_topic(topic)
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        cluster.admin.describe_topic(topic)
    for broker_id in (1, 2, 3):
        directory = cluster.directory / f"broker-{broker_id}"
        eventually(lambda directory=directory: not list(directory.glob(f"{topic}-?")))
    assert cluster.admin.create_topic(topic, replication_factor=2) is not None


def test_all_brokers_take_over_a_changed_configuration(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, replication_factor=3)
    cluster.admin.alter_configs(topic, {"retention.ms": "12345"})
    for broker in cluster.brokers.values():
        inner = broker.server.broker
        eventually(lambda inner=inner: inner.catalog.topic(topic).config.retention_ms == 12345)
        eventually(lambda inner=inner: (log := inner.logs.get(topic, 0)) and log.config.retention_ms == 12345)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"replication_factor": 4}, errors.InvalidReplicationFactorError, "between 1 and 3"),
        ({"assignment": {0: [1, 9]}}, errors.InvalidReplicaAssignmentError, "unknown or not alive"),
        ({"assignment": {0: [1, 1]}}, errors.InvalidReplicaAssignmentError, "each broker once"),
        ({"assignment": {0: [1], 1: [1, 2]}}, errors.InvalidReplicaAssignmentError, "the same number"),
        ({"assignment": {1: [1]}}, errors.InvalidReplicaAssignmentError, "expected"),
        ({"configs": {"min.insync.replicas": "none"}}, errors.InvalidConfigError, r"min\.insync"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_and_leaves_nothing(
    cluster: Cluster, topic: str, fields: dict[str, Any], error: type[errors.MillraceError], message: str
) -> None:
    with pytest.raises(error, match=message):
        cluster.admin.create_topic(topic, **fields)
    coordination = cluster.member(1)._coordination
    assert coordination.exists(paths.topic_path(topic)) is None
    assert coordination.exists(paths.topic_config_path(topic)) is None


def test_impossible_reassignments_and_elections_are_refused(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2]})
    one, none = TopicPartition(topic, 0), TopicPartition(topic, 7)
    answers = cluster.admin.alter_partition_reassignments({one: [1, 9], none: [1]})
    assert isinstance(answers[one], errors.InvalidReplicaAssignmentError)
    assert isinstance(answers[none], errors.UnknownTopicOrPartitionError)
    assert isinstance(
        cluster.admin.alter_partition_reassignments({one: None})[one], errors.NoReassignmentInProgressError
    )
    elected = cluster.admin.elect_leaders([one, none])
    assert isinstance(elected[one], errors.ElectionNotNeededError)
    assert isinstance(elected[none], errors.UnknownTopicOrPartitionError)
    assert cluster.replicas(topic) == (1, 2)


def test_a_broker_id_that_is_taken_and_data_of_another_cluster_are_refused(
    cluster: Cluster, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    with pytest.raises(errors.EnvironmentProblemError, match=r"broker id 2 is taken.*broker\.id"):
        EmbeddedBroker(tmp_path / "other", options=cluster.options(2)).start()
    with Cluster(zookeeper_server, tmp_path) as other:
        other.start(1)
        data = tmp_path / "broker-1"
        other.stop(1)
        with pytest.raises(errors.EnvironmentProblemError, match="belongs to cluster"):
            EmbeddedBroker(data, options=cluster.options(1)).start()
    elsewhere = cluster.options(1) | {"zookeeper.connect": f"{zookeeper_server.address}/nothing-here"}
    with pytest.raises(errors.EnvironmentProblemError, match=r"has no cluster.*zookeeper\.connect"):
        EmbeddedBroker(data, options=elsewhere).start()
    assert [each.node_id for each in cluster.admin.describe_cluster().brokers] == [1, 2, 3]


def test_partitions_move_to_other_brokers_and_their_preferred_leaders_lead_them(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2]})
    produce(cluster, topic, 100)
    partition = TopicPartition(topic, 0)
    assert cluster.admin.alter_partition_reassignments({partition: [3, 2]}) == {partition: None}
    eventually(lambda: not cluster.admin.list_partition_reassignments())
    eventually(lambda: cluster.replicas(topic) == (3, 2) and set(cluster.isr(topic)) == {2, 3})
    cluster.admin.elect_leaders([partition])
    eventually(lambda: cluster.leader(topic) == 3)
    assert cluster.end_offset(topic) == 100
    eventually(lambda: not list((cluster.directory / "broker-1").glob(f"{topic}-0")))


def test_a_broker_that_stops_has_others_lead_first_and_comes_back(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [2, 3], 1: [3, 2], 2: [2, 1]})
    produce(cluster, topic, 10)
    epochs = {each.partition: each.leader_epoch for each in cluster.admin.describe_topic(topic).partitions}
    cluster.stop(2)
    coordination = cluster.member(1)._coordination
    nodes = [PartitionStateNode.decode(coordination.get(paths.partition_state_path(topic, each))[0]) for each in epochs]
    assert [each.leader for each in nodes] == [3, 3, 1]
    assert all(2 not in each.isr for each in nodes)
    assert nodes[0].leader_epoch > epochs[0]
    eventually(lambda: [each.leader for each in cluster.admin.describe_topic(topic).partitions] == [3, 3, 1])
    produce(cluster, topic, 10)
    cluster.start(2)
    eventually(lambda: set(cluster.isr(topic)) == {2, 3})
    cluster.admin.elect_leaders()
    eventually(lambda: cluster.leader(topic) == 2)
    assert cluster.end_offset(topic) == 20


def test_metrics_say_where_the_controller_is_and_what_it_knows(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment={0: [1, 2]})
    found = {broker_id: samples(broker) for broker_id, broker in cluster.brokers.items()}
    active = [each for each, numbers in found.items() if numbers[("millrace_active_controllers",)]]
    assert active == [cluster.controller]
    assert [each for each, numbers in found.items() if ("millrace_offline_partitions",) in numbers] == active
    numbers = found[active[0]]
    assert numbers[("millrace_offline_partitions",)] == 0
    assert numbers[("millrace_cluster_brokers",)] == 3
    assert numbers[("millrace_controller_events_total", "topics")] > 0
    assert numbers[("millrace_controller_event_seconds_total", "topics")] > 0


@pytest.mark.parametrize("how", ["by request", "as configured"])
def test_a_replica_out_of_sync_leads_only_after_an_unclean_election(cluster: Cluster, topic: str, how: str) -> None:
    one, two = (each for each in (1, 2, 3) if each != cluster.controller)
    cluster.admin.create_topic(topic, assignment={0: [one, two]})
    produce(cluster, topic, 5)
    partition = TopicPartition(topic, 0)
    cluster.stop(two)
    produce(cluster, topic, 5)
    cluster.stop(one)
    cluster.start(two)
    eventually(lambda: (cluster.leader(topic), cluster.isr(topic)) == (-1, (one,)))
    assert isinstance(cluster.admin.elect_leaders([partition])[partition], errors.PreferredLeaderNotAvailableError)
    if how == "by request":
        assert cluster.admin.elect_leaders([partition], election="unclean") == {partition: None}
    else:
        cluster.admin.alter_configs(topic, {"unclean.leader.election.enable": "true"})
    eventually(lambda: (cluster.leader(topic), cluster.isr(topic)) == (two, (two,)))
    assert cluster.end_offset(topic) == 5
    cluster.start(one)
    eventually(lambda: set(cluster.isr(topic)) == {one, two})
    assert cluster.end_offset(topic) == 5


def test_others_lead_what_was_on_a_disk_that_failed(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = BreakingFiles()
    monkeypatch.setattr("millrace_broker.opening.OsFiles", lambda: files)
    with Cluster(zookeeper_server, tmp_path) as cluster:
        directories = [tmp_path / "one", tmp_path / "two"]
        cluster.start(1, log_dirs=",".join(map(str, directories)))
        cluster.start(2)
        cluster.admin.create_topic(topic, assignment={0: [1, 2], 1: [1, 2]})
        files.broken.append(next(each for each in directories if (each / f"{topic}-0").exists()))
        produce(cluster, topic, 10)  # retried until the other broker leads
        eventually(lambda: (cluster.leader(topic, 0), cluster.isr(topic, 0)) == (2, (2,)))
        assert cluster.end_offset(topic) == 10
        assert cluster.leader(topic, 1) == 1


def test_another_broker_becomes_controller_after_the_end_of_the_controllers_session(
    cluster: Cluster, topic: str
) -> None:
    before = cluster.controller
    epoch = cluster.member(before).controlling.epoch
    broker_epoch = cluster.member(before).broker_epoch
    cluster.expire(before)
    eventually(lambda: cluster.member(cluster.controller).controlling.epoch > epoch)
    created = cluster.admin.create_topic(topic, partitions=3, replication_factor=2)
    assert created is not None
    eventually(lambda: cluster.member(before).broker_epoch > broker_epoch)
    eventually(lambda: len(cluster.admin.describe_cluster().brokers) == 3)
    eventually(lambda: all(len(each.isr) == 2 for each in cluster.admin.describe_topic(topic).partitions))


def test_every_broker_survives_the_end_of_its_session(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, partitions=3, replication_factor=3)
    for broker_id in (1, 2, 3):
        epoch = cluster.member(broker_id).broker_epoch
        cluster.expire(broker_id)
        eventually(lambda each=broker_id, epoch=epoch: cluster.member(each).broker_epoch > epoch)
    eventually(lambda: all(len(each.isr) == 3 for each in cluster.admin.describe_topic(topic).partitions))
    produce(cluster, topic, 10)


def test_a_deletion_is_finished_by_the_next_controller_once_all_brokers_are_there(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, partitions=3, replication_factor=3)
    other = next(each for each in (1, 2, 3) if each != cluster.controller)
    cluster.stop(other)
    with (
        Admin({"bootstrap.servers": cluster.bootstrap_servers, "request.timeout.ms": "1000"}) as admin,
        pytest.raises(errors.MillraceError),
    ):
        admin.delete_topic(topic)
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        cluster.admin.describe_topic(topic)
    with pytest.raises(errors.TopicExistsError, match="being deleted"):
        cluster.admin.create_topic(topic)
    epoch = cluster.member(cluster.controller).controlling.epoch
    cluster.expire(cluster.controller)
    eventually(lambda: cluster.member(cluster.controller).controlling.epoch > epoch)
    cluster.start(other)
    coordination = cluster.member(other)._coordination
    eventually(lambda: coordination.exists(paths.topic_path(topic)) is None)
    eventually(lambda: coordination.exists(paths.delete_topic_path(topic)) is None)
    assert not list((cluster.directory / f"broker-{other}").glob(f"{topic}-?"))
    assert cluster.admin.create_topic(topic) is not None


def test_all_topics_of_a_request_are_marked_for_deletion_before_it_waits_for_one(cluster: Cluster, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for name in topics:
        cluster.admin.create_topic(name, replication_factor=3)
    controller = cluster.controller
    coordination = cluster.member(controller)._coordination
    other = next(each for each in (1, 2, 3) if each != controller)
    cluster.stop(other)
    with KafkaWire(cluster.brokers[controller], STALL_S) as wire:
        wire.send(DeleteTopicsRequest(topic_names=tuple(topics), timeout_ms=AN_HOUR_MS), 5)
        eventually(lambda: all(coordination.exists(paths.delete_topic_path(name)) for name in topics))
        cluster.start(other)
        _, answer = wire.receive(DeleteTopicsRequest.API_KEY, 5)
    assert [(each.name, each.error_code) for each in answer.responses] == [(name, 0) for name in topics]


def test_a_creation_while_there_is_no_controller_is_answered_in_time_and_done_by_the_next(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, topic: str
) -> None:
    # Long enough for the creation, and short enough for the wait, if broker 2 has no connection to broker 1 yet.
    session_ms = str(int(STALL_S / 2 * 1000))
    with Cluster(zookeeper_server, tmp_path, zookeeper_session_timeout_ms=session_ms) as cluster:
        first = cluster.start_process(1)
        cluster.start(2)
        eventually(lambda: cluster.admin.describe_cluster().controller_id == 1)
        assignment = [pb.PartitionReplicas(partition=0, replicas=[2])]
        wanted = pb.NewTopic(name=topic, num_partitions=-1, replication_factor=-1, assignment=assignment)
        request = pb.CreateTopicsRequest(topics=[wanted], timeout_ms=500)
        with Admin(cluster.brokers[2].bootstrap_servers) as admin:
            first.pause()  # a killed broker is replaced at once
            answer = admin._connections.call(lambda stub: stub.CreateTopics, request, changes="create a topic")
            assert answer.results[0].error.code == errors.RequestTimedOutError.code
            assert "is created, but not all of its partitions have leaders yet" in answer.results[0].error.message
            with pytest.raises(errors.TopicExistsError):
                admin.create_topic(topic)
            first.end(signal.SIGKILL)
            eventually(lambda: [each.leader for each in admin.describe_topic(topic).partitions] == [2])


def test_a_controller_and_leaders_that_are_killed_are_replaced_and_return(
    zookeeper_server: ZooKeeperServer, tmp_path: Path, topic: str
) -> None:
    with Cluster(zookeeper_server, tmp_path) as cluster:
        first = cluster.start_process(1)
        cluster.start(2, 3)
        eventually(lambda: cluster.admin.describe_cluster().controller_id == 1)
        cluster.admin.create_topic(topic, assignment={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
        produce(cluster, topic, 100)
        first.end(signal.SIGKILL)
        eventually(lambda: cluster.leader(topic) == 2)
        eventually(lambda: cluster.admin.describe_cluster().controller_id in (2, 3))
        produce(cluster, topic, 100)
        eventually(lambda: set(cluster.isr(topic)) == {2, 3})
        cluster.start_process(1)
        eventually(lambda: set(cluster.isr(topic)) == {1, 2, 3})
        assert cluster.end_offset(topic) == 200
