"""Tests of polls in which an error occurs between records.

No record is lost, and the error is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, Producer, TopicPartition
from millrace.clients.metadata import MetadataCache
from millrace.clients.model import TopicDescription
from millrace.clients.schema_cache import SchemaCache
from millrace.errors import (
    BrokerUnavailableError,
    CorruptBatchError,
    LeaderNotAvailableError,
    RequestTimedOutError,
    UnreadableValueError,
    WakeupError,
)
from millrace_broker.testing import EmbeddedBroker

from .waiting import AN_HOUR_MS, STALL_S, eventually

Poll = Callable[[Consumer], list[int]]


def _poll_records(consumer: Consumer) -> list[int]:
    return [record.offset for record in consumer.poll(int(STALL_S * 1000))]


def _poll_table(consumer: Consumer) -> list[int]:
    offsets: list[int] = consumer.poll_table(int(STALL_S * 1000), metadata=["__offset"])["__offset"].to_pylist()
    return offsets


@pytest.fixture(params=[_poll_records, _poll_table])
def poll(request: pytest.FixtureRequest) -> Poll:
    chosen: Poll = request.param
    return chosen


def _consumer(broker: EmbeddedBroker, *topics: str, api_timeout_ms: int = AN_HOUR_MS) -> Consumer:
    options = {"auto.offset.reset": "earliest", "direct.reads": "never", "default.api.timeout.ms": api_timeout_ms}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **options})
    consumer.assign([(topic, 0) for topic in topics])
    return consumer


def _prefetch(consumer: Consumer) -> None:
    """Wait until records of all partitions are fetched, without returning them."""
    states = consumer._assignment.states()

    def is_fetched() -> bool:
        consumer._poller.wait_for_data(0)
        return all(state.waiting for state in states)

    eventually(is_fetched)


def _wake_at_first_look_up(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``wakeup`` just before the first look-up of a schema, as another thread may."""
    look_up, calls = SchemaCache.schema_of, iter([consumer.wakeup])

    def schema_of(cache: SchemaCache, schema_id: int) -> pa.Schema:
        next(calls, lambda: None)()
        return look_up(cache, schema_id)

    monkeypatch.setattr(SchemaCache, "schema_of", schema_of)


def _first_is(consumer: Consumer, topic: str) -> None:
    """Rotate the partitions, so that the next poll reads this topic first."""
    while consumer.assignment()[0].topic != topic:
        consumer._assignment.ready()


def test_a_corrupt_batch_is_an_error_until_a_seek_past_it(tmp_path: Path, poll: Poll) -> None:
    with EmbeddedBroker(tmp_path) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("damaged", partitions=1)
        with Producer(broker.bootstrap_servers) as producer:
            for number in range(5):
                producer.send("damaged", b"record-%d" % number).result(STALL_S)
        (segment,) = tmp_path.glob("**/damaged-0/*.log")
        with segment.open("r+b") as file:
            file.seek(segment.read_bytes().index(b"record-2"))
            file.write(b"R")
        with _consumer(broker, "damaged") as consumer:
            assert poll(consumer) == [0, 1]
            for _ in range(2):
                with pytest.raises(CorruptBatchError):
                    poll(consumer)
                assert consumer.position(("damaged", 0)) == 2
            consumer.seek(("damaged", 0), 3)
            assert poll(consumer) == [3, 4]


