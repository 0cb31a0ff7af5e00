"""Helpers for tests with Kafka's own clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient, NewTopic

from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, Stall, eventually


def address(broker: EmbeddedBroker) -> str:
    """Return the broker's address for Kafka clients."""
    return f"127.0.0.1:{broker.port}"


def create_topic(broker: EmbeddedBroker, name: str, partitions: int = 1, **config: str) -> None:
    """Create a topic with Kafka's admin client."""
    topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    client = AdminClient({"bootstrap.servers": address(broker)})
    client.create_topics([topic])[name].result(STALL_S)


def producer(broker: EmbeddedBroker, **options: Any) -> confluent_kafka.Producer:
    """Create a librdkafka producer. Options have underscores in place of dots."""
    return confluent_kafka.Producer({"bootstrap.servers": address(broker)} | _named(options))


def consumer(broker: EmbeddedBroker, group: str, **options: Any) -> confluent_kafka.Consumer:
    """Create a librdkafka consumer that begins at the earliest offset."""
    defaults = {"bootstrap.servers": address(broker), "group.id": group, "auto.offset.reset": "earliest"}
    return confluent_kafka.Consumer(defaults | _named(options))


def python_consumer(broker: EmbeddedBroker, topic: str) -> kafka.KafkaConsumer:
    """Create a consumer of kafka-python that begins at the earliest offset, in a group with the topic's name.

    It knows the partitions before it joins. kafka-python 3.0 joins while its metadata request is in flight. If it leads
    the group without them, it assigns nothing and never rejoins.
    """
    client = kafka.KafkaConsumer(topic, bootstrap_servers=address(broker), group_id=topic, auto_offset_reset="earliest")
    eventually(lambda: client.partitions_for_topic(topic), f"the partitions of {topic}")
    return client


def _named(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in options.items()}


def send(client: confluent_kafka.Producer, topic: str, records: list[dict[str, Any]]) -> list[Any]:
    """Send records, and return their metadata in the order of acknowledgement."""
    done: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        done.append(message)

    for record in records:
        client.produce(topic, on_delivery=delivered, **record)
    stall = Stall("acknowledgements")
    while len(done) < len(records):
        stall.check(len(done))
        client.poll(0.1)
    return done


def read(client: confluent_kafka.Consumer, count: int, on_message: Callable[[Any], None] = lambda _: None) -> list[Any]:
    """Poll until there are ``count`` messages."""
    found: list[Any] = []
    stall = Stall(f"{count} records")
    while len(found) < count:
        stall.check(len(found))
        message = client.poll(0.1)
        if message is None:
            continue
        assert message.error() is None, message.error()
        on_message(message)
        found.append(message)
    return found
