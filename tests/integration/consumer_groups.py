"""A topic and the consumers of a group on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from millrace.clients import (
    Admin,
    Consumer,
    ConsumerRecord,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from millrace_broker.testing import EmbeddedBroker

from .waiting import Stall

QUICK_GROUPS = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "100"}
"""``BROKER_OPTIONS`` under which ``QUICK`` members need not wait."""
QUICK = {
    "auto.offset.reset": "earliest",
    # a starved member stays in the group; a test of expired sessions sets a shorter timeout
    "session.timeout.ms": "60000",
    "heartbeat.interval.ms": "50",
    "metadata.max.age.ms": "200",
    "retry.backoff.ms": "20",
}


class Group:
    """A topic and the consumers of one group.

    The test's thread polls all of them.
    """

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.consumers: list[Consumer] = []

    def create_topic(self, partitions: int, records: int, topic: str | None = None) -> None:
        name = topic or self.name
        with Admin(self.broker.bootstrap_servers) as admin, Producer(self.broker.bootstrap_servers) as producer:
            admin.create_topic(name, partitions=partitions)
            for partition in range(partitions):
                producer.send_table(name, {"value": [b"%d" % n for n in range(records)]}, partition=partition)

    def config(self, **options: Any) -> dict[str, Any]:
        named = {name.replace("_", "."): value for name, value in options.items()}
        return {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": self.name, **QUICK, **named}

    def consumer(self, **options: Any) -> Consumer:
        consumer = Consumer(self.config(**options))
        self.consumers.append(consumer)
        return consumer

    def member(self, listener: RebalanceListener | None = None, **options: Any) -> Consumer:
        consumer = self.consumer(**options)
        consumer.subscribe(self.name, listener)
        return consumer

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


def poll_until(done: Callable[[], bool], *consumers: Consumer) -> list[ConsumerRecord]:
    """Poll the consumers in turn until the condition holds. Return their records."""
    records: list[ConsumerRecord] = []
    stall = Stall("the group")
    while not done():
        stall.check((len(records), [consumer.assignment() for consumer in consumers]))
        for consumer in consumers:
            records += consumer.poll(10)
    return records


def read(count: int, *consumers: Consumer) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    stall = Stall("records")
    while len(records) < count:
        stall.check(len(records))
        for consumer in consumers:
            records += consumer.poll(10)
    return records


def places(records: Sequence[ConsumerRecord]) -> list[tuple[str, int, int]]:
    return sorted((record.topic, record.partition, record.offset) for record in records)


class Told(RebalanceListener):
    """A rebalance listener that records its calls."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("assigned", [partition.partition for partition in partitions]))

    def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("revoked", [partition.partition for partition in partitions]))

    def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.events.append(("lost", [partition.partition for partition in partitions]))


def poll_on(consumer: Consumer) -> NoReturn:
    """Poll until the consumer raises the expected error."""
    stall = Stall("an error")
    while True:
        stall.check()
        consumer.poll(50)
