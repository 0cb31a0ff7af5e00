"""Tests of leader epochs.

The tests cover fenced clients, and consumers that detect a truncation (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.clients import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from millrace.errors import (
    FencedLeaderEpochError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from .cut_logs import raise_epoch, truncated
from .replica_cluster import ReplicaCluster, append
from .waiting import STALL_S, Stall

TOPIC = "orders"
PARTITION = TopicPartition(TOPIC, 0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path / "broker") as running:
        with Admin(running.bootstrap_servers) as admin:
            admin.create_topic(TOPIC)
        yield running


def produce(broker: EmbeddedBroker, *values: bytes) -> None:
    """Append a batch for each value."""
    with Producer(broker.bootstrap_servers) as producer:
        for value in values:
            producer.send(TOPIC, value).result(STALL_S)


def consumer_of(broker: EmbeddedBroker, reset: str = "earliest", **options: Any) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "auto.offset.reset": reset,
            "group.id": "g",
            "enable.auto.commit": False,
            **options,
        }
    )
    consumer.assign([PARTITION])
    return consumer


def read(consumer: Consumer, count: int) -> list[tuple[int, Any]]:
    records: list[tuple[int, Any]] = []
    stall = Stall("records")
    while len(records) < count:
        stall.check(len(records))
        records += [(record.offset, record.value) for record in consumer.poll(200)]
    return records


def test_requests_of_another_epoch_are_refused_and_epoch_ends_answered(broker: EmbeddedBroker, calls_to: Any) -> None:
    calls = calls_to(broker.bootstrap_servers)
    produce(broker, b"a", b"b")
    raise_epoch(broker, TOPIC)

    def ends(epoch: int, current: int = 1, partition: int = 0) -> tuple[int, int, int]:
        wanted = pb.OffsetForLeaderEpochRequest.PartitionEpoch(
            partition=partition, current_leader_epoch=current, leader_epoch=epoch
        )
        topic = pb.OffsetForLeaderEpochRequest.TopicEpochs(name=TOPIC, partitions=[wanted])
        request = pb.OffsetForLeaderEpochRequest(replica_id=-1, topics=[topic])
        answer = calls.call("OffsetForLeaderEpoch", request).topics[0].partitions[0]
        return answer.error.code, answer.end.leader_epoch, answer.end.end_offset

    assert ends(0) == (0, 0, 2)
    assert ends(1) == (0, 1, 2)  # the epoch began with the election
    produce(broker, b"c")
    assert ends(0) == (0, 0, 2)
    assert ends(1) == (0, 1, 3)
    assert ends(2) == (0, -1, -1)
    with Admin(broker.bootstrap_servers) as admin:
        assert [admin.epoch_ends({PARTITION: epoch})[PARTITION] for epoch in (0, 1, 2)] == [2, 3, None]
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.epoch_ends({TopicPartition(TOPIC, 9): 0})
    assert ends(0, current=0)[0] == FencedLeaderEpochError.code
    assert ends(0, current=2)[0] == UnknownLeaderEpochError.code
    assert ends(0, partition=9)[0] == UnknownTopicOrPartitionError.code
    assert calls.fetch(TOPIC, 0, epoch=0).error.code == FencedLeaderEpochError.code
    assert calls.fetch(TOPIC, 0, epoch=2).error.code == UnknownLeaderEpochError.code
    assert calls.fetch(TOPIC, 0, epoch=1).records
    assert [calls.offset(TOPIC, when).leader_epoch for when in (-2, -1)] == [0, 1]


@pytest.mark.parametrize(
    ("offset", "epoch", "answer"),
    [(3, 1, None), (2, 0, None), (3, 0, (0, 2)), (4, 1, (1, 3)), (2, -1, None), (2, 7, "unknown")],
)
def test_a_replica_gets_the_offset_at_which_its_log_diverges(
    broker: EmbeddedBroker, calls_to: Any, offset: int, epoch: int, answer: Any
) -> None:
    produce(broker, b"a", b"b")
    raise_epoch(broker, TOPIC)
    produce(broker, b"c")
    request = calls_to(broker.bootstrap_servers).fetch_request({TOPIC: {0: offset}}, epoch=1)
    request.topics[0].partitions[0].last_fetched_epoch = epoch
    result = calls_to(broker.bootstrap_servers).call("Fetch", request).topics[0].partitions[0]
    if answer == "unknown":
        assert result.error.code == OffsetOutOfRangeError.code
    elif answer is None:
        assert not result.HasField("diverging_epoch")
    else:
        assert (result.diverging_epoch.leader_epoch, result.diverging_epoch.end_offset) == answer
        assert not result.records


def test_a_new_epoch_without_loss_goes_unnoticed(broker: EmbeddedBroker) -> None:
    produce(broker, b"a", b"b")
    with consumer_of(broker) as consumer:
        assert read(consumer, 2) == [(0, b"a"), (1, b"b")]
        for number in range(3):
            raise_epoch(broker, TOPIC)
            produce(broker, b"%d" % number)
            assert read(consumer, 1) == [(2 + number, b"%d" % number)]
        consumer.commit()
        assert consumer.committed([PARTITION])[PARTITION] == OffsetAndMetadata(offset=5, leader_epoch=3)
    raise_epoch(broker, TOPIC)
    produce(broker, b"more")
    with consumer_of(broker) as consumer:  # begins at an offset that was committed in an older epoch
        assert read(consumer, 1) == [(5, b"more")]


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_leader_older_than_what_the_group_has_committed_is_not_believed(broker: EmbeddedBroker, reset: str) -> None:
    # The broker was taken for dead, and does not know the new leader yet.
    produce(broker, b"a")
    with consumer_of(broker, reset) as consumer:
        consumer.commit({PARTITION: OffsetAndMetadata(offset=2, leader_epoch=1)})
        (state,) = consumer._assignment.states()
        stall = Stall("attempts to find a leader of the committed epoch")
        while state.attempts < 3:
            stall.check(state.attempts)
            assert not consumer.poll(20)
        assert state.position == 2, "an offset that the old leader does not have is no reason for a reset"
        raise_epoch(broker, TOPIC)
        produce(broker, b"b", b"c")
        assert read(consumer, 1) == [(2, b"c")]


def test_a_consumer_finds_the_leader_though_the_broker_that_it_asks_knows_only_the_one_before(tmp_path: Path) -> None:
    with ReplicaCluster(tmp_path, brokers=2) as cluster:
        cluster.create("t", (1, 2))
        append(cluster, 1, "t", b"a")
        cluster.settle("t")
        cluster.elect_unheard("t", 2, by=1)
        assert not append(cluster, 2, "t", b"b", b"c").error.code
        options = {"bootstrap.servers": f"127.0.0.1:{cluster.addresses[1]}", "auto.offset.reset": "none"}
        with Consumer(options) as consumer:
            place = TopicPartition("t", 0)
            consumer.assign([place])
            consumer.seek(place, OffsetAndMetadata(offset=2, leader_epoch=1))
            assert read(consumer, 1) == [(2, b"c")]
            assert cluster.broker(1).replicas.leads("t", 0), "the broker does not know the next leader by then"


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_consumer_continues_where_the_logs_part(broker: EmbeddedBroker, tmp_path: Path, reset: str) -> None:
    produce(broker, b"a", b"b", b"c", b"d")
    with consumer_of(broker, reset) as consumer:
        consumer.seek_to_beginning()
        assert len(read(consumer, 4)) == 4
        again = truncated(broker, tmp_path / "broker", TOPIC, 2)
        try:
            produce(again, b"C", b"D", b"E", b"F")  # without epochs, 4 would look like a valid position
            assert read(consumer, 4) == [(2, b"C"), (3, b"D"), (4, b"E"), (5, b"F")]
        finally:
            again.stop()


def test_without_a_policy_the_error_names_where_the_logs_part(broker: EmbeddedBroker, tmp_path: Path) -> None:
    produce(broker, b"a", b"b", b"c", b"d")
    with consumer_of(broker) as consumer:
        assert len(read(consumer, 4)) == 4
        consumer.commit()
    again = truncated(broker, tmp_path / "broker", TOPIC, 3)
    try:
        produce(again, b"D", b"E", b"F")
        with consumer_of(again, "none") as consumer:  # by the committed epoch
            for _ in range(2):  # until the application seeks
                with pytest.raises(LogTruncationError, match="from offset 3 on") as raised:
                    read(consumer, 1)
                assert raised.value.divergent_offset == 3
            consumer.seek(PARTITION, 3)
            assert read(consumer, 3) == [(3, b"D"), (4, b"E"), (5, b"F")]
            consumer.seek(PARTITION, OffsetAndMetadata(offset=5, leader_epoch=0))
            with pytest.raises(LogTruncationError):
                read(consumer, 1)
    finally:
        again.stop()


def test_a_topic_created_again_starts_its_epochs_again(broker: EmbeddedBroker) -> None:
    raise_epoch(broker, TOPIC)
    produce(broker, b"a")
    options: dict[str, Any] = {"metadata.max.age.ms": 100, "fetch.max.wait.ms": 50}
    with consumer_of(broker, **options) as consumer, Admin(broker.bootstrap_servers) as admin:
        assert read(consumer, 1) == [(0, b"a")]
        admin.delete_topic(TOPIC)
        admin.create_topic(TOPIC)
        produce(broker, b"b", b"c")
        stall = Stall("the new topic's records")
        records: list[Any] = []
        while b"c" not in records:
            stall.check(len(records))
            try:
                records += [record.value for record in consumer.poll(200)]
            except UnknownTopicOrPartitionError:
                continue  # while the broker was down
