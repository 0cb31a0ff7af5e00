"""Tests of rows as Avro, JSON and Protobuf payloads.

The payloads are in a topic of bytes. They are read many at a time and written one by one.
"""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from millrace.payloads import PayloadKind, PayloadSchema
from millrace_streams import (
    StreamsBuilder,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    UserFunctionError,
    avro,
    compile_topology,
    json_rows,
    protobuf,
)
from millrace_streams.payload_rows import PayloadRows
from millrace_streams.steps.batch import OFFSET, TIMESTAMP, TOMBSTONE
from millrace_streams.steps.reader import Reader

COLUMNS = "id BIGINT, name STRING, price DOUBLE, time TIMESTAMP"
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}'
PROTO = 'syntax = "proto3"; message R { int64 id = 1; string name = 2; }'
ROW = {"id": 7, "name": "søren", "price": 1.25, "time": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)}
SERDES = {"avro": avro(COLUMNS), "json": json_rows(COLUMNS), "protobuf": protobuf(COLUMNS)}


def reader_of(value: Any, key: str = "string") -> Reader:
    builder = StreamsBuilder()
    builder.stream("orders", key=key, value=value).to("out")
    [reader] = compile_topology(builder.build(), {}).readers
    assert reader.columns == ("key", "value")
    return Reader(reader.source, reader.layout, reader.operators)


def topic_of(values: list[bytes | None], keys: list[bytes | None] | None = None) -> pl.DataFrame:
    given: list[bytes | None] = keys if keys is not None else [b"k"] * len(values)
    return pl.DataFrame(
        {
            "key": pl.Series(given, dtype=pl.Binary),
            "value": pl.Series(values, dtype=pl.Binary),
            OFFSET: pl.Series(range(40, 40 + len(values)), dtype=pl.Int64),
            TIMESTAMP: pl.Series([5] * len(values), dtype=pl.Int64),
        }
    )


@pytest.mark.parametrize("kind", SERDES)
def test_rows_are_written_and_read(kind: str) -> None:
    serde = SERDES[kind]
    assert serde.deserialize(serde.serialize(ROW)) == ROW
    again: PayloadRows = pickle.loads(pickle.dumps(serde))
    assert again.deserialize(serde.serialize(ROW)) == ROW
    assert str(serde) == f"{kind} of id, name, price, time"


@pytest.mark.parametrize(("serde", "text"), [(avro(AVRO), "record"), (protobuf(PROTO), "message")])
def test_schemas_of_the_formats_own_are_taken(serde: PayloadRows, text: str) -> None:
    assert serde.deserialize(serde.serialize({"id": 1, "name": "x"})) == {"id": 1, "name": "x"}
    assert text in serde.payload.text


@pytest.mark.parametrize("kind", SERDES)
def test_a_topic_of_payloads_becomes_columns_and_no_payload_a_row_without_a_value(kind: str) -> None:
    serde = SERDES[kind]
    payloads = [serde.serialize(ROW | {"id": number}) for number in range(3)]
    read, _ = reader_of(serde).run(topic_of([*payloads, None]), 0)
    assert read["id"].to_list() == [0, 1, 2, None]
    assert read["time"][0] == ROW["time"]
    assert read[TOMBSTONE].to_list() == [False, False, False, True]
    assert read["key"].to_list() == ["k"] * 4


@pytest.mark.parametrize("kind", SERDES)
def test_a_malformed_payload_is_named_with_its_position(kind: str) -> None:
    serde = SERDES[kind]
    with pytest.raises(
        UserFunctionError, match=f"the value of the record at offset 41 of orders-3 is not a valid {kind} of id"
    ) as e:
        reader_of(serde).run(topic_of([serde.serialize(ROW), b"\xff\xff\xff", b"\xff\xff"]), 3)
    assert (e.value.node, e.value.topic, e.value.partition, e.value.offset) == (
        "KSTREAM-SOURCE-0000000000",
        "orders",
        3,
        41,
    )


