"""Tests of unmodified Kafka clients at the broker's listener.

The clients are librdkafka (confluent-kafka) and kafka-python.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.admin import AdminClient

from millrace.clients import Consumer, Producer
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import address, consumer, create_topic, producer, python_consumer, read, send
from .waiting import STALL_S, Stall

BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0"}

RECORDS = [
    {"key": f"k{number}".encode(), "value": b"v" * number, "headers": [("n", str(number).encode())]}
    for number in range(200)
]


def _content(messages: list[Any]) -> list[dict[str, Any]]:
    return [{"key": each.key(), "value": each.value(), "headers": each.headers()} for each in messages]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_of_librdkafka_are_read_as_they_were_sent(
    module_broker: EmbeddedBroker, topic: str, compression: str, idempotent: bool
) -> None:
    create_topic(module_broker, topic)
    client = producer(module_broker, compression_type=compression, enable_idempotence=idempotent, linger_ms=20)
    sent = send(client, topic, RECORDS)
    assert [each.offset() for each in sent] == list(range(200))
    reader = consumer(module_broker, topic)
    reader.subscribe([topic])
    found = read(reader, 200)
    assert _content(found) == RECORDS
    assert [each.offset() for each in found] == list(range(200))
    reader.close()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_are_appended_with_any_acks(module_broker: EmbeddedBroker, topic: str, acks: str) -> None:
    create_topic(module_broker, topic)
    send(producer(module_broker, acks=acks), topic, RECORDS)
    reader = consumer(module_broker, topic)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert _content(read(reader, 200)) == RECORDS
    reader.close()


def test_records_without_a_time_are_appended(module_broker: EmbeddedBroker, topic: str) -> None:
    # librdkafka writes another largest timestamp into the header of such a batch.
    create_topic(module_broker, topic)
    send(producer(module_broker), topic, [{"value": b"v", "timestamp": -1}])
    reader = consumer(module_broker, topic)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    (found,) = read(reader, 1)
    assert found.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, -1)
    reader.close()


def test_records_without_a_key_are_named_to_the_producer_of_a_compacted_topic(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    create_topic(module_broker, topic, cleanup_policy="compact")
    client = producer(module_broker, linger_ms=200)
    found: Counter[str] = Counter()
    for number in range(100):
        client.produce(
            topic,
            b"v",
            key=None if number % 10 == 0 else b"k",
            on_delivery=lambda error, _: found.update([error.name()]),
        )
    assert client.flush(STALL_S) == 0
    assert found == {"INVALID_RECORD": 10, "_INVALID_DIFFERENT_RECORD": 90}


def test_kafka_python_reads_what_it_wrote(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic, 3)
    writer = kafka.KafkaProducer(bootstrap_servers=address(module_broker))
    sent = [writer.send(topic, key=b"k%d" % number, value=b"v%d" % number) for number in range(100)]
    offsets = {(each.get(STALL_S).partition, each.get(STALL_S).offset) for each in sent}
    writer.close()
    reader = python_consumer(module_broker, topic)
    found, stall = {}, Stall("100 records")
    while len(found) < 100:
        stall.check(len(found))
        for records in reader.poll(timeout_ms=100).values():
            found |= {(each.partition, each.offset): (each.key, each.value) for each in records}
    assert set(found) == offsets
    assert sorted(found.values()) == sorted((b"k%d" % number, b"v%d" % number) for number in range(100))
    reader.close()


def test_aiokafka_reads_what_it_wrote(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic, 2)
    written = [(b"k%d" % number, b"v%d" % number) for number in range(100)]

    async def write() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=address(module_broker), enable_idempotence=True, compression_type="gzip"
        ) as writer:
            await asyncio.gather(*(writer.send_and_wait(topic, value, key) for key, value in written))

    async def read_all() -> list[tuple[Any, Any]]:
        async with aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=address(module_broker), group_id=topic, auto_offset_reset="earliest"
        ) as reader:
            found: list[tuple[Any, Any]] = []
            stall = Stall("100 records")
            while len(found) < 100:
                stall.check(len(found))
                for records in (await reader.getmany(timeout_ms=100)).values():
                    found += [(each.key, each.value) for each in records]
            await reader.commit()
            return found

    asyncio.run(write())
    assert sorted(asyncio.run(read_all())) == sorted(written)


def test_both_kinds_of_client_read_the_same_records_at_the_same_offsets(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    # The records of a millrace producer are columnar in the log, and those of librdkafka are rows.
    create_topic(module_broker, topic)
    with Producer(module_broker.bootstrap_servers) as own:
        for number in range(100):
            own.send(topic, b"own%d" % number, key=b"k", headers=[("h", b"1")])
        own.flush()
    send(producer(module_broker), topic, [{"value": b"rd%d" % number} for number in range(100)])
    expected = [(b"k", b"own%d" % number) for number in range(100)]
    expected += [(None, b"rd%d" % number) for number in range(100)]

    reader = consumer(module_broker, topic)
    reader.subscribe([topic])
    found = read(reader, 200)
    assert [(each.key(), each.value()) for each in found] == expected
    assert [each.offset() for each in found] == list(range(200))
    assert found[0].headers() == [("h", b"1")]
    reader.commit(asynchronous=False)
    reader.close()

    options = {"bootstrap.servers": module_broker.bootstrap_servers, "group.id": f"{topic}-2"}
    with Consumer({**options, "auto.offset.reset": "earliest"}) as own_reader:
        own_reader.subscribe([topic])
        own_found: list[Any] = []
        stall = Stall("200 records")
        while len(own_found) < 200:
            stall.check(len(own_found))
            own_found += own_reader.poll(1)
    assert [(each.key, each.value) for each in own_found] == expected


def positions(member: confluent_kafka.Consumer) -> list[int]:
    """Return the positions of a member's partitions."""
    return sorted(each.offset for each in member.position(member.assignment()))


