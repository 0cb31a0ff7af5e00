"""Tests that the decoding of records of typed topics delays no others."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from millrace.clients import Admin
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.payloads import RecordCodec
from millrace.records import Record, build_rows_batch
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import consumer, producer, read, send
from .kafka_wire import KafkaWire
from .waiting import STALL_S, eventually

_INVALID_RECORD = 87
_JSON = {"kafka.value.format": "json"}


def _produce(broker: EmbeddedBroker, topic: str, partitions: dict[int, list[bytes]]) -> list[Any]:
    """Send a batch of values to each partition in one request, and return their answers."""
    data = tuple(
        PartitionProduceData(
            index=partition, records=build_rows_batch([Record(value=value, timestamp_ms=5) for value in values])
        )
        for partition, values in partitions.items()
    )
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=(TopicProduceData(name=topic, partition_data=data),)
    )
    with KafkaWire(broker) as wire:
        return list(wire.call(request, 9).responses[0].partition_responses)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_other_topics_are_written_and_read_while_all_threads_for_decoding_are_busy(
    module_broker: EmbeddedBroker, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    typed, count = f"{topic}-typed", 8
    admin.create_topic(typed, partitions=count, schema="a BIGINT", configs=_JSON)
    admin.create_topic(topic, partitions=1)
    gate, decoding = threading.Event(), list[str]()
    decode = RecordCodec.decode

    def blocked(*args: Any, **options: Any) -> Any:
        decoding.append(threading.current_thread().name)
        assert gate.wait(STALL_S)
        return decode(*args, **options)

    monkeypatch.setattr(RecordCodec, "decode", blocked)
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(_produce, module_broker, typed, {at: [b'{"a":1.0}']}) for at in range(count)]
        try:
            eventually(lambda: len(decoding) >= 2, "two threads to decode")
            values = [b"v%d" % number + b"-" * 1000 for number in range(2000)]
            sent = send(
                producer(module_broker, compression_type=compression), topic, [{"value": each} for each in values]
            )
            assert [each.error() for each in sent] == [None] * len(values)
            reader = consumer(module_broker, topic)
            reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            assert [each.value() for each in read(reader, len(values))] == values
            reader.close()
            assert not any(answer.done() for answer in answers)
        finally:
            gate.set()
        assert [answer.result(STALL_S)[0].error_code for answer in answers] == [0] * count
    assert len(decoding) == count


def test_the_bad_records_of_a_request_are_named_up_to_a_limit(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=3, schema="a BIGINT", configs=_JSON)
    some, many = [b'{"a":1}', b"{"] * 3_000, [b'{"a":"x"}'] * 30_000
    first, second, third = _produce(module_broker, topic, {0: some, 1: many, 2: some})
    assert {each.error_code for each in (first, second, third)} == {_INVALID_RECORD}
    assert [each.batch_index for each in first.record_errors] == list(range(1, 6_000, 2))
    assert [each.batch_index for each in second.record_errors] == list(range(7_000))
    assert [each.batch_index for each in third.record_errors] == []
    assert third.error_message.startswith("3000 of the 6000 records of a batch do not fit")
    assert second.error_message.startswith("at least ")
    assert 'record 0: a: "x" is not a valid BIGINT' in second.error_message
