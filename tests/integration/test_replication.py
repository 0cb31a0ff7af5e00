"""Tests of replication on real brokers (docs/design/0031).

Acknowledged records survive, and logs stay equal, whichever broker leads.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.errors import (
    MillraceError,
    NotCoordinatorError,
    NotLeaderError,
    OffsetNotAvailableError,
    StaleControllerEpochError,
    StorageError,
    TransactionalIdNotFoundError,
)
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.protocol import millrace_pb2 as pb
from millrace.records import scan_headers
from millrace_broker.decisions import LeaderAndIsrState, ReplicaAssignment
from millrace_broker.decisions import TopicPartition as Key
from millrace_broker.replication.core import Follower, ReplicationSettings
from millrace_broker.replication.runtime import manager, wire

from .kafka_wire import KafkaWire
from .replica_cluster import LAG_MS, LONG_LAG, ReplicaCluster, append, values_of
from .waiting import STALL_S, Stall, eventually

_NOT_LEADER = 6
"""Kafka's error code ``NOT_LEADER_OR_FOLLOWER``."""


def test_followers_have_the_leaders_bytes(cluster: ReplicaCluster) -> None:
    cluster.create("t", (1, 2, 3), segment_bytes="1000", index_interval_bytes="200")
    for number in range(60):
        result = append(cluster, 1, "t", *[b"%d-%d" % (number, each) for each in range(1 + number % 7)])
        assert not result.HasField("error")
    append(cluster, 1, "t", b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    cluster.settle("t")
    cluster.assert_identical("t")
    assert len(cluster.log(2, "t").segments) > 2
    assert [entry.last_sequence for entry in cluster.log(3, "t").producers] == [0]
    assert append(cluster, 2, "t", b"x").error.code == NotLeaderError.code


def test_a_restarted_follower_keeps_what_was_acknowledged(pair: ReplicaCluster) -> None:
    # KIP-101, first scenario: the follower must not truncate to its old high watermark, because it may be elected.
    pair.create("t", (1, 2))
    append(pair, 1, "t", b"m0", b"m1")
    held = pair.log(2, "t")
    assert held.log_end_offset == 2
    pair.kill(2)
    checkpoint = pair._directory / "2" / "replication-offset-checkpoint"
    for path in (checkpoint, checkpoint.with_name(checkpoint.name + ".crc32c")):
        path.unlink(missing_ok=True)  # its high watermark is older than the acknowledgement
    pair.kill(1)
    pair.start(2)
    pair.tell("t", 2)  # a follower of a dead leader
    assert pair.log(2, "t").log_end_offset == 2
    pair.elect("t", 2, isr=[2])
    assert values_of(pair, "t") == [b"m0", b"m1"]
    pair.start(1)
    pair.tell("t", 1)
    append(pair, 2, "t", b"m2")
    pair.settle("t")
    pair.assert_identical("t")


@pytest.mark.parametrize("does_truncate_on_fetch", [True, False])
def test_diverged_logs_become_equal(
    pair: ReplicaCluster, does_truncate_on_fetch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # KIP-101, second scenario: records at the same offset in another epoch are truncated. Leaders name that offset in
    # the answer to a fetch. Followers of leaders that do not name it ask for it.
    settings = partial(ReplicationSettings, does_truncate_on_fetch=does_truncate_on_fetch)
    monkeypatch.setattr(manager, "ReplicationSettings", settings)
    asked: list[int] = []
    monkeypatch.setattr(wire, "epochs_request", noted(wire.epochs_request, asked, 1))
    pair.create("t", (1, 2), segment_bytes="200")
    append(pair, 1, "t", b"m0")
    pair.settle("t")
    pair.kill(2)
    for number in range(10):
        append(pair, 1, "t", b"only here %d" % number, acks=1)
    pair.kill(1)
    pair.start(2)
    pair.elect("t", 2, isr=[2])
    append(pair, 2, "t", b"m1", b"m1 too")
    pair.start(1)
    assert pair.log(1, "t").log_end_offset == 11
    pair.tell("t", 1)
    pair.wait_for_isr("t", 1, 2)
    pair.settle("t")
    pair.assert_identical("t")
    assert values_of(pair, "t") == [b"m0", b"m1", b"m1 too"]
    assert bool(asked) is not does_truncate_on_fetch
    pair.elect("t", 1)
    append(pair, 1, "t", b"m2")
    pair.settle("t")
    pair.assert_identical("t")
    assert values_of(pair, "t") == [b"m0", b"m1", b"m1 too", b"m2"]


def test_an_idempotent_producer_loses_and_doubles_no_record_while_leaders_change(cluster: ReplicaCluster) -> None:
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    count, leaders = 600, {100: 2, 200: 3, 300: 1, 400: 2, 500: 1}
    options = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "enable.idempotence": True,
        "linger.ms": 1,
        "retry.backoff.ms": 10,
    }
    with Producer(options) as producer:
        futures = []
        for number in range(count):
            futures.append(producer.send("t", b"%d" % number, partition=number % 2))
            if (leader := leaders.get(number)) is not None:  # while records are in flight
                cluster.elect("t", leader, partition=0)
                cluster.elect("t", 1 + leader % 3, partition=1)
        for future in futures:
            future.result(STALL_S)
    for partition in (0, 1):
        cluster.settle("t", partition)
        cluster.assert_identical("t", partition)
        assert values_of(cluster, "t", partition) == [b"%d" % each for each in range(partition, count, 2)]
    assert cluster.log(1, "t").epochs.entries[-1][0] > 0


def test_a_killed_leader_comes_back_with_its_log(cluster: ReplicaCluster) -> None:
    cluster.create("t", (1, 2, 3), segment_bytes="1000")
    for number in range(50):
        append(cluster, 1, "t", b"%d" % number)
    cluster.kill(1)
    cluster.elect("t", 2, isr=[2, 3])
    for number in range(50, 60):
        append(cluster, 2, "t", b"%d" % number)
    cluster.start(1)
    cluster.tell("t", 1)
    cluster.wait_for_isr("t", 1, 2, 3)
    cluster.elect("t", 1)
    cluster.settle("t")
    cluster.assert_identical("t")
    assert values_of(cluster, "t") == [b"%d" % each for each in range(60)]


def test_a_follower_begins_where_the_leaders_log_does(pair: ReplicaCluster) -> None:
    pair.create("t", (1, 2))
    append(pair, 1, "t", b"a")
    pair.settle("t")
    pair.stop(2)
    append(pair, 1, "t", *[b"%d" % each for each in range(5)])
    pair.wait_for_isr("t", 1)
    append(pair, 1, "t", *[b"%d" % each for each in range(5, 10)])
    pair.log(1, "t").roll()
    assert pair.broker(1).logs.delete_records("t", 0, 8) == 8  # in the middle of a batch
    pair.start(2)
    pair.tell("t", 2)
    pair.wait_for_isr("t", 1, 2)
    append(pair, 1, "t", b"last")
    pair.settle("t")
    eventually(lambda: pair.log(2, "t").log_start_offset == 8)
    assert values_of(pair, "t")[-1] == b"last"
    pair.elect("t", 2)
    pair.settle("t")
    assert values_of(pair, "t") == [b"7", b"8", b"9", b"last"]


def test_with_flush_before_ack_only_synced_records_are_acknowledged(pair: ReplicaCluster) -> None:
    pair.create("t", (1, 2), flush_before_ack="true")
    for number in range(5):
        append(pair, 1, "t", b"%d" % number, b"more")
        for each in (1, 2):
            assert pair.log(each, "t").recovery_point == 2 * number + 2
    pair.settle("t")
    pair.assert_identical("t")
    pair.elect("t", 2)
    append(pair, 2, "t", b"last")
    pair.settle("t")
    assert pair.log(1, "t").recovery_point == 11


def test_a_follower_whose_disk_refuses_does_not_keep_others_waiting(tmp_path: Path) -> None:
    with ReplicaCluster(tmp_path, brokers=2, options=LONG_LAG) as pair:
        pair.create("t", (1, 2), (1, 2))
        append(pair, 1, "t", b"a")
        pair.settle("t")
        broken = pair.log(2, "t")
        broken._local.failure = StorageError("input/output error")
        pair.set_lag(LAG_MS, "t")
        assert append(pair, 1, "t", b"b").base_offset == 1  # once the follower has left the ISR
        assert pair.isr("t") == {1}
        assert append(pair, 1, "t", b"c", partition=1).base_offset == 0
        pair.settle("t", 1)
        assert pair.isr("t", 1) == {1, 2}
        assert broken.log_end_offset == 1


def test_deleted_records_continue_all_replicas(pair: ReplicaCluster) -> None:
    pair.create("t", (1, 2))
    for number in range(10):
        append(pair, 1, "t", b"%d" % number)
    pair.settle("t")

    def delete(offset: int, timeout_ms: int) -> pb.DeleteRecordsResponse.PartitionResult:
        wanted = pb.DeleteRecordsRequest.PartitionOffset(partition=0, offset=offset)
        topic = pb.DeleteRecordsRequest.TopicOffsets(name="t", partitions=[wanted])
        request = pb.DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)
        response: pb.DeleteRecordsResponse = pair.run(
            pair.broker(1).peers.call(1, "DeleteRecords", request, timeout_s=STALL_S)
        )
        return response.topics[0].partitions[0]

    assert delete(4, 10_000).low_watermark == 4
    assert [pair.log(each, "t").log_start_offset for each in (1, 2)] == [4, 4]
    pair.kill(2)
    pair.broker(1).replicas.brokers_alive(frozenset({1, 2}))  # no broker has noticed yet
    assert delete(6, 100).error.code == 7
    assert pair.log(1, "t").log_start_offset == 6


