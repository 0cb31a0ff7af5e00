"""Tests of groups and transactions shared by both kinds of clients.

The clients are those of Kafka and of millrace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from millrace import clients
from millrace.clients import Consumer, Producer
from millrace.errors import InconsistentGroupProtocolError
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import consumer, create_topic, producer, read, send
from .waiting import STALL_S, Stall

BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0", "group.consumer.heartbeat.interval.ms": "100"}


def _own_consumer(broker: EmbeddedBroker, group: str, **options: str) -> Consumer:
    """Create a consumer of millrace that begins at the earliest offset. Options have underscores in place of dots."""
    defaults = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer(defaults | {name.replace("_", "."): value for name, value in options.items()})


class Pair:
    """A group with one member of each kind, polled in turn."""

    def __init__(self, broker: EmbeddedBroker, group: str, of_kafka: dict[str, str], of_millrace: str) -> None:
        options = {"heartbeat_interval_ms": "100", "partition_assignment_strategy": of_millrace}
        self.of_kafka = consumer(broker, group, enable_auto_commit="false", **of_kafka)
        self.of_millrace = _own_consumer(broker, group, enable_auto_commit="false", **options)
        self.found: list[tuple[int, int]] = []
        self.errors: list[Any] = []

    def assignments(self) -> tuple[set[int], set[int]]:
        """Return the partitions of the member of Kafka, and of the member of millrace."""
        return (
            {each.partition for each in self.of_kafka.assignment()},
            {each.partition for each in self.of_millrace.assignment()},
        )

    def poll(self) -> None:
        message = self.of_kafka.poll(0.02)
        if message is not None:
            if message.error() is None:
                self.found.append((message.partition(), message.offset()))
            else:
                self.errors.append(message.error())
        if self.of_millrace.subscription():
            self.found += [(each.partition, each.offset) for each in self.of_millrace.poll(20)]

    def until_sizes(self, *sizes: int) -> None:
        stall = Stall(f"assignments of {sizes} partitions")
        while tuple(map(len, self.assignments())) != sizes:
            stall.check((self.assignments(), self.errors))
            self.poll()

    def close(self) -> None:
        self.of_kafka.close()
        self.of_millrace.close()


@pytest.fixture
def pair(module_broker: EmbeddedBroker, topic: str, strategies: tuple[str, str]) -> Iterator[Pair]:
    create_topic(module_broker, topic, 4)
    of_kafka, of_millrace = strategies
    options = {"partition_assignment_strategy": of_kafka, "heartbeat_interval_ms": "100"}
    opened = Pair(module_broker, topic, options, of_millrace)
    yield opened
    opened.close()


@pytest.mark.parametrize("strategies", [(each, each) for each in ("range", "roundrobin", "cooperative-sticky")])
@pytest.mark.parametrize("first", ["of_kafka", "of_millrace"])
def test_members_of_both_kinds_share_the_partitions_of_a_group(
    module_broker: EmbeddedBroker, topic: str, pair: Pair, first: str
) -> None:
    """The member that joins first is the leader, which assigns the partitions of both."""
    getattr(pair, first).subscribe([topic])
    pair.until_sizes(*((4, 0) if first == "of_kafka" else (0, 4)))
    for member in (pair.of_kafka, pair.of_millrace):
        member.subscribe([topic])
    pair.until_sizes(2, 2)
    one, other = pair.assignments()
    assert one | other == set(range(4))
    send(producer(module_broker), topic, [{"value": b"v", "partition": number % 4} for number in range(40)])
    stall = Stall("40 records")
    while len(pair.found) < 40:
        stall.check(len(pair.found))
        pair.poll()
    assert sorted(pair.found) == [(partition, offset) for partition in range(4) for offset in range(10)]
    pair.of_kafka.commit(asynchronous=False)
    pair.of_millrace.commit()
    pair.of_millrace.unsubscribe()
    pair.until_sizes(4, 0)
    committed = pair.of_kafka.committed([TopicPartition(topic, number) for number in range(4)], STALL_S)
    assert [each.offset for each in committed] == [10] * 4


@pytest.mark.parametrize("strategies", [("range", "roundrobin")])
def test_a_member_of_millrace_without_a_common_assignor_is_refused(topic: str, pair: Pair) -> None:
    pair.of_kafka.subscribe([topic])
    pair.until_sizes(4, 0)
    pair.of_millrace.subscribe([topic])
    with pytest.raises(InconsistentGroupProtocolError):
        pair.until_sizes(2, 2)


@pytest.mark.parametrize("strategies", [("range", "roundrobin")])
def test_a_member_of_kafka_without_a_common_assignor_is_refused_with_kafkas_code(topic: str, pair: Pair) -> None:
    pair.of_millrace.subscribe([topic])
    pair.until_sizes(0, 4)
    pair.of_kafka.subscribe([topic])
    stall = Stall("the error of the group")
    while not pair.errors:
        stall.check()
        pair.poll()
    assert pair.errors[0].code() == confluent_kafka.KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert pair.assignments() == (set(), set(range(4)))


def test_a_member_of_millrace_and_one_of_kip_848_share_a_group(module_broker: EmbeddedBroker, topic: str) -> None:
    """The group of the member of millrace migrates to the consumer protocol and back."""
    create_topic(module_broker, topic, 4)
    pair = Pair(module_broker, topic, {"group_protocol": "consumer"}, "range")
    pair.of_millrace.subscribe([topic])
    pair.until_sizes(0, 4)
    pair.of_kafka.subscribe([topic])
    pair.until_sizes(2, 2)
    one, other = pair.assignments()
    assert one | other == set(range(4))
    pair.of_kafka.unsubscribe()
    pair.until_sizes(0, 4)
    pair.close()


def test_a_transaction_of_kafkas_producer_commits_offsets_of_a_consumer_of_millrace(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    for name in (source, target):
        create_topic(module_broker, name)
    send(producer(module_broker), source, [{"value": b"%d" % number} for number in range(4)])
    theirs = producer(module_broker, transactional_id=topic)
    theirs.init_transactions(STALL_S)
    names_group = consumer(module_broker, topic)  # no member: it gives the producer the group's id
    partition = clients.TopicPartition(source, 0)
    with _own_consumer(module_broker, topic, enable_auto_commit="false") as own:
        own.subscribe([source])
        stall = Stall("4 records")
        values: list[Any] = []
        while len(values) < 4:
            stall.check(len(values))
            values += [each.value for each in own.poll(100)]
        for commits, offset in ((False, None), (True, 4)):
            theirs.begin_transaction()
            for value in values:
                theirs.produce(target, value)
            position = [TopicPartition(source, 0, own.position(partition))]
            theirs.send_offsets_to_transaction(position, names_group.consumer_group_metadata(), STALL_S)
            (theirs.commit_transaction if commits else theirs.abort_transaction)(STALL_S)
            committed = own.committed([partition])[partition]
            assert (None if committed is None else committed.offset) == offset
    names_group.close()
    assert _committed_values(module_broker, target, 4) == values


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_transaction_of_millrace_commits_offsets_of_a_consumer_of_kafka(
    module_broker: EmbeddedBroker, topic: str, protocol: str
) -> None:
    """The members of both group protocols have their offsets in one place."""
    source, target = f"{topic}-in", f"{topic}-out"
    for name in (source, target):
        create_topic(module_broker, name)
    send(producer(module_broker), source, [{"value": b"%d" % number} for number in range(4)])
    theirs = consumer(module_broker, topic, group_protocol=protocol, enable_auto_commit="false")
    theirs.subscribe([source])
    values = [each.value() for each in read(theirs, 4)]
    with Producer({"bootstrap.servers": module_broker.bootstrap_servers, "transactional.id": topic}) as own:
        own.init_transactions()
        for commits, offset in ((False, confluent_kafka.OFFSET_INVALID), (True, 4)):
            own.begin_transaction()
            for value in values:
                own.send(target, value)
            own.send_offsets_to_transaction({clients.TopicPartition(source, 0): 4}, topic)
            (own.commit_transaction if commits else own.abort_transaction)()
            (committed,) = theirs.committed([TopicPartition(source, 0)], STALL_S)
            assert committed.offset == offset
    theirs.close()
    assert _committed_values(module_broker, target, 4) == values


def _committed_values(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes]:
    reader = consumer(broker, f"{topic}-readers", isolation_level="read_committed")
    reader.subscribe([topic])
    found = [each.value() for each in read(reader, count)]
    reader.close()
    return found