def test_a_wakeup_during_a_schema_look_up_loses_no_records(
    module_broker: EmbeddedBroker, admin: Admin, poll: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"woken{poll.__name__}"
    admin.create_topic(topic, partitions=1, schema=pa.schema([("id", pa.int64())]))
    with Producer(module_broker.bootstrap_servers) as producer:
        for number in range(3):
            producer.send_table(topic, [{"id": number}]).result(STALL_S)
    with _consumer(module_broker, topic) as consumer:
        _wake_at_first_look_up(consumer, monkeypatch)
        with pytest.raises(WakeupError):
            poll(consumer)
        assert poll(consumer) == [0, 1, 2]


def test_a_wakeup_after_some_records_ends_the_next_poll(
    module_broker: EmbeddedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("before", partitions=1)
    admin.create_topic("typed", partitions=1, schema=pa.schema([("id", pa.int64())]))
    with Producer(module_broker.bootstrap_servers) as producer:
        producer.send("before", b"first").result(STALL_S)
        producer.send_table("typed", [{"id": 1}]).result(STALL_S)
    with _consumer(module_broker, "before", "typed") as consumer:
        _prefetch(consumer)
        _first_is(consumer, "before")
        _wake_at_first_look_up(consumer, monkeypatch)
        (first,) = consumer.poll(0)
        assert first.value == b"first"
        with pytest.raises(WakeupError):
            consumer.poll(0)
        (second,) = consumer.poll(int(STALL_S * 1000))
        assert second.value == {"id": 1}


def test_records_are_returned_before_the_error_of_another_topic(
    module_broker: EmbeddedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(module_broker.bootstrap_servers) as producer:
        for topic in ("well", "ill"):
            admin.create_topic(topic, partitions=1)
            producer.send(topic, topic.encode()).result(STALL_S)
    with _consumer(module_broker, "well", "ill") as consumer:
        _prefetch(consumer)
        _first_is(consumer, "well")
        found = MetadataCache.topic

        def topic_of(cache: MetadataCache, name: str, **options: object) -> TopicDescription:
            if name == "ill":
                raise BrokerUnavailableError("no broker answers")
            return found(cache, name, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(MetadataCache, "topic", topic_of)
            (first,) = consumer.poll(0)
            assert first.value == b"well"
            with pytest.raises(BrokerUnavailableError):
                consumer.poll(0)
        (second,) = consumer.poll(int(STALL_S * 1000))
        assert second.value == b"ill"


def test_a_wakeup_during_a_leader_look_up_ends_the_poll(
    module_broker: EmbeddedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("led", partitions=1)
    with Producer(module_broker.bootstrap_servers) as producer, _consumer(module_broker, "led") as consumer:
        producer.send("led", b"first").result(STALL_S)
        assert consumer.position(("led", 0)) == 0
        look_up, calls = MetadataCache.leader_address, iter([consumer.wakeup])

        def leader_address(cache: MetadataCache, partition: TopicPartition, timeout_ms: int | None = None) -> str:
            next(calls, lambda: None)()
            cache.forget(partition.topic)
            return look_up(cache, partition, timeout_ms)

        monkeypatch.setattr(MetadataCache, "leader_address", leader_address)
        with pytest.raises(WakeupError):
            consumer.poll(int(STALL_S * 1000))
        (first,) = consumer.poll(int(STALL_S * 1000))
        assert first.value == b"first"


def test_a_position_is_found_while_another_partition_has_no_leader(
    module_broker: EmbeddedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("led-again", "not-led"):
        admin.create_topic(topic, partitions=1)
    look_up = MetadataCache.leader_address

    def leader_address(cache: MetadataCache, partition: TopicPartition, timeout_ms: int | None = None) -> str:
        if partition.topic == "not-led":
            raise LeaderNotAvailableError(f"{partition} has no leader")
        return look_up(cache, partition, timeout_ms)

    with _consumer(module_broker, "not-led", "led-again") as consumer, monkeypatch.context() as patched:
        patched.setattr(MetadataCache, "leader_address", leader_address)
        assert consumer.position(("led-again", 0)) == 0


def test_a_position_without_a_leader_is_waited_for_in_vain(
    module_broker: EmbeddedBroker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topic("unled", partitions=1)

    def leader_address(cache: MetadataCache, partition: TopicPartition, timeout_ms: int | None = None) -> str:
        raise LeaderNotAvailableError(f"{partition} has no leader")

    with _consumer(module_broker, "unled", api_timeout_ms=300) as consumer, monkeypatch.context() as patched:
        patched.setattr(MetadataCache, "leader_address", leader_address)
        with pytest.raises(RequestTimedOutError, match=r"unled-0 was not found within default\.api\.timeout\.ms=300"):
            consumer.position(("unled", 0))


def test_a_value_that_python_does_not_have_is_passed_by_a_seek(
    admin: Admin, module_broker: EmbeddedBroker, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, schema="day DATE")
    days = pa.array([19_000, 2_932_897, 19_001], pa.int32()).cast(pa.date32())
    with Producer(module_broker.bootstrap_servers) as producer:
        producer.send_table(topic, pa.table({"day": days})).result()
    with _consumer(module_broker, topic) as consumer:
        assert _poll_records(consumer) == [0]
        for _ in range(2):
            with pytest.raises(UnreadableValueError, match=f"{topic}-0 offset 1: .* column day") as raised:
                _poll_records(consumer)
        consumer.seek(TopicPartition(topic, 0), raised.value.offset + 1)
        assert _poll_records(consumer) == [2]
        consumer.seek_to_beginning()
        assert consumer.poll_table(int(STALL_S * 1000)).column("day").combine_chunks().equals(days)
