"""Tests of the option ``decode``.

The option gives payloads of opaque topics as columns. The tests also cover bad records.
"""

from __future__ import annotations

import io
import json
import struct
import uuid

import fastavro
import pytest
from deltalake import DeltaTable

from millrace.clients import Consumer, Producer, RegisteredSchema, TopicPartition
from millrace.payloads import PayloadKind
from millrace.schemas import compile_proto
from pyspark_millrace.decoding.dead_letters import dead_letters
from pyspark_millrace.delta import upsert
from pyspark_millrace.spark_errors import explain

pytestmark = pytest.mark.spark

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "timestamp", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "shop", "type": "string"}]}
PROTO = """syntax = "proto3";
message Skipped { int32 x = 1; }
message Order { int64 id = 1; map<string, double> prices = 2; }
"""


def _avro(schema, record, schema_id=None):
    buffer = io.BytesIO(b"" if schema_id is None else struct.pack(">bI", 0, schema_id))
    buffer.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def registered(admin):
    """Register the schemas and return the ids of the old and the new one of one subject, and of the key's."""
    schemas = [(OLD, ("orders-value", 1)), (NEW, ("orders-value", 2)), (KEY, ("orders-key", 1))]
    return [
        schema.id
        for schema in admin.register_payload_schemas(
            [
                RegisteredSchema(id=40 + at, kind=PayloadKind.AVRO, text=json.dumps(schema), subjects=(subject,))
                for at, (schema, subject) in enumerate(schemas)
            ]
        )
    ]


@pytest.fixture
def fill(admin, module_broker):
    """Return a function that creates an opaque topic with (key, value) records in one partition."""

    def make(records):
        name = f"payloads-{uuid.uuid4().hex[:8]}"
        admin.create_topic(name, configs={"retention.ms": "-1"})
        with Producer({"bootstrap.servers": module_broker.bootstrap_servers}) as producer:
            for key, value in records:
                producer.send(name, value, key=key, headers=[("h", b"1")])
        return name

    return make


@pytest.fixture
def reader(spark, module_broker):
    def make(topic, **options):
        named = {name.replace("_", "."): value for name, value in options.items()}
        given = {"kafka.bootstrap.servers": module_broker.bootstrap_servers, "subscribe": topic, **named}
        return spark.read.format("millrace").options(**given)

    return make


def test_framed_avro_of_two_writers_becomes_columns(reader, fill, registered):
    old, new, key = registered
    topic = fill(
        [
            (_avro(KEY, {"shop": "Bern"}, key), _avro(NEW, {"id": 1, "timestamp": None, "tags": ["a", "b"]}, new)),
            (None, _avro(OLD, {"id": 2}, old)),
            (_avro(KEY, {"shop": "Oslo"}, key), None),
        ]
    )
    options = {"decode": "avro", "decode_subject": "orders-value"}
    frame = reader(topic, **options, decode_key="avro", **{"decode.key.schemaId": key}, includeMetadata="true").load()
    assert frame.schema.simpleString() == (
        "struct<__key:struct<shop:string>,id:bigint,timestamp:timestamp,tags:array<string>,__topic:string,"
        "__partition:int,__offset:bigint,__timestamp:timestamp,__timestamp_type:int,"
        "__headers:array<struct<key:string,value:binary>>>"
    )
    rows = [(row["__offset"], row["__key"] and row["__key"]["shop"], row["id"], row["tags"]) for row in frame.collect()]
    assert rows == [(0, "Bern", 1, ["a", "b"]), (1, None, 2, []), (2, "Oslo", None, None)]
    chosen = reader(topic, **options, columns="tags,__value,__offset").load().collect()
    assert (chosen[0]["tags"], chosen[0]["__value"][:5]) == (["a", "b"], struct.pack(">bI", 0, new))


def test_bare_json_and_protobuf_become_columns(reader, fill):
    topic = fill([(None, b'{"id": 7, "at": "2024-02-29T12:00:00+01:00", "m": {"a": 1.5}}'), (None, b"{}")])
    ddl = "id BIGINT, at TIMESTAMP, m MAP<STRING, DOUBLE>"
    rows = (
        reader(topic, decode="json", decode_schema=ddl).load().selectExpr("id", "CAST(at AS STRING)", "m.a").collect()
    )
    assert [tuple(row) for row in rows] == [(7, "2024-02-29 11:00:00", 1.5), (None, None, None)]

    file = compile_proto(PROTO)
    message = file.message_class(file.message("Order"))
    topic = fill([(None, message(id=n, prices={"x": n / 2}).SerializeToString()) for n in range(5)])
    frame = reader(topic, decode="protobuf", decode_schema=PROTO, decode_message="Order").load()
    assert [tuple(row) for row in frame.selectExpr("id", "prices['x']").collect()] == [(n, n / 2) for n in range(5)]


