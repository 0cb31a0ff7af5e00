"""Tests of typed topics with Kafka's clients.

Payloads that the clients send become columns, and the clients get columns as payloads.
"""

from __future__ import annotations

import json
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from millrace.clients import Admin, Consumer, Producer, RegisteredSchema
from millrace.errors import InvalidConfigError, InvalidProducerEpochError, InvalidRecordError, OutOfOrderSequenceError
from millrace.kafka_protocol.calls.fetch import FetchPartition, FetchRequest, FetchTopic
from millrace.kafka_protocol.calls.init_producer_id import InitProducerIdRequest
from millrace.kafka_protocol.calls.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from millrace.payloads import PayloadKind
from millrace.records import Compression, Record, build_rows_batch, scan_headers
from millrace_broker.testing import EmbeddedBroker
from pyspark_millrace import DefaultSource

from .kafka_clients import consumer, producer, python_consumer, read, send
from .kafka_share_members import ACCEPT, BATCHES, Member, acquired, error_of
from .kafka_wire import KafkaWire
from .waiting import STALL_S, Stall

COLUMNS = "id BIGINT NOT NULL, name STRING, price DECIMAL(9,2), tags ARRAY<STRING>"
BROKER_OPTIONS = {"group.initial.rebalance.delay.ms": "0"}


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": number, "name": f"n{number}", "price": f"{number}.25", "tags": ["a"] * (number % 3)}
        for number in range(count)
    ]


def _produce(broker: EmbeddedBroker, topic: str, batch: bytes) -> Any:
    """Send a batch as it is, and return the partition's answer."""
    data = TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=batch),))
    with KafkaWire(broker) as wire:
        answer = wire.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(data,)), 9)
    return answer.responses[0].partition_responses[0]


