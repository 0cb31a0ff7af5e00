"""Tests of transactions of Kafka clients that keep the producer epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from millrace.clients import Consumer
from millrace.errors import InvalidProducerEpochError
from millrace.kafka_protocol.calls.describe_producers import DescribeProducersRequest, TopicRequest
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.kafka_protocol.calls.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from millrace.records import Record, build_rows_batch
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import address, consumer, create_topic, producer, read, send
from .kafka_wire import KafkaWire
from .waiting import STALL_S, Stall

BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0"}


def _transactional(broker: EmbeddedBroker, name: str, **options: Any) -> confluent_kafka.Producer:
    client = producer(broker, transactional_id=name, **options)
    client.init_transactions(STALL_S)
    return client


def _committed(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes]:
    reader = consumer(broker, topic, isolation_level="read_committed")
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = [each.value() for each in read(reader, count)]
    reader.close()
    return found


def test_committed_transactions_are_read_and_aborted_ones_are_not(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    client = _transactional(module_broker, topic)
    for number in range(20):
        client.begin_transaction()
        for record in range(5):
            client.produce(topic, b"%d-%d" % (number, record))
        if number % 2:
            client.commit_transaction(STALL_S)
        else:
            client.abort_transaction(STALL_S)
    expected = [b"%d-%d" % (number, record) for number in range(1, 20, 2) for record in range(5)]
    assert _committed(module_broker, topic, len(expected)) == expected
    options = {"bootstrap.servers": module_broker.bootstrap_servers, "group.id": f"{topic}-own"}
    with Consumer({**options, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}) as own:
        own.subscribe([topic])
        found: list[Any] = []
        stall = Stall("all committed records")
        while len(found) < len(expected):
            stall.check(len(found))
            found += own.poll(1)
    assert [each.value for each in found] == expected


def test_consumed_offsets_are_committed_with_the_transaction(module_broker: EmbeddedBroker, topic: str) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    create_topic(module_broker, source, 2)
    create_topic(module_broker, target)
    writer = producer(module_broker)
    for number in range(40):
        writer.produce(source, b"%d" % number, partition=number % 2)
    assert writer.flush(STALL_S) == 0
    client = _transactional(module_broker, topic)
    reader = consumer(module_broker, topic, enable_auto_commit="false", isolation_level="read_committed")
    reader.subscribe([source])
    seen: list[bytes] = []
    stall = Stall("40 records in transactions")
    turns = 0
    while len(seen) < 40:
        stall.check(len(seen))
        messages = reader.consume(7, 0.1)
        if not messages:
            continue
        client.begin_transaction()
        for message in messages:
            client.produce(target, message.value())
        positions = reader.position(reader.assignment())
        client.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), STALL_S)
        turns += 1
        if turns % 3 == 0:
            client.abort_transaction(STALL_S)
            for committed in reader.committed(reader.assignment(), STALL_S):
                if committed.offset < 0:
                    committed.offset = 0
                reader.seek(committed)
        else:
            client.commit_transaction(STALL_S)
            seen += [message.value() for message in messages]
    reader.close()
    assert sorted(_committed(module_broker, target, 40), key=int) == [b"%d" % number for number in range(40)]
    late = consumer(module_broker, topic)
    committed = late.committed([TopicPartition(source, number) for number in range(2)], STALL_S)
    assert [each.offset for each in committed] == [20, 20]
    late.close()


def test_a_new_producer_fences_the_earlier_one(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    first = _transactional(module_broker, topic)
    first.begin_transaction()
    first.produce(topic, b"open")
    assert first.flush(STALL_S) == 0
    second = _transactional(module_broker, topic)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        first.commit_transaction(STALL_S)
    assert caught.value.args[0].fatal()
    second.begin_transaction()
    second.produce(topic, b"second")
    second.commit_transaction(STALL_S)
    assert _committed(module_broker, topic, 1) == [b"second"]


def test_kafka_python_commits_transactions(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    client = kafka.KafkaProducer(bootstrap_servers=address(module_broker), transactional_id=topic)
    client.init_transactions()
    for number in range(4):
        client.begin_transaction()
        client.send(topic, b"%d" % number)
        if number % 2:
            client.commit_transaction()
        else:
            client.abort_transaction()
    client.close()
    assert _committed(module_broker, topic, 2) == [b"1", b"3"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_hanging_transaction_is_ended_by_the_marker_of_an_administrator(tmp_path: Path, version: int) -> None:
    """The requests are those of ``kafka-transactions abort`` (KIP-664)."""
    with EmbeddedBroker(tmp_path, options={"transaction.partition.verification.enable": "false"}) as broker:
        create_topic(broker, "t", retention_ms="-1")
        batch = build_rows_batch(
            [Record(value=b"hangs", timestamp_ms=1)],
            producer_id=4711,
            producer_epoch=3,
            base_sequence=0,
            is_transactional=True,
        )
        data = TopicProduceData(name="t", partition_data=(PartitionProduceData(index=0, records=bytes(batch)),))
        produce = ProduceRequest(transactional_id="ghost", acks=-1, timeout_ms=1000, topic_data=(data,))
        with KafkaWire(broker) as wire:
            assert not wire.call(produce, 9).responses[0].partition_responses[0].error_code

            def producer_of_t() -> Any:
                request = DescribeProducersRequest(topics=(TopicRequest(name="t", partition_indexes=(0,)),))
                (found,) = wire.call(request, 0).topics[0].partitions[0].active_producers
                return found

            def abort(epoch: int) -> int:
                marker = WritableTxnMarker(
                    producer_id=4711,
                    producer_epoch=epoch,
                    transaction_result=False,
                    topics=(WritableTxnMarkerTopic(name="t", partition_indexes=(0,)),),
                    coordinator_epoch=producer_of_t().coordinator_epoch,
                )
                answer = wire.call(WriteTxnMarkersRequest(markers=(marker,)), version)
                code: int = answer.markers[0].topics[0].partitions[0].error_code
                return code

            assert producer_of_t().current_txn_start_offset == 0
            assert abort(2) == InvalidProducerEpochError.code
            assert abort(3) == 0
            assert producer_of_t().current_txn_start_offset == -1
        send(producer(broker), "t", [{"value": b"later"}])
        assert _committed(broker, "t", 1) == [b"later"]