def test_a_new_leader_does_not_say_less_than_the_one_before(cluster: ReplicaCluster) -> None:
    cluster.create("t", (1, 2, 3))
    append(cluster, 1, "t", b"a")
    cluster.settle("t")
    cluster.log(2, "t").hold_watermark(0)  # its state is older than the leader's answer
    follower = cluster.broker(2).replicas.find("t", 0)
    assert follower is not None
    cluster.kill(1)
    cluster.kill(3)
    assert isinstance(follower.machine.role, Follower)
    follower.machine.role._high_watermark = 0
    cluster.elect("t", 2)  # the only live replica of an ISR of three

    def answer() -> pb.ListOffsetsResponse.PartitionOffset:
        latest = pb.ListOffsetsRequest.PartitionTime(partition=0, timestamp=-1)
        request = pb.ListOffsetsRequest(topics=[pb.ListOffsetsRequest.TopicTimes(name="t", partitions=[latest])])
        response: pb.ListOffsetsResponse = cluster.run(
            cluster.broker(2).peers.call(2, "ListOffsets", request, timeout_s=STALL_S)
        )
        return response.topics[0].partitions[0]

    assert answer().error.code == OffsetNotAvailableError.code
    cluster.elect("t", 2, isr=[2])
    assert answer().offset == 1