@pytest.mark.parametrize("make", [avro, json_rows, protobuf])
def test_framed_payloads_name_their_schema_and_are_read_with_the_writers(make: Any) -> None:
    kind = PayloadKind(make(COLUMNS).payload.kind)
    old = make("id BIGINT, name STRING", framing="confluent", schema_id=3)
    schemas = {3: PayloadSchema(kind=kind, text=old.payload.text, message=old.payload.message)}
    new = make("id BIGINT, name STRING, more DOUBLE", framing="confluent", schema_id=4, schema_of=schemas.__getitem__)
    data = old.serialize({"id": 1, "name": "x"})
    assert data[:5] == b"\x00\x00\x00\x00\x03"
    found = new.deserialize(data)
    assert (found["id"], found["name"]) == (1, "x")
    assert found["more"] in (None, 0.0)
    with pytest.raises(TopologyError, match="payloads are written with a schema id, which is missing"):
        make(COLUMNS, framing="confluent").serialize(ROW)


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_rows_with_a_number_that_json_does_not_have_are_not_written(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        SERDES["json"].serialize(ROW | {"price": number})


def test_rows_of_payloads_go_through_a_topology() -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key="string", value=json_rows("sku STRING, n BIGINT"))
    orders.group_by("sku").reduce(lambda one, other: {**one, "n": one["n"] + other["n"]}).to_stream().to("sold")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records(
        [TestRecord("orders", "o", {"sku": sku, "n": n}, 0) for sku, n in (("a", 1), ("b", 2), ("a", 3))]
    )
    assert [record.value["n"] for record in driver.read_records("sold")] == [1, 2, 4]


@pytest.mark.parametrize(
    ("serde", "cells", "data"),
    [
        ("string", ["a", "ü", ""], [b"a", "ü".encode(), b""]),
        ("long", [1, -2], [(1).to_bytes(8, "big"), (-2).to_bytes(8, "big", signed=True)]),
        ("integer", [1, -2], [(1).to_bytes(4, "big"), (-2).to_bytes(4, "big", signed=True)]),
        ("double", [1.5], [bytes.fromhex("3ff8000000000000")]),
        ("boolean", [True, False], [b"\x01", b"\x00"]),
        ("bytes", [b"\xff"], [b"\xff"]),
        ("json", ['{"a":1}', None], [b'{"a":1}', b"null"]),
        ("json", ["9" * 400, r'["\ud800"]'], [b"9" * 400, rb'["\ud800"]']),
    ],
)
def test_single_values_are_read_as_kafkas_deserializers_do(serde: str, cells: list[Any], data: list[bytes]) -> None:
    read, _ = reader_of(serde).run(topic_of([*data, None]), 0)
    assert read["value"].to_list() == [*cells, None]


@pytest.mark.parametrize(
    ("serde", "wrong"),
    [
        ("string", b"\xff"),
        ("long", b"\x01"),
        ("double", b""),
        ("integer", b"12345"),
        ("boolean", b"\x02"),
        ("boolean", b""),
        ("boolean", b"\x00\x00"),
        ("json", b"{x"),
        ("json", b""),
        ("json", b"-Infinity"),
        ("json", b"9" * 5_000),
        ("json", b"[" * 200_000),
    ],
)
def test_bytes_of_another_type_are_named_with_their_place(serde: str, wrong: bytes) -> None:
    with pytest.raises(
        UserFunctionError, match=rf"the value of the record at offset 41 of orders-0 is not a valid {serde}: "
    ):
        reader_of(serde).run(topic_of([None, wrong, wrong]), 0)
    with pytest.raises(UserFunctionError, match="the key of the record at offset 40 of orders-0 is not a valid long"):
        reader_of("bytes", key="long").run(topic_of([None], [b"x"]), 0)


def test_schemas_of_columns_without_names_are_refused() -> None:
    assert avro(pa.schema([("id", pa.int64())])).schema.names == ["id"]


def test_columns_that_a_format_has_decoded_stay_as_they_are() -> None:
    builder = StreamsBuilder()
    builder.stream("in", schema=pa.schema([("key", pa.string()), ("n", pa.int64())]), key_columns=["key"]).to_delta("t")
    [reader] = compile_topology(builder.build(), {}).readers
    decoded = pl.DataFrame({"key": ["a"], "n": [7], OFFSET: [3], TIMESTAMP: [5]})
    rows, _ = Reader(reader.source, reader.layout, reader.operators).run(decoded, 0)
    assert rows.select("key", "n", TIMESTAMP, OFFSET).rows() == [("a", 7, 5, 3)]
