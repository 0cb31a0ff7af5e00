"""Tests of transactions on a real broker over gRPC, as raw calls.

They cover the rules for producers and the records that readers see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from millrace import errors
from millrace.protocol import millrace_pb2 as pb
from millrace_broker.testing import EmbeddedBroker

from .transaction_calls import (
    COMMITTED,
    UNCOMMITTED,
    Producer,
    committed,
    describe,
    fetch,
    together,
    values_of,
    wait_for_state,
)
from .waiting import AN_HOUR_MS, STALL_S, eventually


@pytest.fixture
def producer(calls: Any) -> Producer:
    return Producer(calls).init()


# --- reads -----------------------------------------------------------------------------------------------------------


def test_readers_of_committed_records_see_what_was_committed_once_it_is(
    calls: Any, topic: str, producer: Producer
) -> None:
    calls.create(topic)
    calls.produce(topic, calls.batch(b"before"))
    producer.write(topic, b"a1", b"a2")
    calls.produce(topic, calls.batch(b"between"))
    open_now = fetch(calls, topic)
    assert (open_now.last_stable_offset, open_now.high_watermark) == (1, 4)
    assert values_of(open_now) == [b"before"], "the response ends where the open transaction begins"
    assert values_of(fetch(calls, topic, UNCOMMITTED)) == [b"before", b"a1", b"a2", b"between"]
    assert values_of(fetch(calls, topic, offset=2)) == [], (
        "after the start of the open transaction there is nothing yet"
    )
    producer.end()
    assert committed(calls, topic) == [b"before", b"a1", b"a2", b"between"]


def test_fetches_of_committed_records_name_aborted_transactions(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic)
    other = Producer(calls).init()
    producer.write(topic, b"a1")
    other.write(topic, b"b1")
    producer.send(topic, b"a2")
    producer.end(committed=False)
    other.end()
    assert committed(calls, topic) == [b"b1"]
    fetched = fetch(calls, topic)
    aborted = [(each.first_offset, each.last_offset) for each in fetched.aborted_transactions]
    assert aborted == [(0, 3)]
    assert not fetch(calls, topic, UNCOMMITTED).aborted_transactions
    assert values_of(fetch(calls, topic, UNCOMMITTED)) == [b"a1", b"b1", b"a2"]


def test_ranges_and_offsets_end_before_what_is_not_decided(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic)
    producer.write(topic, b"a")
    producer.end(committed=False)
    calls.produce(topic, calls.batch(b"plain"))
    wait_for_state(calls, producer.name, "CompleteAbort")
    producer.write(topic, b"open")

    def latest(level: Any) -> int:
        wanted = pb.ListOffsetsRequest.PartitionTime(partition=0, timestamp=-1)
        times = pb.ListOffsetsRequest.TopicTimes(name=topic, partitions=[wanted])
        request = pb.ListOffsetsRequest(isolation_level=level, topics=[times])
        return int(calls.call("ListOffsets", request).topics[0].partitions[0].offset)

    assert (latest(COMMITTED), latest(UNCOMMITTED)) == (3, 4)
    located = calls.call(
        "LocateRange", pb.LocateRangeRequest(topic=topic, start_offset=0, end_offset=-1, isolation_level=COMMITTED)
    )
    assert (located.extents[0].start_offset, located.extents[-1].end_offset) == (0, 3)
    assert [(each.first_offset, each.last_offset) for each in located.aborted_transactions] == [(0, 1)]
    read = pb.ReadRangeRequest(topic=topic, start_offset=0, end_offset=3, isolation_level=COMMITTED)
    first, *others = calls.stub.ReadRange(read, timeout=STALL_S)
    for chunk in others:
        assert not chunk.aborted_transactions, "the first one has reported it"
        first.records += chunk.records
    assert values_of(first) == [b"plain"]
    beyond = pb.ReadRangeRequest(topic=topic, start_offset=0, end_offset=4, isolation_level=COMMITTED)
    with pytest.raises(Exception, match="can be read up to offset 3"):
        list(calls.stub.ReadRange(beyond, timeout=STALL_S))
    producer.end()


def test_a_waiting_reader_of_committed_records_is_woken_by_the_commit(
    calls: Any, calls_to: Callable[[str], Any], module_broker: EmbeddedBroker, topic: str, producer: Producer
) -> None:
    calls.create(topic)
    producer.write(topic, b"a")
    answers: list[Any] = []
    own = calls_to(module_broker.bootstrap_servers)
    reader = threading.Thread(target=lambda: answers.append(fetch(own, topic, max_wait_ms=AN_HOUR_MS)))
    reader.start()
    eventually(lambda: module_broker.server.broker.waiters.committed_fetches.statistics().delayed > 0)
    producer.send(topic, b"b")
    assert not answers, "records of open transactions wake no fetch"
    producer.end()
    reader.join(STALL_S)
    assert values_of(answers[0]) == [b"a", b"b"]


# --- producers -------------------------------------------------------------------------------------------------------


def test_the_end_raises_the_epoch_and_may_be_repeated(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic)
    first = (producer.id, producer.epoch)
    producer.write(topic, b"a")
    producer.end()
    second = (producer.id, producer.epoch)
    assert second == (first[0], first[1] + 1)
    producer.id, producer.epoch = first
    assert isinstance(producer.end_error(committed=False), errors.InvalidTxnStateError)
    assert (producer.end().id, producer.epoch) == second, "the answer was lost"
    producer.write(topic, b"b")
    producer.end()
    assert committed(calls, topic) == [b"a", b"b"]
    assert isinstance(producer.end_error(), errors.InvalidTxnStateError), "no transaction is open"


def test_records_outside_of_what_was_added_are_refused(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic, 2)
    assert producer.send(topic, b"a").error.code == errors.AbortableTransactionError.code
    assert producer.send(topic, b"b", name="unknown").error.code == errors.InvalidProducerIdMappingError.code
    producer.write(topic, b"a")
    assert producer.send(topic, b"b", partition=1).error.code == errors.AbortableTransactionError.code
    assert producer.send(topic, b"c", name="").error.code == errors.InvalidRequestError.code
    assert producer.send(topic, b"e", is_transactional=False).error.code == errors.InvalidTxnStateError.code
    producer.end()
    assert committed(calls, topic) == [b"a"]
    assert committed(calls, topic, 1) == []
    epoch_before = Producer(calls, producer.name)
    epoch_before.id, epoch_before.epoch = producer.id, producer.epoch - 1
    assert epoch_before.send(topic, b"late").error.code == errors.InvalidProducerEpochError.code


def test_partitions_are_added_all_or_none(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic)
    missing, skipped = errors.UnknownTopicOrPartitionError.code, errors.OperationNotAttemptedError.code
    assert producer.add(topic, 0, 7) == [skipped, missing]
    assert producer.add("__consumer_offsets", 0) == [errors.InvalidTopicError.code]
    assert describe(calls, producer.name).state == "Empty"


def test_a_second_producer_aborts_and_fences_the_first(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic)
    producer.write(topic, b"first")
    second = Producer(calls, producer.name).init()
    assert second.id == producer.id
    assert second.epoch > producer.epoch
    second.write(topic, b"second")
    assert producer.send(topic, b"zombie").error.code == errors.InvalidProducerEpochError.code
    request = pb.AddPartitionsToTxnRequest(topics=[pb.TopicPartitions(name=topic, partitions=[0])], **producer.fields)
    assert isinstance(calls.error("AddPartitionsToTxn", request), errors.ProducerFencedError)
    assert isinstance(producer.end_error(), errors.ProducerFencedError)
    with pytest.raises(errors.ProducerFencedError):
        producer.init(keeps=True)
    second.end()
    assert committed(calls, topic) == [b"second"]


def test_a_producer_continues_after_an_error(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic)
    producer.write(topic, b"doubtful")
    before = producer.epoch
    producer.init(keeps=True)
    assert producer.epoch == before + 1
    producer.write(topic, b"sure")
    producer.end()
    assert committed(calls, topic) == [b"sure"]


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_continues(calls: Any, topic: str) -> None:
    calls.create(topic)
    slow = Producer(calls, timeout_ms=100).init()
    assert slow.add(topic) == [0]
    slow.send(topic, b"slow")  # in time or not
    wait_for_state(calls, slow.name, "CompleteAbort")
    assert isinstance(slow.end_error(), errors.InvalidTxnStateError)
    assert slow.send(topic, b"later").error.code == errors.InvalidProducerEpochError.code
    before = slow.epoch
    slow.end(committed=False)
    assert slow.epoch == before + 1
    slow.timeout_ms = 60_000
    slow.init(keeps=True).write(topic, b"in time")
    slow.end()
    assert committed(calls, topic) == [b"in time"]


def test_wrong_requests_have_errors_of_their_own(calls: Any, topic: str, producer: Producer) -> None:
    for fields, error in [
        ({"transaction_timeout_ms": 900_001}, errors.InvalidTransactionTimeoutError),
        ({"transaction_timeout_ms": 0}, errors.InvalidTransactionTimeoutError),
        ({"producer_id": 5}, errors.InvalidRequestError),
    ]:
        request: dict[str, Any] = {
            "transactional_id": "t",
            "transaction_timeout_ms": 1000,
            "producer_id": -1,
            "producer_epoch": -1,
        } | fields
        assert isinstance(calls.error("InitProducerId", pb.InitProducerIdRequest(**request)), error)
    unknown = Producer(calls)
    unknown.id, unknown.epoch = producer.id, producer.epoch
    assert isinstance(unknown.end_error(), errors.InvalidProducerIdMappingError)
    unknown.name = ""
    assert isinstance(unknown.end_error(), errors.InvalidRequestError)
    producer.id += 1
    assert isinstance(producer.end_error(), errors.InvalidProducerIdMappingError)


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_offsets_count_with_the_transaction(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic)
    group = f"group-{topic}"

    def commit(offset: int) -> None:
        calls.call("AddOffsetsToTxn", pb.AddOffsetsToTxnRequest(group_id=group, **producer.fields))
        offsets = [pb.CommittedOffset(partition=0, offset=offset, leader_epoch=-1)]
        topics = [pb.TopicCommits(name=topic, partitions=offsets)]
        request = pb.TxnOffsetCommitRequest(group_id=group, generation_id=-1, topics=topics, **producer.fields)
        answer = calls.call("TxnOffsetCommit", request)
        assert [each.error.code for each in answer.topics[0].partitions] == [0]

    def offset() -> int:
        wanted = pb.OffsetFetchRequest.Group(group_id=group, topics=[pb.TopicPartitions(name=topic, partitions=[0])])
        answer = calls.call("OffsetFetch", pb.OffsetFetchRequest(groups=[wanted]))
        return int(answer.groups[0].topics[0].partitions[0].committed.offset)

    calls.call("FindCoordinator", pb.FindCoordinatorRequest(key_type=pb.GROUP, keys=[group]))
    request = pb.TxnOffsetCommitRequest(group_id=group, generation_id=-1, **producer.fields)
    eventually(lambda: not isinstance(calls.error("TxnOffsetCommit", request), errors.CoordinatorLoadInProgressError))
    assert isinstance(calls.error("TxnOffsetCommit", request), errors.AbortableTransactionError), (
        "the partition was not added"
    )
    commit(5)
    assert offset() == -1
    producer.end()
    wait_for_state(calls, producer.name, "CompleteCommit")
    assert offset() == 5
    commit(9)
    producer.end(committed=False)
    wait_for_state(calls, producer.name, "CompleteAbort")
    assert offset() == 5


# --- several together ------------------------------------------------------------------------------------------------


def test_several_producers_are_committed_together_and_once(calls: Any, topic: str) -> None:
    calls.create(topic, 3)
    query = f"query-{topic}"
    winners = [Producer(calls, f"{topic}-{n}", query).init() for n in range(2)]
    loser = Producer(calls, f"{topic}-loser", query).init()
    for number, each in enumerate([*winners, loser]):
        each.write(topic, b"%d" % number, partition=number)
    answer = calls.call("CommitTransactions", together(query, 4, winners, [loser]))
    assert (answer.was_committed_before, answer.last_committed_epoch) == (False, 4)
    assert [committed(calls, topic, n) for n in range(3)] == [[b"0"], [b"1"], []]

    again = [each.init() for each in winners]
    for number, each in enumerate(again):
        each.write(topic, b"again", partition=number)
    for epoch in (4, 3):
        answer = calls.call("CommitTransactions", together(query, epoch, again))
        assert (answer.was_committed_before, answer.last_committed_epoch) == (True, 4)
    assert [committed(calls, topic, n) for n in range(3)] == [[b"0"], [b"1"], []]
    answer = calls.call("CommitTransactions", together(query, 5, []))
    assert (answer.was_committed_before, answer.last_committed_epoch) == (False, 5)


def test_no_producer_is_committed_if_one_of_them_cannot_be(calls: Any, topic: str) -> None:
    calls.create(topic, 2)
    query = f"query-{topic}"
    one, two = (Producer(calls, f"{topic}-{n}", query).init() for n in range(2))
    elsewhere = Producer(calls, f"{topic}-elsewhere").init()
    one.write(topic, b"one")
    for other in (two, elsewhere):
        refused = calls.error("CommitTransactions", together(query, 1, [one, other]))
        assert isinstance(refused, errors.InvalidTxnStateError)
        assert other.name in refused.message
    two.write(topic, b"two", partition=1)
    fenced = Producer(calls, two.name, query)
    fenced.id, fenced.epoch = two.id, two.epoch
    two.init()
    assert isinstance(calls.error("CommitTransactions", together(query, 1, [one, fenced])), errors.InvalidTxnStateError)
    assert describe(calls, one.name).state == "Ongoing"
    assert isinstance(calls.error("CommitTransactions", together(query, 1, [one, one])), errors.InvalidRequestError)
    assert isinstance(calls.error("CommitTransactions", together("", 1, [one])), errors.InvalidRequestError)
    assert not calls.call("CommitTransactions", together(query, 1, [one], [fenced])).was_committed_before
    assert [committed(calls, topic, n) for n in range(2)] == [[b"one"], []]


# --- queries, and hanging transactions -------------------------------------------------------------------------------


def test_transactions_and_producers_are_described(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic, 2)
    producer.write(topic, b"a", b"b", partition=1)
    described = describe(calls, producer.name)
    assert (described.state, described.timeout_ms) == ("Ongoing", 60_000)
    assert (described.producer_id, described.producer_epoch) == (producer.id, producer.epoch)
    assert [(each.name, list(each.partitions)) for each in described.topics] == [(topic, [1])]
    assert described.start_time_ms > 0

    def listed(**filters: Any) -> dict[str, str]:
        answer = calls.call("ListTransactions", pb.ListTransactionsRequest(**filters))
        return {each.transactional_id: each.state for each in answer.transactions}

    assert listed()[producer.name] == "Ongoing"
    assert listed(states=["Ongoing"], producer_ids=[producer.id]) == {producer.name: "Ongoing"}
    assert producer.name not in listed(states=["Empty"])
    assert producer.name not in listed(duration_ms_min=600_000)
    unknown = calls.call("ListTransactions", pb.ListTransactionsRequest(states=["Ongoing", "Sleeping"]))
    assert list(unknown.unknown_states) == ["Sleeping"]

    request = pb.DescribeProducersRequest(topics=[pb.TopicPartitions(name=topic, partitions=[0, 1, 9])])
    empty, written, missing = calls.call("DescribeProducers", request).topics[0].partitions
    assert not empty.producers
    (entry,) = written.producers
    assert (entry.producer_id, entry.last_sequence, entry.transaction_start_offset) == (producer.id, 1, 0)
    assert missing.error.code == errors.UnknownTopicOrPartitionError.code
    producer.end()
    described = wait_for_state(calls, producer.name, "CompleteCommit")
    assert (described.start_time_ms, list(described.topics)) == (-1, [])
    assert describe(calls, "nobody").error.code == errors.TransactionalIdNotFoundError.code


def test_a_hanging_transaction_can_be_aborted(tmp_path: Any, calls_to: Callable[[str], Any], topic: str) -> None:
    with EmbeddedBroker(tmp_path / "data", transaction_partition_verification_enable=False) as broker:
        calls = calls_to(broker.bootstrap_servers)
        calls.create(topic)
        producer = Producer(calls).init()
        assert not producer.send(topic, b"hangs").error.code, "no broker knows this partition"
        calls.produce(topic, calls.batch(b"behind it"))
        assert fetch(calls, topic).last_stable_offset == 0
        marker = pb.WriteTxnMarkersRequest.Marker(
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=False,
            coordinator_epoch=0,
            topics=[pb.TopicPartitions(name=topic, partitions=[0, 5])],
        )
        answer = calls.call("WriteTxnMarkers", pb.WriteTxnMarkersRequest(markers=[marker]))
        codes = [each.error.code for each in answer.results[0].topics[0].partitions]
        assert codes == [0, errors.UnknownTopicOrPartitionError.code]
        assert committed(calls, topic) == [b"behind it"]


def test_a_marker_that_comes_late_does_not_end_the_next_transaction(calls: Any, topic: str, producer: Producer) -> None:
    calls.create(topic)
    producer.write(topic, b"first")
    producer.end()
    producer.write(topic, b"second")
    late = pb.WriteTxnMarkersRequest.Marker(
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=True,
        coordinator_epoch=0,
        transaction_version=2,
        topics=[pb.TopicPartitions(name=topic, partitions=[0])],
    )
    answer = calls.call("WriteTxnMarkers", pb.WriteTxnMarkersRequest(markers=[late]))
    assert answer.results[0].topics[0].partitions[0].error.code == errors.InvalidProducerEpochError.code
    producer.end(committed=False)
    assert committed(calls, topic) == [b"first"]


def test_statistics_count_open_and_committed_transactions(
    calls: Any, module_broker: EmbeddedBroker, topic: str, producer: Producer
) -> None:
    calls.create(topic)
    before = module_broker.server.broker.statistics().transactions
    producer.write(topic, b"a")
    assert module_broker.server.broker.statistics().transactions.by_state["Ongoing"] >= 1
    producer.end()
    wait_for_state(calls, producer.name, "CompleteCommit")
    after = module_broker.server.broker.statistics().transactions
    assert after.ended["committed"] == before.ended.get("committed", 0) + 1
