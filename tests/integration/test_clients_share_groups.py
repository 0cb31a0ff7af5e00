"""Tests of share group consumers against a real broker."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from millrace.clients import AcknowledgeType, Admin, ConsumerRecord, Producer, ShareConsumer, TopicPartition
from millrace.clients.membership.coordinator import Coordinator
from millrace.clients.schema_cache import SchemaCache
from millrace.errors import (
    ClientClosedError,
    InvalidGroupIdError,
    InvalidRecordStateError,
    MillraceError,
    UnreadableValueError,
    UsageError,
    WakeupError,
)
from millrace_broker.testing import EmbeddedBroker

from .passing_time import pass_time
from .waiting import AN_HOUR_MS, Stall

LOCK_S = 300
"""The lock of a record, for which the time passes at once."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    options = {
        "share.auto.offset.reset": "earliest",
        "group.share.heartbeat.interval.ms": "50",
        "group.share.session.timeout.ms": str(AN_HOUR_MS),
        "group.share.record.lock.duration.ms": str(LOCK_S * 1000),
        "group.share.delivery.count.limit": "3",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), options=options) as running:
        yield running


@pytest.fixture
def queue(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> Iterator[Queue]:
    made = Queue(broker, re.sub(r"\W+", "-", request.node.name))
    yield made
    for consumer in made.consumers:
        consumer.close()


class Queue:
    """A topic, and the consumers of one share group."""

    def __init__(self, broker: EmbeddedBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.consumers: list[ShareConsumer] = []

    def fill(self, records: int, partitions: int = 1) -> None:
        with Admin(self.broker.bootstrap_servers) as admin, Producer(self.broker.bootstrap_servers) as producer:
            admin.create_topic(self.name, partitions=partitions)
            for partition in range(partitions):
                producer.send_table(self.name, {"value": [b"%d" % n for n in range(records)]}, partition=partition)

    def consumer(self, mode: str = "explicit", **options: Any) -> ShareConsumer:
        named = {name.replace("_", "."): value for name, value in options.items()}
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": self.name,
                "share.acknowledgement.mode": mode,
                **named,
            }
        )
        consumer.subscribe(self.name)
        self.consumers.append(consumer)
        return consumer


def _next(consumer: ShareConsumer) -> list[ConsumerRecord]:
    stall = Stall("records")
    while not (records := list(consumer.poll(200))):
        stall.check()
    return records


def test_many_consumers_of_one_partition_get_each_record_once(queue: Queue) -> None:
    queue.fill(500)
    consumers = [queue.consumer("implicit", max_poll_records=10) for _ in range(3)]
    seen: Counter[int] = Counter()
    by_consumer: Counter[int] = Counter()
    stall = Stall("records")
    while len(seen) < 500:
        stall.check(len(seen))
        for number, consumer in enumerate(consumers):
            records = consumer.poll(20)
            by_consumer[number] += len(records)
            seen.update(record.offset for record in records)
    assert set(seen.values()) == {1}
    assert len(by_consumer) == 3


def test_released_records_are_delivered_again_and_rejected_ones_are_not(queue: Queue) -> None:
    queue.fill(3)
    consumer = queue.consumer()
    first, second, third = _next(consumer)
    assert first.delivery_count == 1
    consumer.acknowledge(first)
    consumer.acknowledge(second, AcknowledgeType.RELEASE)
    consumer.acknowledge(third, AcknowledgeType.REJECT)
    assert consumer.commit() == {TopicPartition(queue.name, 0): None}
    (again,) = _next(consumer)
    assert (again.offset, again.delivery_count) == (1, 2)
    consumer.acknowledge(again, AcknowledgeType.RELEASE)
    (again,) = _next(consumer)
    assert again.delivery_count == 3
    # After group.share.delivery.count.limit deliveries no member gets the record.
    consumer.acknowledge(again, AcknowledgeType.RELEASE)
    assert not consumer.poll(300)


def test_a_loop_accepts_only_the_records_that_it_got(queue: Queue) -> None:
    queue.fill(10)
    consumer = queue.consumer("implicit")
    got = []
    for record in consumer:
        got.append(record.offset)
        if len(got) == 2:
            assert consumer.commit() == {TopicPartition(queue.name, 0): None}
        if len(got) == 4:
            break
    assert got == [0, 1, 2, 3]
    again = _next(consumer)
    assert [(record.offset, record.delivery_count) for record in again] == [(offset, 2) for offset in range(4, 10)]


def test_after_the_break_of_a_loop_no_unseen_record_must_be_acknowledged(queue: Queue) -> None:
    queue.fill(5)
    consumer = queue.consumer("explicit")
    for record in consumer:
        consumer.acknowledge(record)
        break
    assert [record.offset for record in _next(consumer)] == [1, 2, 3, 4]


def test_records_that_are_not_acknowledged_in_time_are_delivered_again(queue: Queue) -> None:
    queue.fill(1)
    slow, quick = queue.consumer(), queue.consumer()
    (record,) = _next(slow)
    pass_time(queue.broker, LOCK_S)
    (again,) = _next(quick)
    assert (again.offset, again.delivery_count) == (record.offset, 2)
    slow.acknowledge(record)
    (error,) = slow.commit().values()
    assert isinstance(error, InvalidRecordStateError)
    quick.acknowledge(again)
    assert quick.commit() == {TopicPartition(queue.name, 0): None}


def test_closing_gives_back_what_was_not_acknowledged(queue: Queue) -> None:
    queue.fill(2)
    first = queue.consumer()
    one, _ = _next(first)
    first.acknowledge(one)
    first.close()
    (record,) = _next(queue.consumer())
    assert (record.offset, record.delivery_count) == (1, 2)