def noted(function: Any, noted_in: list[int], broker_id: int) -> Any:
    """Record each call of a function, with its owner."""

    def calling(*args: Any, **named: Any) -> Any:
        noted_in.append(broker_id)
        return function(*args, **named)

    return calling


def test_consumers_read_from_the_closest_replica(tmp_path: Path) -> None:
    options = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with ReplicaCluster(tmp_path, brokers=0, options=options) as pair:
        pair.start(1, broker_rack="a")
        pair.start(2, broker_rack="b")
        pair.create("t", (1, 2))
        append(pair, 1, "t", b"a", b"b")
        pair.settle("t")
        fetched: list[int] = []
        for each in (1, 2):
            read = pair.log(each, "t").read
            log: Any = pair.log(each, "t")
            log.read = noted(read, fetched, each)
        assert values_of(pair, "t", options={"client.rack": "b"}) == [b"a", b"b"]
        assert set(fetched) == {2}
        append(pair, 1, "t", b"c")
        pair.settle("t")
        fetched.clear()
        assert values_of(pair, "t") == [b"a", b"b", b"c"]
        assert set(fetched) == {1}


def test_followers_answer_kafkas_consumers_from_version_11_on_also_without_a_rack(pair: ReplicaCluster) -> None:
    pair.create("t", (1, 2))
    append(pair, 1, "t", b"a", b"b")
    pair.settle("t")
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=(FetchTopic(topic="t", partitions=(partition,)),), rack_id=""
    )
    with KafkaWire(pair.servers[2].ports["PLAINTEXT"]) as wire:
        codes = [wire.call(request, version).responses[0].partitions[0].error_code for version in (10, 11, 12)]
        records = wire.call(request, 12).responses[0].partitions[0].records
    assert codes == [_NOT_LEADER, 0, 0]
    assert [header.count for _, header in scan_headers(records)] == [2]