def _columns(broker: EmbeddedBroker, topic: str, count: int) -> pa.Table:
    """Read a topic's columns, offsets, headers and times with a consumer of millrace."""
    options = {"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    with Consumer(options) as reader:
        reader.assign([(topic, 0)])
        reader.seek_to_beginning()
        found: list[pa.Table] = []
        stall = Stall(f"{count} rows")
        while sum(map(len, found)) < count:
            stall.check(sum(map(len, found)))
            found.append(reader.poll_table(500, metadata=True))
    return pa.concat_tables(found)


def _read(broker: EmbeddedBroker, topic: str, count: int, **options: Any) -> list[Any]:
    reader = consumer(broker, topic, **options)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = read(reader, count)
    reader.close()
    return found


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_json_of_a_kafka_client_is_read_as_columns_and_as_json_at_the_same_offsets(
    module_broker: EmbeddedBroker, admin: Admin, topic: str, compression: str
) -> None:
    admin.create_topic(
        topic,
        partitions=1,
        schema=COLUMNS,
        key_columns=["id"],
        configs={"kafka.value.format": "json", "kafka.key.format": "string"},
    )
    rows = _rows(300)
    records = [
        {
            "key": str(row["id"]).encode(),
            "value": json.dumps(row).encode(),
            "headers": [("h", b"%d" % row["id"])],
            "timestamp": 1000 + row["id"],
        }
        for row in rows
    ]
    sent = send(producer(module_broker, compression_type=compression, linger_ms=50), topic, records)
    assert [each.offset() for each in sent] == list(range(300))
    table = _columns(module_broker, topic, 300)
    assert table.column("__offset").to_pylist() == list(range(300))
    assert table.column("id").to_pylist() == list(range(300))
    assert [str(value) for value in table.column("price").to_pylist()] == [row["price"] for row in rows]
    assert table.column("tags").to_pylist() == [row["tags"] for row in rows]

    found = _read(module_broker, topic, 300)
    assert [json.loads(each.value(), parse_float=str) for each in found] == rows
    assert [each.key() for each in found] == [record["key"] for record in records]
    assert [each.headers() for each in found] == [record["headers"] for record in records]
    assert [each.timestamp()[1] for each in found] == [record["timestamp"] for record in records]
    assert [each.offset() for each in found] == list(range(300))


def test_rows_of_millrace_are_read_by_kafka_python(module_broker: EmbeddedBroker, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=1, schema=COLUMNS, key_columns=["id"], configs={"kafka.value.format": "json"})
    with Producer(module_broker.bootstrap_servers) as own:
        own.send_table(topic, pa.table({"id": [1, 2], "name": ["a", None]}))
        own.flush()
    reader = python_consumer(module_broker, topic)
    found: list[Any] = []
    stall = Stall("2 records")
    while len(found) < 2:
        stall.check(len(found))
        for records in reader.poll(timeout_ms=100).values():
            found += records
    reader.close()
    assert [(each.offset, each.key) for each in found] == [(0, b"\0" * 7 + b"\1"), (1, b"\0" * 7 + b"\2")]
    assert json.loads(found[1].value) == {"id": 2, "name": None, "price": None, "tags": None}


def test_a_batch_with_bad_records_is_refused_whole_and_names_them(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, schema=COLUMNS, configs={"kafka.value.format": "json"})
    values = [b'{"id":1}', b'{"id":"x"}', b'{"id":2}', b"{", b'{"id":3}']
    batch = build_rows_batch([Record(value=value, timestamp_ms=5) for value in values])
    answer = _produce(module_broker, topic, batch)
    assert (answer.error_code, answer.base_offset) == (87, -1)
    assert [each.batch_index for each in answer.record_errors] == [1, 3]
    assert answer.record_errors[0].batch_index_error_message == 'id: "x" is not a valid BIGINT'
    assert answer.error_message is not None
    assert answer.error_message.startswith(f"2 of the 5 records of a batch do not fit topic {topic}, and nothing")
    good = build_rows_batch([Record(value=b'{"id":9}', timestamp_ms=5)])
    assert _produce(module_broker, topic, good).base_offset == 0
    assert _columns(module_broker, topic, 1).column("id").to_pylist() == [9]


def test_the_producer_of_a_bad_record_gets_invalid_record(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, schema=COLUMNS, configs={"kafka.value.format": "json"})
    failed: list[Any] = []
    writer = producer(module_broker)
    writer.produce(topic, b"no json", on_delivery=lambda error, message: failed.append(error))
    writer.flush(STALL_S)
    assert failed[0].code() == confluent_kafka.KafkaError.INVALID_RECORD


def test_committed_transactions_are_read_and_aborted_ones_are_not(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, schema="id BIGINT", configs={"kafka.value.format": "json"})
    writer = producer(module_broker, transactional_id=topic)
    writer.init_transactions(STALL_S)
    for number in range(4):
        writer.begin_transaction()
        for each in range(10):
            writer.produce(topic, b'{"id":%d}' % (number * 10 + each))
        writer.flush(STALL_S)  # an abort would drop what was not sent
        if number % 2:
            writer.abort_transaction(STALL_S)
        else:
            writer.commit_transaction(STALL_S)
    found = _read(module_broker, topic, 20, isolation_level="read_committed")
    expected = [*range(10), *range(20, 30)]
    assert [json.loads(each.value())["id"] for each in found] == expected
    assert [each.offset() for each in found] == [*range(10), *range(22, 32)]


def test_a_retried_batch_of_an_idempotent_producer_is_appended_once(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    """The columns that replace a batch keep its sequence, and a refused batch takes none."""
    admin.create_topic(topic, partitions=1, schema="id BIGINT", configs={"kafka.value.format": "json"})
    with KafkaWire(module_broker) as wire:
        given = wire.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
    assert given.error_code == 0

    def batch(sequence: int, *values: bytes, epoch: int = given.producer_epoch) -> bytes:
        return build_rows_batch(
            [Record(value=value, timestamp_ms=5) for value in values],
            producer_id=given.producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            compression=Compression.GZIP,
        )

    first, second = batch(0, b'{"id":1}', b'{"id":2}'), batch(2, b'{"id":3}')
    assert [_produce(module_broker, topic, each).base_offset for each in (first, second, first, second)] == [0, 2, 0, 2]
    assert _produce(module_broker, topic, batch(9, b'{"id":4}')).error_code == OutOfOrderSequenceError.code
    assert _produce(module_broker, topic, batch(3, b'{"id":"x"}')).error_code == InvalidRecordError.code
    third = batch(3, b'{"id":4}')
    assert [_produce(module_broker, topic, third).base_offset for _ in range(2)] == [3, 3]
    assert _produce(module_broker, topic, batch(0, b'{"id":5}', epoch=given.producer_epoch + 1)).base_offset == 4
    assert _produce(module_broker, topic, batch(4, b'{"id":6}')).error_code == InvalidProducerEpochError.code
    assert _columns(module_broker, topic, 5).column("id").to_pylist() == [1, 2, 3, 4, 5]


def test_rows_of_all_versions_of_a_schema_are_read_with_the_columns_of_the_newest(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, schema="id BIGINT", configs={"kafka.value.format": "json"})
    writer = producer(module_broker)
    send(writer, topic, [{"value": b'{"id":1,"name":"no column yet"}'}])
    before = _read(module_broker, topic, 1)
    admin.evolve_schema(topic, "id BIGINT, name STRING")
    send(writer, topic, [{"value": b'{"id":2,"name":"b"}'}, {"value": b'{"id":3}'}])
    assert [each.value() for each in before] == [b'{"id":1}']
    assert [each.value() for each in _read(module_broker, topic, 3)] == [
        b'{"id":1,"name":null}',
        b'{"id":2,"name":"b"}',
        b'{"id":3,"name":null}',
    ], "rows that were converted before the change are converted again"
    assert _columns(module_broker, topic, 3).column("name").to_pylist() == [None, "b", None]


def test_a_batch_may_have_payloads_of_several_registered_schemas(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    text = '{"type":"record","name":"R","fields":[{"name":"id","type":"%s"}%s]}'
    more = ',{"name":"x","type":["null","string"],"default":null}'
    old, new = admin.register_payload_schemas(
        [
            RegisteredSchema(id=0, kind=PayloadKind.AVRO, text=text % ("int", "")),
            RegisteredSchema(id=0, kind=PayloadKind.AVRO, text=text % ("long", more)),
        ]
    )
    configs = {"kafka.value.format": "avro", "kafka.value.framing": "confluent", "kafka.value.schema.id": new.id}
    admin.create_topic(topic, partitions=1, schema="id BIGINT NOT NULL, x STRING", configs=configs)

    def framed(schema_id: int, payload: bytes) -> bytes:
        return b"\0" + schema_id.to_bytes(4, "big") + payload

    values = [framed(old.id, b"\x02"), framed(new.id, b"\x04\x02\x02a"), framed(old.id, b"\x06")]
    mixed = [Record(value=value, timestamp_ms=5) for value in values]
    assert _produce(module_broker, topic, build_rows_batch(mixed)).base_offset == 0
    table = _columns(module_broker, topic, 3)
    assert table.select(["id", "x"]).to_pylist() == [{"id": 1, "x": None}, {"id": 2, "x": "a"}, {"id": 3, "x": None}]
    written = [framed(new.id, payload) for payload in (b"\x02\0", b"\x04\x02\x02a", b"\x06\0")]
    assert [each.value() for each in _read(module_broker, topic, 3)] == written

    unknown = [*mixed, Record(value=framed(2**31 - 1, b"\x02"), timestamp_ms=5)]
    answer = _produce(module_broker, topic, build_rows_batch(unknown))
    assert (answer.error_code, [each.batch_index for each in answer.record_errors]) == (InvalidRecordError.code, [3])


def test_tombstones_of_both_kinds_of_client_are_null_values(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    configs = {"kafka.value.format": "json", "kafka.key.format": "json", "cleanup.policy": "compact"}
    admin.create_topic(
        topic, partitions=1, schema="id BIGINT NOT NULL, v STRING NOT NULL", key_columns=["id"], configs=configs
    )
    send(
        producer(module_broker),
        topic,
        [{"key": b'{"id":1}', "value": b'{"v":"a"}'}, {"key": b'{"id":1}', "value": None}],
    )
    assert [(each.key(), each.value()) for each in _read(module_broker, topic, 2)] == [
        (b'{"id":1}', b'{"id":1,"v":"a"}'),
        (b'{"id":1}', None),
    ]
    rows = _columns(module_broker, topic, 2)
    rows.validate(full=True)
    assert [(field.name, field.nullable) for field in rows.schema][:2] == [("id", False), ("v", True)]
    assert rows.column("v").to_pylist() == ["a", None]
    source = DefaultSource({"kafka.bootstrap.servers": module_broker.bootstrap_servers, "subscribe": topic})
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert pa.Table.from_batches(batches).to_pylist() == [{"id": 1, "v": "a"}, {"id": 1, "v": None}]


@pytest.mark.parametrize("value_format", ["avro", "protobuf"])
def test_framed_payloads_of_a_registered_schema_pass_both_ways(
    module_broker: EmbeddedBroker, admin: Admin, topic: str, value_format: str
) -> None:
    texts = {
        "avro": '{"type":"record","name":"R","fields":[{"name":"id","type":"long"},{"name":"x","type":"string"}]}',
        "protobuf": 'syntax = "proto3"; message R { int64 id = 1; string x = 2; }',
    }
    [schema] = admin.register_payload_schemas(
        [RegisteredSchema(id=0, kind=PayloadKind(value_format), text=texts[value_format])]
    )
    configs = {
        "kafka.value.format": value_format,
        "kafka.value.framing": "confluent",
        "kafka.value.schema.id": schema.id,
    }
    admin.create_topic(topic, partitions=1, schema="id BIGINT NOT NULL, x STRING NOT NULL", configs=configs)
    head = b"\0" + schema.id.to_bytes(4, "big")
    payload = head + (b"\x0e\x02a" if value_format == "avro" else b"\0\x08\x07\x12\x01a")
    send(producer(module_broker), topic, [{"value": payload}] * 20)
    assert _columns(module_broker, topic, 20).column("id").to_pylist() == [7] * 20
    assert [each.value() for each in _read(module_broker, topic, 20)] == [payload] * 20


def test_a_typed_topic_without_a_format_refuses_kafka_clients(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=1, schema="id BIGINT")
    answer = _produce(module_broker, topic, build_rows_batch([Record(value=b"{}", timestamp_ms=5)]))
    assert answer.error_code == 43
    assert answer.error_message is not None
    assert "set kafka.value.format to json, avro, protobuf or raw" in answer.error_message
    with Producer(module_broker.bootstrap_servers) as own:
        own.send_table(topic, pa.table({"id": [1]}))
        own.flush()
    admin.alter_configs(topic, {"kafka.value.format": "json"})
    assert [each.value() for each in _read(module_broker, topic, 1)] == [b'{"id":1}']


def test_formats_that_do_not_suit_the_topic_are_refused(admin: Admin, topic: str) -> None:
    with pytest.raises(InvalidConfigError, match="is opaque"):
        admin.create_topic(topic, configs={"kafka.value.format": "json"})
    with pytest.raises(InvalidConfigError, match="raw values need one column of type BINARY or STRING"):
        admin.create_topic(topic, schema="a INT, b INT", configs={"kafka.value.format": "raw"})
    with pytest.raises(InvalidConfigError, match=r"needs kafka\.value\.format=json, avro or protobuf"):
        admin.create_topic(topic, schema="a INT", configs={"kafka.value.framing": "confluent"})
    admin.create_topic(topic, schema="a INT, t TIMESTAMP_NTZ")
    with pytest.raises(InvalidConfigError, match="TIMESTAMP_NTZ has no place in a Protobuf field"):
        admin.alter_configs(topic, {"kafka.value.format": "protobuf"})


def test_rows_that_are_larger_than_their_columns_keep_the_limits_of_a_fetch(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    """Rows of nulls take 1 bit a column, and some 80 bytes as JSON."""
    schema = pa.schema([(f"measured_value_{name}", pa.bool_()) for name in "abc"])
    admin.create_topic(topic, partitions=2, schema=schema, configs={"kafka.value.format": "json"})
    count, max_bytes = 3 * 20_000, 2**18
    with Producer(module_broker.bootstrap_servers) as own:
        for partition in (0, 0, 0, 1):
            rows = pa.table({each.name: pa.nulls(20_000, pa.bool_()) for each in schema}, schema=schema)
            own.send_table(topic, rows, partition=partition)
            own.flush()
    offset = 0
    with KafkaWire(module_broker) as wire:
        while offset < count:
            asked = tuple(
                FetchPartition(partition=number, fetch_offset=place, partition_max_bytes=max_bytes)
                for number, place in ((0, offset), (1, 0))
            )
            request = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=max_bytes,
                topics=(FetchTopic(topic=topic, partitions=asked),),
            )
            found, other = wire.call(request, 12).responses[0].partitions
            assert (found.error_code, other.error_code, len(other.records)) == (0, 0, 0)
            ((_, header),) = scan_headers(found.records)
            assert header.size_bytes <= 2**19, "the first batch is sent whatever its size, but it is small"
            assert header.base_offset == offset
            offset = header.next_offset
    options = {"fetch.max.bytes": 2**19, "message.max.bytes": 2**19, "receive.message.max.bytes": 2**20}
    found = _read(module_broker, topic, 25_000, **options)
    assert [each.offset() for each in found] == list(range(25_000))
    assert found[-1].value() == b'{"measured_value_a":null,"measured_value_b":null,"measured_value_c":null}'


def test_records_whose_rows_have_no_room_are_acquired_by_the_next_fetch(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    """Columns take a fiftieth of their rows. Records without room do not count as delivered."""
    schema = pa.schema([(f"measured_value_{name}", pa.bool_()) for name in "abc"])
    admin.create_topic(topic, partitions=1, schema=schema, configs={"kafka.value.format": "json"})
    rows = pa.table({each.name: pa.nulls(200, pa.bool_()) for each in schema}, schema=schema)
    offsets: list[int] = []
    with KafkaWire(module_broker) as wire, Producer(module_broker.bootstrap_servers) as writer:
        reader = Member(wire, topic, topic)
        reader.join()
        assert acquired(reader.fetch()) == [], "the group begins at the end"
        for _ in range(9):
            writer.send_table(topic, rows)
            writer.flush()
        for _ in range(9):
            answer = reader.fetch(max_bytes=20_000, max_records=2000, share_acquire_mode=BATCHES)
            (found,) = answer.responses[0].partitions
            assert len(found.records) <= 20_000
            assert {each.delivery_count for each in found.acquired_records} == {1}
            offsets += acquired(answer)
            assert error_of(reader.acknowledge((offsets[-200], offsets[-1], (ACCEPT,)))) == 0
    assert offsets == list(range(1800))


def test_records_behind_a_batch_that_has_no_payloads_stay_available_to_a_share_group(
    module_broker: EmbeddedBroker, admin: Admin, topic: str
) -> None:
    """JSON has no form for a date after the year 9999."""
    admin.create_topic(topic, partitions=1, schema="x DATE", configs={"kafka.value.format": "json"})
    with KafkaWire(module_broker) as wire, Producer(module_broker.bootstrap_servers) as writer:
        reader = Member(wire, topic, topic)
        reader.join()
        assert acquired(reader.fetch()) == [], "the group begins at the end"
        for days in (2_932_897, 19_000):
            writer.send_table(topic, pa.table({"x": pa.array([days], pa.int32()).cast(pa.date32())}))
            writer.flush()
        (refused,) = reader.fetch().responses[0].partitions
        assert refused.error_code
        (found,) = reader.fetch().responses[0].partitions
        assert [(each.first_offset, each.delivery_count) for each in found.acquired_records] == [(1, 1)]