def test_explicit_acknowledgement_requires_one_for_every_record(queue: Queue) -> None:
    queue.fill(2)
    consumer = queue.consumer()
    one, two = _next(consumer)
    consumer.acknowledge(one)
    with pytest.raises(UsageError, match="1 records of the last poll were not acknowledged"):
        consumer.poll(0)
    consumer.acknowledge(two)
    with pytest.raises(UsageError, match="GAP is for offsets without a record"):
        consumer.acknowledge(two, AcknowledgeType.GAP)
    with pytest.raises(UsageError, match="ACCEPT, RELEASE or REJECT, not 9"):
        consumer.acknowledge(two, 9)  # type: ignore[arg-type]
    consumer.commit()
    with pytest.raises(InvalidRecordStateError, match="not acquired by this consumer"):
        consumer.acknowledge(two)
    assert not consumer.poll(100)


def test_the_next_poll_sends_acknowledgements_and_calls_the_callback(queue: Queue) -> None:
    queue.fill(4, partitions=2)
    told: list[tuple[TopicPartition, MillraceError | None]] = []
    consumer = ShareConsumer(
        {
            "bootstrap.servers": queue.broker.bootstrap_servers,
            "group.id": queue.name,
            "max.poll.records": "1",
        },
        on_acknowledged=lambda partition, error: told.append((partition, error)),
    )
    queue.consumers.append(consumer)
    consumer.subscribe([queue.name])
    seen = [(record.partition, record.offset) for _ in range(8) for record in [_next(consumer)[0]]]
    assert sorted(set(seen)) == [(partition, offset) for partition in (0, 1) for offset in range(4)]
    consumer.commit()
    assert told
    assert {error for _, error in told} == {None}
    with pytest.raises(UsageError, match=r"share\.acknowledgement\.mode=explicit"):
        consumer.acknowledge(ConsumerRecord(queue.name, 0, 0, 0, None, b""))


def test_share_groups_are_described(queue: Queue) -> None:
    queue.fill(1)
    consumer = queue.consumer()
    _next(consumer)
    with Admin(queue.broker.bootstrap_servers) as admin:
        described = admin.describe_group(queue.name)
        assert (described.type, described.state) == ("share", "Stable")
        assert described.members[0].partitions == (TopicPartition(queue.name, 0),)
        assert queue.name in {group.group_id for group in admin.list_groups(types=["share"])}


def test_misuse_is_refused_with_the_reason(queue: Queue) -> None:
    queue.fill(0)
    with pytest.raises(InvalidGroupIdError, match=r"set group\.id"):
        ShareConsumer({"bootstrap.servers": "localhost:1"})
    consumer = ShareConsumer({"bootstrap.servers": queue.broker.bootstrap_servers, "group.id": queue.name})
    with pytest.raises(UsageError, match="subscribe to topics first"):
        consumer.poll()
    with pytest.raises(UsageError, match="at least one topic"):
        consumer.subscribe([])
    consumer.subscribe(queue.name)
    timer = threading.Timer(0.2, consumer.wakeup)
    timer.start()
    with pytest.raises(WakeupError):
        consumer.poll(60_000)
    timer.join()
    consumer.close()
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.poll()


def test_a_wakeup_while_a_poll_decodes_records_keeps_their_delivery(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(queue.broker.bootstrap_servers) as admin, Producer(queue.broker.bootstrap_servers) as producer:
        admin.create_topic(queue.name, partitions=1, schema="id BIGINT")
        producer.send_table(queue.name, [{"id": 1}])
    consumer = queue.consumer()
    look_up, calls = SchemaCache.schema_of, iter([consumer.wakeup])

    def schema_of(cache: SchemaCache, schema_id: int) -> pa.Schema:
        next(calls, lambda: None)()
        return look_up(cache, schema_id)

    monkeypatch.setattr(SchemaCache, "schema_of", schema_of)
    with pytest.raises(WakeupError):
        _next(consumer)
    (record,) = consumer.poll(0)
    assert (record.value, record.delivery_count) == ({"id": 1}, 1)
    consumer.acknowledge(record)
    assert consumer.commit() == {TopicPartition(queue.name, 0): None}


def test_a_wakeup_during_a_commit_keeps_the_acknowledgements(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.fill(1)
    consumer = queue.consumer()
    (record,) = _next(consumer)
    consumer.acknowledge(record)
    look_up, calls = Coordinator.address, iter([consumer.wakeup])

    def address(coordinator: Coordinator, timeout_ms: int | None = None) -> str:
        if consumer._signal.is_mine and (call := next(calls, None)):
            coordinator.forget()
            call()
        return look_up(coordinator, timeout_ms)

    monkeypatch.setattr(Coordinator, "address", address)
    with pytest.raises(WakeupError):
        consumer.commit()
    assert consumer.commit() == {TopicPartition(queue.name, 0): None}


def test_records_beside_a_value_that_python_does_not_have_are_delivered(queue: Queue) -> None:
    with Admin(queue.broker.bootstrap_servers) as admin, Producer(queue.broker.bootstrap_servers) as producer:
        admin.create_topic(queue.name, partitions=1, schema="day DATE")
        days = pa.array([19_000, 2_932_897, 19_001], pa.int32()).cast(pa.date32())
        producer.send_table(queue.name, pa.table({"day": days})).result()
    consumer = queue.consumer("implicit")
    assert [record.offset for record in _next(consumer)] == [0, 2]
    with pytest.raises(UnreadableValueError, match="offset 1"):
        _next(consumer)
