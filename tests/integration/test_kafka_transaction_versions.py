"""Tests of Kafka's transaction version 2.

Each transaction has another epoch, and no call adds partitions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from millrace.errors import (
    AbortableTransactionError,
    ConcurrentTransactionsError,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from millrace.kafka_protocol.calls.add_offsets_to_txn import AddOffsetsToTxnRequest
from millrace.kafka_protocol.calls.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from millrace.kafka_protocol.calls.api_versions import ApiVersionsRequest
from millrace.kafka_protocol.calls.end_txn import EndTxnRequest
from millrace.kafka_protocol.calls.init_producer_id import InitProducerIdRequest
from millrace.kafka_protocol.calls.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millrace.kafka_protocol.calls.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millrace.kafka_protocol.calls.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from millrace.records import Record, build_rows_batch
from millrace_broker.testing import EmbeddedBroker

from .kafka_clients import consumer, create_topic, read
from .kafka_wire import KafkaWire, find_coordinator, join_consumer_group
from .passing_time import pass_time
from .waiting import Stall, eventually


class Producer(NamedTuple):
    """A producer whose requests are written by hand."""

    wire: KafkaWire
    name: str
    producer_id: int
    epoch: int

    def send(self, topic: str, value: bytes, *, sequence: int = 0, version: int = 12) -> int:
        """Send a batch, retry while the last transaction is being completed, and return the error code."""
        request = self.request(topic, value, sequence=sequence)
        return self._retried(lambda: self.wire.call(request, version).responses[0].partition_responses[0].error_code)

    def request(self, topic: str, value: bytes, *, sequence: int = 0, partitions: int = 1) -> ProduceRequest:
        batch = build_rows_batch(
            [Record(value=value, timestamp_ms=1)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        data = tuple(PartitionProduceData(index=number, records=bytes(batch)) for number in range(partitions))
        return ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=1000,
            topic_data=(TopicProduceData(name=topic, partition_data=data),),
        )

    def end(self, *, committed: bool = True, version: int = 5) -> Producer:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=committed
        )
        answers: list[Any] = []

        def call() -> int:
            answers.append(self.wire.call(request, version))
            code: int = answers[-1].error_code
            return code

        assert self._retried(call) == 0
        if version < 5:
            return self
        return self._replace(producer_id=answers[-1].producer_id, epoch=answers[-1].producer_epoch)

    def commit_offset(self, group: str, topic: str, offset: int, **member: Any) -> int:
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(partition,)),),
            **member,
        )
        return self._retried(lambda: self.wire.call(request, 5).topics[0].partitions[0].error_code)

    @staticmethod
    def _retried(call: Any) -> int:
        stall = Stall("the end of the last transaction")
        while (code := call()) == ConcurrentTransactionsError.code:
            stall.check()
        found: int = code
        return found


def _producer(wire: KafkaWire, name: str, timeout_ms: int = 60_000) -> Producer:
    find_coordinator(wire, 1, name)
    stall = Stall("the producer id")
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
    answer = wire.call(request, 5)
    while answer.error_code:
        stall.check()
        answer = wire.call(request, 5)
    return Producer(wire, name, answer.producer_id, answer.producer_epoch)


def _committed(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes]:
    reader = consumer(broker, topic, isolation_level="read_committed")
    reader.subscribe([topic])
    found = [each.value() for each in read(reader, count)]
    reader.close()
    return found


def test_the_version_is_a_feature_of_the_broker(module_broker: EmbeddedBroker) -> None:
    with KafkaWire(module_broker) as wire:
        features = [("group.version", 0, 1), ("share.version", 0, 1), ("transaction.version", 0, 2)]
        for version, ranges in ((3, []), (4, features)):
            answer = wire.call(ApiVersionsRequest(client_software_name="x", client_software_version="1"), version)
            assert [(each.name, each.min_version, each.max_version) for each in answer.supported_features] == ranges
            levels = {each.name: each.max_version_level for each in answer.finalized_features}
            assert levels == {"group.version": 1, "share.version": 1, "transaction.version": 2}
            assert answer.finalized_features_epoch >= 0


def test_the_first_records_add_their_partition_and_each_end_raises_the_epoch(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as wire:
        producer = _producer(wire, topic)
        for number in range(4):
            before = producer
            assert producer.send(topic, b"%d" % number) == 0
            assert producer.send(topic, b"%d" % number, sequence=1) == 0
            producer = producer.end(committed=bool(number % 2))
            assert (producer.producer_id, producer.epoch) == (before.producer_id, before.epoch + 1)
            assert before.send(topic, b"late", sequence=2) == InvalidProducerEpochError.code
    assert _committed(module_broker, topic, 4) == [b"1", b"1", b"3", b"3"]


def test_a_request_adds_all_of_its_partitions(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic, 20)
    with KafkaWire(module_broker) as wire:
        producer = _producer(wire, topic)
        answer = wire.call(producer.request(topic, b"x", partitions=20), 12)
        assert [each.error_code for each in answer.responses[0].partition_responses] == [0] * 20
        producer.end()
    assert len(_committed(module_broker, topic, 20)) == 20


def test_the_next_transaction_begins_while_the_last_one_is_completed(module_broker: EmbeddedBroker, topic: str) -> None:
    """The new transaction's first call waits until the markers are written, and these do not count as its own end."""
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as wire:
        find_coordinator(wire, 0, topic)
        producer = _producer(wire, topic)
        for number in range(20):
            assert producer.send(topic, b"x") == 0
            assert producer.commit_offset(topic, topic, number) == 0
            producer = producer.end()


