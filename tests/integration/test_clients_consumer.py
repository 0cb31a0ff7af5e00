"""Tests of reads from a real broker, as records and as tables."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from millrace.clients import Admin, Consumer, ConsumerRecord, Producer, TopicPartition
from millrace.errors import (
    ClientClosedError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UsageError,
)
from millrace.records import Record, build_rows_batch
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, Stall


@pytest.fixture
def producer(module_broker: EmbeddedBroker) -> Iterator[Producer]:
    with Producer(module_broker.bootstrap_servers) as client:
        yield client


def _consumer(broker: EmbeddedBroker, topic: str, **options: object) -> Consumer:
    named = {name.replace("_", "."): value for name, value in options.items()}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest", **named})
    consumer.assign(consumer.partitions_for(topic))
    return consumer


def _poll_until(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    stall = Stall("records")
    while len(records) < count:
        stall.check(len(records))
        records += consumer.poll(1000)
    return records


def test_records_come_in_order_a_few_at_a_time(admin: Admin, producer: Producer, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("few", partitions=2)
    for start in range(0, 100, 10):
        rows = {
            "key": [str(n) for n in range(start, start + 10)],
            "value": [b"x"] * 10,
            "timestamp": list(range(start, start + 10)),
        }
        producer.send_table("few", rows, partition=start // 10 % 2)
    producer.flush(STALL_S)
    with _consumer(module_broker, "few", max_poll_records=7) as consumer:
        seen: list[ConsumerRecord] = []
        while len(seen) < 100:
            polled = consumer.poll(10_000)
            assert 0 < len(polled) <= 7
            for partition in polled.partitions():
                assert consumer.position(partition) == polled.records(partition)[-1].offset + 1
            seen += polled
        assert not consumer.poll(0)
        for number in (0, 1):
            mine = [record for record in seen if record.partition == number]
            assert [record.offset for record in mine] == list(range(50))
            assert all(record.key == str(record.timestamp_ms).encode() for record in mine)
            assert consumer.high_watermark(("few", number)) == 50


def test_a_consumer_continues_at_the_offset_of_a_seek(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("sought", partitions=1)
    producer.send_table("sought", {"value": [b"%d" % n for n in range(10)], "timestamp": [n * 1000 for n in range(10)]})
    producer.flush(STALL_S)
    partition = TopicPartition("sought", 0)
    with _consumer(module_broker, "sought") as consumer:

        def following() -> int:
            return consumer.poll(10_000, max_records=1)[0].offset

        assert (following(), following()) == (0, 1)
        consumer.seek(partition, 7)
        assert (following(), following()) == (7, 8)
        consumer.seek_to_beginning()
        assert consumer.position(partition) == 0
        assert following() == 0
        consumer.seek_to_end(partition)
        assert consumer.position(partition) == 10
        consumer.seek_to_time(3500)
        assert following() == 4
        consumer.seek_to_time(datetime.fromtimestamp(6, UTC), partition)
        assert following() == 6
        consumer.seek_to_time(99_000)
        assert consumer.position(partition) == 10
        found = consumer.offsets_for_times({partition: 2500})[partition]
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (3, 3000)
        assert consumer.offsets_for_times({partition: 10**12}) == {partition: None}
        early = consumer.offsets_for_times({partition: datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)})[partition]
        assert early is not None
        assert early.offset == 0
        for time_ms in (-1, -2, -3):
            with pytest.raises(UsageError, match=f"time {time_ms} ms is negative"):
                consumer.offsets_for_times({partition: time_ms})
            with pytest.raises(UsageError, match="is negative"):
                consumer.seek_to_time(time_ms)
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 10}
        for offset in (-1, 2**63, "5", 1.5):
            with pytest.raises(UsageError, match=f"offset {offset!r} of sought-0: offsets start at 0"):
                consumer.seek(partition, offset)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="not assigned"):
            consumer.seek(("sought", 3), 0)


def test_tables_have_the_columns_asked_for(admin: Admin, producer: Producer, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("table", partitions=2, schema="id BIGINT, name STRING, price DOUBLE", key_columns=["id"])
    producer.send_table("table", {"id": range(100), "name": ["n"] * 100, "price": [0.5] * 100}, timestamps=5).result(
        STALL_S
    )
    with _consumer(module_broker, "table") as consumer:

        def everything(**options: object) -> pa.Table:
            consumer.seek_to_beginning()
            tables: list[pa.Table] = []
            while sum(table.num_rows for table in tables) < 100:
                tables.append(consumer.poll_table(10_000, **options))  # type: ignore[arg-type]
                assert tables[-1].num_rows
            return pa.concat_tables(tables)

        assert everything().column_names == ["id", "name", "price"]
        projected = everything(columns=["price", "id"], metadata=["__offset"])
        assert projected.column_names == ["price", "id", "__offset"]
        assert sorted(projected.column("id").to_pylist()) == list(range(100))
        full = everything(metadata=True)
        assert full.column_names[3:] == ["__topic", "__partition", "__offset", "__timestamp"]
        assert set(full.column("__topic").to_pylist()) == {"table"}
        assert {when.timestamp() for when in full.column("__timestamp").to_pylist()} == {0.005}
        consumer.seek_to_beginning()
        assert consumer.poll_table(10_000, max_records=3).num_rows == 3
        assert consumer.poll_table(10_000, max_records=50).num_rows <= 50
        with pytest.raises(UsageError, match="column nope"):
            consumer.poll_table(columns=["nope"])
        with pytest.raises(UsageError, match="metadata column __nope"):
            consumer.poll_table(metadata=["__nope"])
        empty = consumer.poll_table(0, columns=["id"]) if consumer.seek_to_end() else None
        assert empty is None


def test_typed_records_are_dicts(admin: Admin, producer: Producer, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("dicts", partitions=1, schema="id BIGINT, name STRING", key_columns=["id"])
    producer.send("dicts", {"id": 1, "name": "one"}, headers={"h": None}).result(STALL_S)
    producer.send_table("dicts", {"id": [2], "__tombstone": [True]}).result(STALL_S)
    with _consumer(module_broker, "dicts") as consumer:
        first, second = _poll_until(consumer, 2)
        assert (first.key, first.value, first.headers) == ({"id": 1}, {"id": 1, "name": "one"}, (("h", None),))
        assert (second.key, second.value) == ({"id": 2}, None)


def test_a_poll_for_some_columns_does_not_narrow_the_next_poll(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("narrow", partitions=1, schema="id BIGINT, name STRING")
    producer.send_table("narrow", {"id": [1, 2, 3], "name": ["a", "b", "c"]}).result(STALL_S)
    with _consumer(module_broker, "narrow") as consumer:
        assert consumer.poll_table(5000, columns=["id"], max_records=1).to_pylist() == [{"id": 1}]
        (second,) = consumer.poll(5000, max_records=1)
        assert second.value == {"id": 2, "name": "b"}
        assert consumer.poll_table(5000).to_pylist() == [{"id": 3, "name": "c"}]


def test_rows_batches_read_like_columnar_ones(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("rows", partitions=1)
    log = module_broker.server
    records = [Record(key=b"k", value=b"v%d" % n, headers=(("h", b"x"),), timestamp_ms=n, offset=n) for n in range(5)]
    _append(log, "rows", build_rows_batch(records))
    with _consumer(module_broker, "rows") as consumer:
        found = _poll_until(consumer, 5)
    assert [(record.offset, record.value, record.timestamp_ms) for record in found] == [
        (n, b"v%d" % n, n) for n in range(5)
    ]
    assert found[0].headers == (("h", b"x"),)


def _append(server: object, topic: str, batch: bytes) -> None:
    """Append a batch over the protocol that our producer does not write."""
    import grpc

    from millrace.protocol import millrace_pb2 as pb
    from millrace.protocol.millrace_pb2_grpc import BrokerStub

    with grpc.insecure_channel(str(server.grpc_address)) as channel:  # type: ignore[attr-defined]
        data = pb.ProduceRequest.PartitionData(partition=0, records=batch)
        topics = [pb.ProduceRequest.TopicData(name=topic, partitions=[data])]
        response = BrokerStub(channel).Produce(pb.ProduceRequest(acks=-1, timeout_ms=5000, topics=topics))
        assert not response.topics[0].partitions[0].error.code, response


def test_a_poll_waits_for_records_to_come(admin: Admin, producer: Producer, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("awaited", partitions=1)
    with _consumer(module_broker, "awaited", auto_offset_reset="latest") as consumer:
        consumer.position(("awaited", 0))
        timer = threading.Timer(0.2, lambda: producer.send("awaited", b"at last"))
        timer.start()
        assert [record.value for record in consumer.poll(STALL_S * 1000)] == [b"at last"]
        timer.join()
        assert not consumer.poll(100)


def test_a_missing_position_is_reset_by_the_policy_or_raised(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("reset", partitions=1)
    producer.send_table("reset", {"value": [b"x"] * 5}).result(STALL_S)
    partition = TopicPartition("reset", 0)
    with _consumer(module_broker, "reset", auto_offset_reset="none") as consumer:
        with pytest.raises(OffsetOutOfRangeError, match="seek to one first"):
            consumer.poll(1000)
        consumer.seek(partition, 99)
        with pytest.raises(OffsetOutOfRangeError, match=r"auto\.offset.reset=none"):
            consumer.poll(10_000)
        consumer.seek(partition, 3)
        assert _poll_until(consumer, 2)[0].offset == 3
    with _consumer(module_broker, "reset", auto_offset_reset="earliest") as consumer:
        consumer.seek(partition, 99)
        assert _poll_until(consumer, 5)[0].offset == 0


def test_assignment_keeps_positions_and_checks_names(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("assigned", partitions=2)
    admin.create_topic("other", partitions=1, schema="id INT")
    producer.send_table("assigned", {"value": [b"x"] * 4}, partition=0).result(STALL_S)
    with _consumer(module_broker, "assigned") as consumer:
        assert len(_poll_until(consumer, 4)) == 4
        consumer.assign([("assigned", 0)])
        assert consumer.position(("assigned", 0)) == 4
        with pytest.raises(UnknownTopicOrPartitionError, match="no partition 9"):
            consumer.assign([("assigned", 9)])
        with pytest.raises(UnknownTopicOrPartitionError, match="topic nowhere"):
            consumer.assign([("nowhere", 0)])
        consumer.assign([("assigned", 0), ("other", 0)])
        with pytest.raises(UsageError, match="different schemas"):
            consumer.poll_table()
        consumer.assign([])
        with pytest.raises(UsageError, match="no partitions are assigned"):
            consumer.poll()


def test_a_partition_is_assigned_as_soon_as_it_was_added(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("grown", partitions=1)
    with _consumer(module_broker, "grown") as consumer:
        admin.create_partitions("grown", 2)
        producer.send("grown", b"new", partition=1).result(STALL_S)
        consumer.assign([("grown", 0), ("grown", 1)])
        assert [record.partition for record in _poll_until(consumer, 1)] == [1]


def test_a_deleted_topic_is_an_error(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("deleted", partitions=1)
    with _consumer(module_broker, "deleted") as consumer:
        consumer.poll(0)
        admin.delete_topic("deleted")
        with pytest.raises(UnknownTopicOrPartitionError, match="deleted"):
            _poll_until(consumer, 1)


def test_a_closed_consumer_says_so(admin: Admin, module_broker: EmbeddedBroker) -> None:
    admin.create_topic("closed", partitions=1)
    consumer = _consumer(module_broker, "closed")
    consumer.poll(0)
    consumer.close()
    consumer.close()
    with pytest.raises(ClientClosedError):
        consumer.poll()


def test_large_records_exceed_the_fetch_limits_one_by_one(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("wide", partitions=1)
    values = [bytes([n]) * 300_000 for n in range(6)]
    for value in values:
        producer.send("wide", value).result(STALL_S)
    with _consumer(module_broker, "wide", fetch_max_bytes=1000, max_partition_fetch_bytes=1000) as consumer:
        assert [record.value for record in _poll_until(consumer, 6)] == values


def test_a_loop_over_records_returns_only_those_that_it_got(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("looped", partitions=2)
    for number in (0, 1):
        producer.send_table("looped", {"value": [b"x"] * 20}, partition=number)
    producer.flush(STALL_S)
    partitions = [TopicPartition("looped", 0), TopicPartition("looped", 1)]
    with _consumer(module_broker, "looped", group_id="looped", enable_auto_commit=False) as consumer:
        seen: dict[int, list[int]] = {0: [], 1: []}
        for record in consumer:
            seen[record.partition].append(record.offset)
            if len(seen[record.partition]) == 3:
                consumer.commit()
                committed = consumer.committed(partitions)
                assert [place.offset if place else 0 for place in committed.values()] == list(map(len, seen.values()))
                break
        assert [consumer.position(each) for each in partitions] == list(map(len, seen.values()))
        for record in _poll_until(consumer, 40 - 3):
            seen[record.partition].append(record.offset)
        assert seen == {0: list(range(20)), 1: list(range(20))}


def test_a_seek_in_a_loop_over_records_takes_effect_at_once(
    admin: Admin, producer: Producer, module_broker: EmbeddedBroker
) -> None:
    admin.create_topic("skipped", partitions=1)
    producer.send_table("skipped", {"value": [b"x"] * 20})
    producer.flush(STALL_S)
    with _consumer(module_broker, "skipped") as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 4:
                consumer.seek(("skipped", 0), 17)
            if record.offset == 19:
                break
    assert seen == [0, 1, 2, 3, 4, 17, 18, 19]