def test_invalid_requests_of_controllers_are_refused(cluster: ReplicaCluster) -> None:
    cluster.create("t", (1, 2))
    key = Key("t", 0)

    def become(broker_id: int, epoch: int, **changes: Any) -> MillraceError | None:
        leadership = replace(cluster.leadership[key], **changes)
        state = LeaderAndIsrState(leadership=leadership, assignment=cluster.assignments[key], is_new=False)
        request = replace(cluster.request({key: state}), controller_epoch=epoch)
        return cluster.run(cluster.broker(broker_id).replicas.become(request, {}))[key]

    assert isinstance(become(1, 1), StaleControllerEpochError)  # a known epoch
    assert become(1, 5, leader_epoch=1) is None
    with pytest.raises(StaleControllerEpochError):
        become(1, 4, leader_epoch=2)
    assert become(3, 5) is not None  # none of the replicas
    before = cluster.topic_ids["t"]
    cluster.topic_ids["t"] = type(before)(int=77)
    problem = become(2, 5, leader_epoch=3)
    assert problem is not None
    assert "topic id" in problem.message
    cluster.topic_ids["t"] = before
    cluster.epoch = 6
    assert cluster.delete_replica("t", 2) is None
    assert cluster.broker(2).logs.get("t", 0) is None
    assert cluster.delete_replica("t", 2) is None  # a second request does no harm


def test_committed_offsets_survive_their_coordinator(cluster: ReplicaCluster) -> None:
    cluster.create("__consumer_offsets", (1, 2, 3), cleanup_policy="compact")
    cluster.create("t", (2, 3, 1))
    append(cluster, 2, "t", *[b"%d" % each for each in range(10)])
    options = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "retry.backoff.ms": 20,
        "metadata.max.age.ms": 500,
    }
    place = TopicPartition("t", 0)
    with Consumer(options) as consumer:
        consumer.subscribe(["t"])
        read = 0
        stall = Stall("records")
        while read < 10:
            stall.check(read)
            read += len(consumer.poll(200))
        consumer.commit()
        cluster.kill(1)
        cluster.elect("__consumer_offsets", 2, isr=[2, 3])
        cluster.elect("t", 2, isr=[2, 3])
        append(cluster, 2, "t", b"10")
        while read < 11:
            stall.check()
            read += len(consumer.poll(200))
        consumer.commit()
    cluster.elect("__consumer_offsets", 3)
    with Consumer(options) as consumer:
        committed = consumer.committed([place])[place]
        assert committed is not None
        assert committed.offset == 11


def test_transactions_over_several_brokers_are_committed_or_aborted(cluster: ReplicaCluster) -> None:
    cluster.create("__transaction_state", (1, 2, 3), cleanup_policy="compact")
    cluster.create("t", (2, 3), (3, 1))
    options = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "transactional.id": "tx",
        "retry.backoff.ms": 20,
    }
    with Producer(options) as producer:
        producer.init_transactions()
        for number in range(4):
            if number == 2:
                cluster.elect("__transaction_state", 2)
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send("t", b"%d" % number, partition=partition)
            producer.flush()
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    for partition in (0, 1):
        cluster.settle("t", partition)
        cluster.assert_identical("t", partition)
        assert values_of(cluster, "t", partition, {"isolation.level": "read_committed"}) == [b"0", b"2"]
        follower = cluster.log(3 if partition == 0 else 1, "t", partition)
        eventually(lambda log=follower: log.last_stable_offset == log.log_end_offset)  # type: ignore[misc]
        assert len(follower.aborted_transactions(0, follower.log_end_offset)) == 2


def _ask(cluster: ReplicaCluster, broker_id: int, call: str, request: Any) -> Any:
    return cluster.run(cluster.broker(3 - broker_id).peers.call(broker_id, call, request, timeout_s=STALL_S))