def test_offsets_add_themselves_to_the_transaction(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    wanted = OffsetFetchRequestTopics(name=topic, partition_indexes=(0,))
    fetch = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=topic, topics=(wanted,)),), require_stable=True)
    with KafkaWire(module_broker) as wire:

        def offset() -> int:
            stall = Stall("the end of the transaction")
            while (found := wire.call(fetch, 9).groups[0].topics[0].partitions[0]).error_code:
                stall.check()
            committed: int = found.committed_offset
            return committed

        find_coordinator(wire, 0, topic)
        producer = _producer(wire, topic)
        assert producer.commit_offset(topic, topic, 5) == 0
        producer = producer.end(committed=False)
        assert offset() == -1
        assert producer.commit_offset(topic, topic, 7) == 0
        producer.end()
        assert offset() == 7


def test_offsets_with_an_old_member_epoch_are_refused_as_of_an_old_generation(
    module_broker: EmbeddedBroker, topic: str
) -> None:
    """Java's producer aborts the transaction then. At an error that it does not know, it fails for ever."""
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as wire:
        joined = join_consumer_group(wire, topic)
        producer = _producer(wire, topic)
        old = producer.commit_offset(topic, topic, 1, member_id="m", generation_id=joined.member_epoch + 1)
        assert old == IllegalGenerationError.code
        assert producer.commit_offset(topic, topic, 1, member_id="m", generation_id=joined.member_epoch) == 0
        producer.end()


@pytest.mark.parametrize(
    ("version", "error"), [(10, InvalidTxnStateError), (11, AbortableTransactionError)], ids=["before", "since"]
)
def test_a_partition_that_an_earlier_producer_did_not_add_is_refused_with_the_error_of_its_version(
    module_broker: EmbeddedBroker, topic: str, version: int, error: Any
) -> None:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as wire:
        producer = _producer(wire, topic)
        assert producer.send(topic, b"x", version=version) == error.code


def test_a_fenced_producer_adds_nothing(module_broker: EmbeddedBroker, topic: str) -> None:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as wire:
        find_coordinator(wire, 0, topic)
        first = _producer(wire, topic)
        second = _producer(wire, topic)
        assert first.send(topic, b"x") == InvalidProducerEpochError.code
        assert first.commit_offset(topic, topic, 1) == InvalidProducerEpochError.code
        assert second.send(topic, b"y") == 0
        second.end()
    assert _committed(module_broker, topic, 1) == [b"y"]


@pytest.mark.parametrize("version", range(6))
def test_a_fenced_producer_gets_the_error_that_its_version_knows(
    module_broker: EmbeddedBroker, topic: str, version: int
) -> None:
    create_topic(module_broker, topic)
    with KafkaWire(module_broker) as wire:
        first = _producer(wire, topic)
        _producer(wire, topic)
        identity: dict[str, Any] = {
            "transactional_id": topic,
            "producer_id": first.producer_id,
            "producer_epoch": first.epoch,
        }
        old_identity = {f"v3_and_below_{name}": value for name, value in identity.items()}
        topics = (AddPartitionsToTxnTopic(name=topic, partitions=(0,)),)

        def since(known: int) -> int:
            return (ProducerFencedError if version >= known else InvalidProducerEpochError).code

        if version >= 3:  # the first with the producer's identity
            init = InitProducerIdRequest(transaction_timeout_ms=60_000, **identity)
            assert wire.call(init, version).error_code == since(4)
        if version < 4:  # later versions are for brokers
            add = AddPartitionsToTxnRequest(v3_and_below_topics=topics, **old_identity)
            (answered,) = wire.call(add, version).results_by_topic_v3_and_below
            assert answered.results_by_partition[0].partition_error_code == since(2)
        if version < 5:
            assert wire.call(AddOffsetsToTxnRequest(group_id=topic, **identity), version).error_code == since(2)
        assert wire.call(EndTxnRequest(committed=True, **identity), version).error_code == since(2)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_coordinator_answers_a_producer_that_has_timed_out_as_a_fenced_one(
    module_broker: EmbeddedBroker, topic: str, version: int
) -> None:
    create_topic(module_broker, topic, 2)
    expected = (ProducerFencedError if version >= 2 else InvalidProducerEpochError).code
    with KafkaWire(module_broker) as wire:
        producer = _producer(wire, topic, timeout_ms=300_000)
        assert producer.send(topic, b"x") == 0
        pass_time(module_broker, 300)
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=topic,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=(AddPartitionsToTxnTopic(name=topic, partitions=(1,)),),
        )

        def code() -> int:
            (answered,) = wire.call(add, version).results_by_topic_v3_and_below
            found: int = answered.results_by_partition[0].partition_error_code
            return found

        eventually(lambda: code() not in (0, ConcurrentTransactionsError.code), "the timeout")
        assert code() == expected
        offsets = AddOffsetsToTxnRequest(
            transactional_id=topic, producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id=topic
        )
        assert wire.call(offsets, version).error_code == expected
