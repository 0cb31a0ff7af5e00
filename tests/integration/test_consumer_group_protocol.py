"""Consumer groups of KIP-848 with librdkafka's consumers (``group.protocol=consumer``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from millrace.kafka_protocol.calls.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millrace.kafka_protocol.calls.find_coordinator import FindCoordinatorRequest
from millrace.kafka_protocol.calls.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millrace_broker.testing import EmbeddedBroker

from ..ports import free_port
from .kafka_clients import address, consumer, create_topic, producer, send
from .kafka_wire import KafkaWire
from .waiting import STALL_S, Stall, eventually

BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0", "group.consumer.heartbeat.interval.ms": "100"}


class Consumers:
    """Consumers of one group that are polled in turn."""

    def __init__(self, broker: EmbeddedBroker, group: str) -> None:
        self.broker = broker
        self.group = group
        self.members: dict[str, confluent_kafka.Consumer] = {}
        self.found: list[bytes] = []

    def join(self, name: str, *topics: str, **options: Any) -> None:
        defaults = {"client_id": name, "group_protocol": "consumer"}
        self.members[name] = consumer(self.broker, self.group, **(defaults | options))
        self.members[name].subscribe(list(topics))

    def leave(self, name: str) -> None:
        self.members.pop(name).close()

    def poll(self) -> None:
        for member in self.members.values():
            message = member.poll(0.02)
            if message is not None and message.error() is None:
                self.found.append(message.value())

    def assignments(self) -> dict[str, set[tuple[str, int]]]:
        return {
            name: {(each.topic, each.partition) for each in member.assignment()}
            for name, member in self.members.items()
        }

    def until(self, condition: Callable[[], Any], waiting_for: str) -> None:
        stall = Stall(waiting_for)
        while not condition():
            stall.check((self.assignments(), len(self.found)))
            self.poll()

    def until_sizes(self, *sizes: int) -> None:
        """Wait until the members have so many partitions, in any order, and no partition two of them."""

        def is_reached() -> bool:
            present = list(self.assignments().values())
            everything = [partition for each in present for partition in each]
            return sorted(map(len, present)) == sorted(sizes) and len(everything) == len(set(everything))

        self.until(is_reached, f"assignments of {sizes} partitions")


@contextlib.contextmanager
def consumers(broker: EmbeddedBroker, group: str) -> Iterator[Consumers]:
    members = Consumers(broker, group)
    try:
        yield members
    finally:
        for name in list(members.members):
            members.leave(name)


def admin(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": address(broker)})


def described(broker: EmbeddedBroker, group: str) -> Any:
    client = admin(broker)  # it ends its calls when it is collected
    return client.describe_consumer_groups([group])[group].result(STALL_S)


def listed(broker: EmbeddedBroker, kind: ConsumerGroupType) -> set[str]:
    client = admin(broker)
    return {group.group_id for group in client.list_consumer_groups(types={kind}).result(STALL_S).valid}


def test_members_join_leave_and_continue_from_their_commits(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic, 4)
    writer = producer(module_broker)
    send(writer, topic, [{"value": b"%d" % number, "partition": number % 4} for number in range(40)])
    with consumers(module_broker, topic) as members:
        members.join("a", topic, enable_auto_commit=False)
        members.until_sizes(4)
        members.until(lambda: len(members.found) == 40, "40 records")
        members.members["a"].commit(asynchronous=False)
        members.join("b", topic, enable_auto_commit=False)
        members.until_sizes(2, 2)
        group = described(module_broker, topic)
        assert group.state is ConsumerGroupState.STABLE
        assert group.type is ConsumerGroupType.CONSUMER
        assert {member.client_id for member in group.members} == {"a", "b"}
        assert sorted(len(member.assignment.topic_partitions) for member in group.members) == [2, 2]
        members.leave("a")
        members.until_sizes(4)
        send(writer, topic, [{"value": b"%d" % number, "partition": number % 4} for number in range(40, 80)])
        members.until(lambda: len(members.found) == 80, "80 records")
        assert sorted(map(int, members.found)) == list(range(80))
        members.members["b"].commit(asynchronous=False)
        committed = members.members["b"].committed([TopicPartition(topic, number) for number in range(4)])
        assert [each.offset for each in committed] == [20] * 4


def test_new_topics_and_partitions_are_assigned(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, f"{topic}-1", 1)
    with consumers(module_broker, topic) as members:
        members.join("a", f"^{topic}-.*")
        members.until_sizes(1)
        create_topic(module_broker, f"{topic}-2", 2)
        members.until_sizes(3)
        client = admin(module_broker)
        client.create_partitions([NewPartitions(f"{topic}-1", 3)])[f"{topic}-1"].result(STALL_S)
        members.until_sizes(5)
        client.delete_topics([f"{topic}-2"])[f"{topic}-2"].result(STALL_S)
        members.until_sizes(3)


def test_options_of_a_group_set_its_heartbeats_and_sessions(tmp_path: Path) -> None:
    """The member of a stopped process is removed after the session timeout of its group."""
    options = {**BROKER_OPTIONS, "group.consumer.min.session.timeout.ms": "1"}
    with EmbeddedBroker(tmp_path, options=options) as broker:
        create_topic(broker, "t", 2)
        client = admin(broker)

        def sizes() -> list[int]:
            found = client.describe_consumer_groups(["brief", "patient"])
            return [len(found[group].result(STALL_S).members) for group in ("brief", "patient")]

        with KafkaWire(broker) as wire:
            for group, timeout_ms in (("brief", "1000"), ("patient", "60000")):
                alter_group(wire, group, {"consumer.session.timeout.ms": timeout_ms})
                assert join(wire, group) == 100
            alter_group(wire, "brief", {"consumer.heartbeat.interval.ms": "5000"}, expected=40)  # INVALID_CONFIG
            alter_group(wire, "patient", {"consumer.heartbeat.interval.ms": "7000"})
            assert join(wire, "patient") == 7000
        eventually(lambda: sizes() == [0, 1], "the removal of a member of the group with the brief session timeout")


def alter_group(wire: KafkaWire, group: str, options: dict[str, str], expected: int = 0) -> None:
    configs = tuple(AlterableConfig(name=name, config_operation=0, value=value) for name, value in options.items())
    wanted = AlterConfigsResource(resource_type=32, resource_name=group, configs=configs)
    (found,) = wire.call(IncrementalAlterConfigsRequest(resources=(wanted,), validate_only=False), 1).responses
    assert found.error_code == expected, found.error_message


def join(wire: KafkaWire, group: str) -> int:
    """Join a group, or join it again. Return the heartbeat interval of the answer."""
    first = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="member",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    stall = Stall(f"the coordinator of {group}")
    while (answer := wire.call(first, 1)).error_code in (14, 15, 16):  # it is being created or loaded
        wire.call(FindCoordinatorRequest(key=group), 3)
        stall.check(answer.error_message)
    assert answer.error_code == 0, answer.error_message
    interval_ms: int = answer.heartbeat_interval_ms
    return interval_ms


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_each_server_side_assignor_is_accepted(module_broker: EmbeddedBroker, topic: str, assignor: str) -> None:
    create_topic(module_broker, topic, 3)
    with consumers(module_broker, topic) as members:
        members.join("a", topic, group_remote_assignor=assignor)
        members.join("b", topic, group_remote_assignor=assignor)
        members.until_sizes(1, 2)
        assert described(module_broker, topic).partition_assignor == assignor


def test_a_static_member_gets_its_partitions_back(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic, 4)
    with consumers(module_broker, topic) as members:
        members.join("a", topic, group_instance_id="one")
        members.join("b", topic, group_instance_id="two")
        members.until_sizes(2, 2)
        before = members.assignments()
        members.leave("a")
        members.join("a", topic, group_instance_id="one")
        members.until_sizes(2, 2)
        assert members.assignments() == before


def test_a_live_group_migrates_to_the_consumer_protocol_and_back(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic, 4)
    classic = {
        "group_protocol": "classic",
        "partition_assignment_strategy": "range",
        "heartbeat_interval_ms": 100,
    }
    with consumers(module_broker, topic) as members:
        members.join("old-1", topic, **classic)
        members.until_sizes(4)
        members.join("old-2", topic, **classic)
        members.until_sizes(2, 2)
        assert topic in listed(module_broker, ConsumerGroupType.CLASSIC)
        members.join("new", topic)
        members.until_sizes(1, 1, 2)
        assert described(module_broker, topic).type is ConsumerGroupType.CONSUMER
        send(producer(module_broker), topic, [{"value": b"v", "partition": number % 4} for number in range(40)])
        members.until(lambda: len(members.found) == 40, "40 records")
        members.leave("new")
        members.until_sizes(2, 2)
        assert topic in listed(module_broker, ConsumerGroupType.CLASSIC)


def test_groups_are_listed_by_type_and_deleted_when_empty(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    client = admin(module_broker)

    with consumers(module_broker, topic) as members:
        members.join("a", topic)
        members.until_sizes(1)
        assert topic in listed(module_broker, ConsumerGroupType.CONSUMER)
        assert topic not in listed(module_broker, ConsumerGroupType.CLASSIC)
        with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
            client.delete_consumer_groups([topic])[topic].result(STALL_S)
    client.delete_consumer_groups([topic])[topic].result(STALL_S)
    assert topic not in listed(module_broker, ConsumerGroupType.CONSUMER)


def test_members_continue_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    options = {**BROKER_OPTIONS, "offsets.topic.num.partitions": "2"}
    with EmbeddedBroker(tmp_path, free_port(), options=options) as broker:
        create_topic(broker, "t", 2)
        with consumers(broker, "g") as members:
            members.join("a", "t")
            members.join("b", "t")
            members.until_sizes(1, 1)
            before = {member.member_id for member in described(broker, "g").members}
            broker.stop()
            broker.start()
            send(producer(broker), "t", [{"value": b"v", "partition": number % 2} for number in range(10)])
            members.until(lambda: len(members.found) == 10, "10 records after the restart")
            group = described(broker, "g")
            assert {member.member_id for member in group.members} == before
            assert group.state is ConsumerGroupState.STABLE