def test_bad_records_fail_are_null_or_go_to_a_topic_and_a_table(spark, reader, fill, admin, module_broker, tmp_path):
    good, bad = b'{"id": 1}', b'{"id": "one"}'
    topic = fill([(b"k0", good), (b"k1", bad), (b"k2", good), (b"k3", b"{")])
    options = {"decode": "json", "decode_schema": "id BIGINT", "columns": "id,__offset"}
    with pytest.raises(Exception) as failed:  # noqa: PT011  Spark wraps it
        reader(topic, **options).load().collect()
    said = explain(failed.value)
    assert said.startswith(
        f'offset 1 of {topic}-0 cannot be decoded: value: id: "one" is not a valid BIGINT (2 such records'
    )
    assert "badRecords=deadletter:<topic>" in said
    nulled = reader(topic, **options, badRecords="null").load().collect()
    assert [tuple(row) for row in nulled] == [(1, 0), (None, 1), (1, 2), (None, 3)]

    admin.create_topic("dead-letters")
    kept = reader(topic, **options, badRecords="deadletter:dead-letters").load().collect()
    assert [tuple(row) for row in kept] == [(1, 0), (1, 2)]
    with Consumer({"bootstrap.servers": module_broker.bootstrap_servers}) as consumer:
        consumer.assign([TopicPartition("dead-letters", number) for number in range(1)])
        consumer.seek_to_beginning()
        letters = []
        while len(letters) < 2:
            letters += consumer.poll(timeout_ms=10_000)
    assert [(letter.key, letter.value) for letter in letters] == [(b"k1", bad), (b"k3", b"{")]
    headers = dict(letters[0].headers)
    assert headers.pop("__millrace.errors.reason").startswith(b"value: id:")
    assert headers == {
        "h": b"1",
        "__millrace.errors.topic": topic.encode(),
        "__millrace.errors.partition": b"0",
        "__millrace.errors.offset": b"1",
    }

    reader(topic, **options, badRecords="deadletter:dead-letters").load().collect()  # as a task that is run again
    with Producer(module_broker.bootstrap_servers) as producer:
        producer.send("dead-letters", b"of somebody else's", headers=[("h", b"2")])
    table = str(tmp_path / "bad")
    records = (
        spark.readStream.format("millrace")
        .option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
        .option("subscribe", "dead-letters")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    into = upsert(table, key=["topic", "partition", "offset"], select=dead_letters)
    written = records.writeStream.foreachBatch(into).option("checkpointLocation", str(tmp_path / "checkpoint"))
    written.trigger(availableNow=True).start().awaitTermination()
    found = DeltaTable(table).to_pyarrow_table().sort_by("offset").to_pylist()
    assert [(row["topic"], row["partition"], row["offset"]) for row in found] == [(topic, 0, 1), (topic, 0, 3)]
    assert found[0]["reason"].startswith("value: id:")
    assert (found[0]["key"], found[0]["value"], found[0]["headers"]) == (b"k1", bad, [{"key": "h", "value": b"1"}])


def test_a_stream_decodes_schemas_registered_while_it_runs(
    spark, reader, fill, admin, module_broker, registered, tmp_path
):
    _, new, _ = registered
    topic = fill([(None, _avro(NEW, {"id": 1, "timestamp": None, "tags": []}, new))])
    stream = (
        spark.readStream.format("millrace")
        .option("kafka.bootstrap.servers", module_broker.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("decode", "avro")
        .option("decode.schemaId", new)
        .load()
    )
    seen = []
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: seen.extend(row["id"] for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        later = {**NEW, "fields": [*NEW["fields"], {"name": "more", "type": "string"}]}
        [added] = admin.register_payload_schemas(
            [RegisteredSchema(id=0, kind=PayloadKind.AVRO, text=json.dumps(later))]
        )
        with Producer({"bootstrap.servers": module_broker.bootstrap_servers}) as producer:
            producer.send(topic, _avro(later, {"id": 2, "timestamp": None, "tags": [], "more": "x"}, added.id))
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode": "xml"}, "decode='xml': expected one of avro, json, protobuf"),
        ({"decode": "avro"}, "exactly one of decode.schema, decode.schemaFile, decode.schemaId, decode.subject"),
        ({"decode_schema": "{}"}, "decode.schema='{}' belongs to decode=avro|json|protobuf, which is missing"),
        ({"badRecords": "null"}, "badRecords='null' belongs to decode"),
        (
            {"decode": "json", "decode_schema": "a INT", "badRecords": "skip"},
            "badRecords='skip': expected fail, null or",
        ),
        ({"decode": "json", "decode_schema": "a INTT"}, "decode=json: schema text, character 3"),
        (
            {"decode": "avro", "decode_schema": '{"type": "int"}'},
            "decode=avro: an Avro schema for columns must be a record",
        ),
        ({"decode": "avro", "decode_schemaId": "999"}, "decode=avro: no payload schema has id 999"),
        ({"decode": "avro", "decode_subject": "none"}, "no payload schema has subject none"),
        ({"decode": "avro", "decode_schemaFile": "/none.avsc"}, "decode.schemaFile='/none.avsc' cannot be read"),
        ({"decode": "json", "decode_schema": "a INT", "decode_message": "M"}, "belongs to decode=protobuf, not json"),
        ({"decode": "json", "decode_schema": "a INT", "columns": "b"}, "has no column 'b': "),
        ({"decode": "json", "decode_schema": "__offset INT"}, "has a metadata column's name"),
    ],
)
def test_invalid_options_are_refused_before_any_read(reader, fill, options, message):
    with pytest.raises(Exception) as failed:  # noqa: PT011  Spark wraps it
        reader(fill([]), **options).load()
    assert message in explain(failed.value)