def test_the_coordinator_alone_describes_a_transactional_id(pair: ReplicaCluster) -> None:
    pair.create("__transaction_state", (1,), cleanup_policy="compact")
    options = {"bootstrap.servers": pair.bootstrap_servers}
    with Producer(options | {"transactional.id": "tx"}) as producer:
        producer.init_transactions()
    request = pb.DescribeTransactionsRequest(transactional_ids=["tx", "nobody"])
    codes = [
        [each.error.code for each in _ask(pair, broker_id, "DescribeTransactions", request).transactions]
        for broker_id in (1, 2)
    ]
    assert codes == [[0, TransactionalIdNotFoundError.code], [NotCoordinatorError.code] * 2]
    with Admin(options) as admin:
        assert admin.describe_transactions(["tx"])["tx"].coordinator_id == 1
        with pytest.raises(TransactionalIdNotFoundError):
            admin.describe_transactions(["nobody"])


def test_each_replica_describes_the_producers_of_its_log(pair: ReplicaCluster) -> None:
    pair.create("t", (1, 2), (1,))
    append(pair, 1, "t", b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    pair.settle("t")
    request = pb.DescribeProducersRequest(topics=[pb.TopicPartitions(name="t", partitions=[0, 1])])
    for broker_id in (1, 2):
        replicated, single = _ask(pair, broker_id, "DescribeProducers", request).topics[0].partitions
        assert [(each.producer_id, each.last_sequence) for each in replicated.producers] == [(5, 0)]
        assert single.error.code == (0 if broker_id == 1 else NotLeaderError.code)


def test_a_fenced_leader_refuses_clients_and_followers_until_the_controller_decides_again(
    cluster: ReplicaCluster,
) -> None:
    # The controller takes the broker for dead. Its answers to clients would be outdated.
    cluster.create("t", (1, 2, 3))
    append(cluster, 1, "t", b"a")
    cluster.settle("t")
    cluster.stop(2)
    cluster.stop(3)
    late: list[Any] = []
    waiting = threading.Thread(target=lambda: late.append(append(cluster, 1, "t", b"b", timeout_ms=60_000)))
    waiting.start()
    eventually(lambda: cluster.log(1, "t").log_end_offset == 2)
    cluster.run(cluster.broker(1).replicas.fence())
    waiting.join(STALL_S)
    assert [each.error.code for each in late] == [NotLeaderError.code]
    assert append(cluster, 1, "t", b"no", acks=1).error.code == NotLeaderError.code
    assert cluster.broker(1).replicas.statistics().led == 0
    cluster.tell("t", 1)
    assert cluster.broker(1).replicas.leads("t", 0), "no other broker was elected, so it leads again, in the same epoch"
    for broker_id in (2, 3):
        cluster.start(broker_id)
    cluster.tell("t", 2, 3)
    append(cluster, 1, "t", b"c")
    cluster.run(cluster.broker(1).replicas.fence())
    cluster.elect("t", 2)
    append(cluster, 2, "t", b"d")
    cluster.settle("t")
    cluster.assert_identical("t")
    assert values_of(cluster, "t") == [b"a", b"b", b"c", b"d"]


def test_a_leader_that_missed_the_move_of_its_replica_stops_when_it_learns_of_it(cluster: ReplicaCluster) -> None:
    # The broker was taken for dead meanwhile, so the controller did not send it a StopReplica request.
    cluster.create("t", (1, 2, 3))
    append(cluster, 1, "t", b"a")
    key = Key("t", 0)
    cluster.tell_all("t", 1)
    assert cluster.broker(1).replicas.leads("t", 0), "nothing new"
    cluster.leadership[key] = replace(cluster.leadership[key], leader=2, leader_epoch=1, partition_epoch=1, isr=(2, 3))
    cluster.assignments[key] = ReplicaAssignment((2, 3))
    cluster.tell("t", 2, 3)
    late: list[Any] = []
    waiting = threading.Thread(target=lambda: late.append(append(cluster, 1, "t", b"lost", timeout_ms=60_000)))
    waiting.start()
    eventually(lambda: cluster.log(1, "t").log_end_offset == 2)
    cluster.tell_all("t", 1)
    waiting.join(STALL_S)
    assert [each.error.code for each in late] == [NotLeaderError.code]
    assert append(cluster, 1, "t", b"no", acks=1).error.code == NotLeaderError.code
    append(cluster, 2, "t", b"b")
    cluster.assign("t", 2, 3, 1)  # and restarts
    cluster.settle("t")
    cluster.assert_identical("t")
    assert values_of(cluster, "t") == [b"a", b"b"]