def test_members_of_a_group_share_the_partitions_and_continue_where_it_committed(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    create_topic(module_broker, topic, 4)
    writer = producer(module_broker)
    send(writer, topic, [{"value": b"%d" % number, "partition": number % 4} for number in range(100)])
    members = [consumer(module_broker, topic, enable_auto_commit="false") for _ in range(2)]
    for member in members:
        member.subscribe([topic])
    seen: list[bytes] = []
    stall = Stall("all records, from two members")
    # A member that gets a partition without a committed offset begins at its start.
    while not all(positions(member) == [25, 25] for member in members):
        stall.check([positions(member) for member in members])
        for member in members:
            message = member.poll(0.05)
            if message is not None and message.error() is None:
                seen.append(message.value())
    assert len(set(seen)) == 100
    for member in members:
        member.commit(asynchronous=False)
        member.close()
    send(writer, topic, [{"value": b"later", "partition": number} for number in range(4)])
    late = consumer(module_broker, topic)
    late.subscribe([topic])
    assert {each.value() for each in read(late, 4)} == {b"later"}
    committed = late.committed([TopicPartition(topic, number) for number in range(4)], STALL_S)
    assert [each.offset for each in committed] == [25] * 4
    late.close()


def test_offsets_are_found_by_timestamp(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    client = producer(module_broker)
    for number in range(10):
        send(client, topic, [{"value": b"x", "timestamp": 1_700_000_000_000 + number * 1000}])
    reader = consumer(module_broker, topic)
    (found,) = reader.offsets_for_times([TopicPartition(topic, 0, 1_700_000_003_500)], STALL_S)
    assert found.offset == 4
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), STALL_S) == (0, 10)
    reader.close()


def test_topics_are_created_described_and_deleted(module_broker: EmbeddedBroker, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": address(module_broker)})
    create_topic(module_broker, topic, 3, retention_ms="60000")
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        create_topic(module_broker, topic, 3)
    assert caught.value.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    described = client.list_topics(topic, STALL_S)
    assert [each.leader for each in described.topics[topic].partitions.values()] == [0, 0, 0]
    assert {(each.host, each.port) for each in described.brokers.values()} == {("127.0.0.1", module_broker.port)}
    client.delete_topics([topic])[topic].result(STALL_S)
    assert topic not in client.list_topics(timeout=STALL_S).topics


def test_an_unknown_topic_is_refused_with_kafkas_code(module_broker: EmbeddedBroker, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": address(module_broker)})
    found = client.list_topics(topic, STALL_S).topics[topic]
    assert found.error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
