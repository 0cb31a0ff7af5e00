"""Tests of payloads as the wanted columns, by their writers' schemas.

Payloads are bare or framed.
"""

from __future__ import annotations

import datetime
import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from millrace.errors import BrokerUnavailableError, UnknownSchemaError
from millrace.payloads import Decoded, Framing, PayloadDecoder, PayloadKind, PayloadSchema

UTC = datetime.UTC
OLD = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}]}
NEW = {
    "type": "record",
    "name": "O",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": "string", "default": "plain"},
    ],
}
OTHER = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "string"}]}


def _avro(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(schema))), record)
    return buffer.getvalue()


def _schema(definition: dict[str, Any]) -> PayloadSchema:
    return PayloadSchema(kind=PayloadKind.AVRO, text=json.dumps(definition))


def _framed(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


def _registry(schemas: dict[int, PayloadSchema]) -> Any:
    def find(schema_id: int) -> PayloadSchema:
        if schema_id not in schemas:
            raise UnknownSchemaError(f"no payload schema has id {schema_id}")
        return schemas[schema_id]

    return find


def test_each_payload_is_read_by_its_writers_schema() -> None:
    find = _registry({1: _schema(OLD), 70_000: _schema(NEW), 3: _schema(OTHER)})
    decoder = PayloadDecoder(_schema(NEW), Framing.CONFLUENT, find)
    payloads = [
        _framed(70_000, _avro(NEW, {"id": 1, "city": "Bern", "kind": "x"})),
        _framed(1, _avro(OLD, {"id": 2, "gone": "!"})),
        None,
        b"\0\0",
        b"{}",
        _framed(9, b"?"),
        _framed(3, _avro(OTHER, {"id": "three"})),
        _framed(1, b"\x02\x0a"),
        _framed(70_000, _avro(NEW, {"id": 4, "city": None, "kind": "y"})),
    ]
    decoded = decoder.decode(pa.array([b"left out", *payloads], pa.binary()).slice(1))
    empty = {"id": None, "city": None, "kind": None}
    assert decoded.columns.to_pylist() == [
        {"id": 1, "city": "Bern", "kind": "x"},
        {"id": 2, "city": None, "kind": "plain"},
        *[empty] * 6,
        {"id": 4, "city": None, "kind": "y"},
    ]
    assert decoded.columns.schema.equals(decoder.schema)
    assert {row: text[:40] for row, text in sorted(decoded.faults.items())} == {
        3: "it does not begin with a zero byte and a",
        4: "it does not begin with a zero byte and a",
        5: "no payload schema has id 9",
        6: "schema 3: column id is STRING, but BIGIN",
        7: "gone: it ends in the middle of a value",
    }


def _resolved(written: Any, wanted: Any, *values: Any) -> Decoded:
    """Write values as records with one field ``x``, and read them with another schema."""
    writer = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}, *written]}
    reader = {"type": "record", "name": "O", "fields": wanted}
    decoder = PayloadDecoder(_schema(reader), Framing.CONFLUENT, _registry({1: _schema(writer)}))
    records = [_framed(1, _avro(writer, {"id": 1, "x": value})) for value in values]
    return decoder.decode(pa.array(records, pa.binary()))


@pytest.mark.parametrize(
    ("field_type", "default", "value"),
    [
        ("boolean", True, True),
        ("int", -70_000, -70_000),
        ("long", 2**63 - 1, 2**63 - 1),
        ("float", 1.5, 1.5),
        ("double", 3, 3.0),
        ("bytes", "\u00ff", b"\xff"),
        ("string", "\u00ff", "\u00ff"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0000\u0080", b"\0\x80"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "int", "logicalType": "date"}, 19_000, datetime.date(2022, 1, 8)),
        ({"type": "int", "logicalType": "time-millis"}, 1_000, datetime.time(0, 0, 1)),
        ({"type": "long", "logicalType": "time-micros"}, 5, datetime.time(0, 0, 0, 5)),
        ({"type": "long", "logicalType": "timestamp-millis"}, 86_400_000, datetime.datetime(1970, 1, 2, tzinfo=UTC)),
        ({"type": "long", "logicalType": "timestamp-micros"}, 5, datetime.datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 5_000, datetime.datetime(1970, 1, 1, 0, 0, 5)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "\u0001\u0000", Decimal("2.56")),
        ({"type": "array", "items": "long"}, [1, 2], [1, 2]),
        ({"type": "array", "items": "long"}, [], []),
        ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, [("a", b"\xff")]),
        ({"type": "map", "values": "long"}, {}, []),
        (["long", "null"], 3, 3),
        (["null", "string"], "x", "x"),
        (
            {"type": "record", "name": "N", "fields": [
                {"name": "a", "type": "int"}, {"name": "b", "type": ["null", "int"], "default": None}]},
            {"a": 5}, {"a": 5, "b": None},
        ),
    ],
)  # fmt: skip
def test_a_field_that_the_writer_lacks_has_the_default_of_the_readers_schema(
    field_type: Any, default: Any, value: Any
) -> None:
    decoded = _resolved([], [{"name": "x", "type": field_type, "default": default}], None, None)
    assert decoded.faults == {}
    decoded.columns.validate(full=True)
    assert decoded.columns.column("x").to_pylist() == [value] * 2


def _nested(name: str, *fields: str, default: Any = None) -> dict[str, Any]:
    added = [] if default is None else [{"name": "new", "type": "string", "default": default}]
    return {"type": "record", "name": name, "fields": [*({"name": each, "type": "int"} for each in fields), *added]}


@pytest.mark.parametrize(
    ("wrap", "values", "expected"),
    [
        (lambda inner: inner, [{"a": 1, "b": 2}], [{"b": 2, "new": "-"}]),
        (lambda inner: ["null", inner], [None, {"a": 1, "b": 2}], [None, {"b": 2, "new": "-"}]),
        (
            lambda inner: {"type": "array", "items": ["null", inner]},
            [[], [None, {"a": 1, "b": 2}], [{"a": 3, "b": 4}]],
            [[], [None, {"b": 2, "new": "-"}], [{"b": 4, "new": "-"}]],
        ),
        (
            lambda inner: ["null", {"type": "map", "values": inner}],
            [None, {}, {"k": {"a": 1, "b": 2}}],
            [None, [], [("k", {"b": 2, "new": "-"})]],
        ),
    ],
)
def test_fields_of_nested_records_have_the_readers_defaults(wrap: Any, values: list[Any], expected: list[Any]) -> None:
    wanted = [{"name": "x", "type": wrap(_nested("N", "b", default="-"))}]
    decoded = _resolved([{"name": "x", "type": wrap(_nested("N", "a", "b"))}], wanted, *values)
    assert decoded.faults == {}
    decoded.columns.validate(full=True)
    assert decoded.columns.column("x").to_pylist() == expected


@pytest.mark.parametrize(
    ("written", "wanted", "values", "expected"),
    [
        ("long", "double", [2**53 + 1, 5], [2.0**53, 5.0]),
        ("int", "float", [2**24 + 1], [2.0**24]),
        (["null", "long"], ["null", "float"], [None, 5], [None, 5.0]),
        ("string", "bytes", ["\u00e4"], ["\u00e4".encode()]),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [[1, 2], []], [[1.0, 2.0], []]),
        (
            ["null", {"type": "enum", "name": "E", "symbols": ["A", "Z"]}],
            ["null", {"type": "enum", "name": "E", "symbols": ["A", "U"], "default": "U"}],
            ["A", "Z", None],
            ["A", "U", None],
        ),
        (
            {"type": "record", "name": "N", "fields": [{"name": "old", "type": "int"}, {"name": "b", "type": "int"}]},
            {"type": "record", "name": "N", "fields": [{"name": "new", "type": "long", "aliases": ["x", "old"]}]},
            [{"old": 5, "b": 6}],
            [{"new": 5}],
        ),
        (
            {"type": "record", "name": "N", "fields": [{"name": "a", "type": "int"}]},
            {"type": "record", "name": "N", "fields": [
                {"name": "a", "type": "int"}, {"name": "b", "type": "int", "aliases": ["a"], "default": 7}]},
            [{"a": 5}],
            [{"a": 5, "b": 7}],
        ),
    ],
)  # fmt: skip
def test_values_are_resolved_as_avro_does(written: Any, wanted: Any, values: list[Any], expected: list[Any]) -> None:
    decoded = _resolved([{"name": "x", "type": written}], [{"name": "y", "type": wanted, "aliases": ["x"]}], *values)
    assert decoded.faults == {}
    decoded.columns.validate(full=True)
    assert decoded.columns.column("y").to_pylist() == expected


@pytest.mark.parametrize(
    ("field_type", "default"),
    [
        ("int", 2**31),
        ("bytes", "\u0100"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0000"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "A"}, "B"),
        ({"type": "int", "logicalType": "time-millis"}, -1),
        ({"type": "array", "items": "int"}, ["1"]),
        ({"type": "map", "values": "int"}, {"a": None}),
        (["null", {"type": "array", "items": "boolean"}], ["x"]),
        ({"type": "record", "name": "N", "fields": [{"name": "a", "type": "int"}]}, {}),
    ],
)
def test_a_default_that_its_field_cannot_have_is_named_as_the_fault(field_type: Any, default: Any) -> None:
    decoded = _resolved([], [{"name": "x", "type": field_type, "default": default}], None)
    assert list(decoded.faults) == [0]
    assert "default" in decoded.faults[0]
    assert "x" in decoded.faults[0]


def test_a_registry_that_does_not_answer_is_no_fault_of_a_payload() -> None:
    def find(schema_id: int) -> PayloadSchema:
        raise BrokerUnavailableError("no broker answers")

    with pytest.raises(BrokerUnavailableError):
        PayloadDecoder(_schema(NEW), Framing.CONFLUENT, find).decode(pa.array([_framed(1, b"")], pa.binary()))


PROTO = """syntax = "proto3";
message First { int32 a = 1; }
message Second { message Inner { int32 a = 1; string b = 2; } Inner inner = 1; }
"""


def test_the_indexes_of_a_framed_payload_select_the_protobuf_message() -> None:
    schema = PayloadSchema(kind=PayloadKind.PROTOBUF, text=PROTO, message="Second.Inner")
    decoder = PayloadDecoder(schema, Framing.CONFLUENT, _registry({5: schema}))
    payloads = [
        _framed(5, b"\x00" + b"\x08\x07"),  # 0: the first message
        _framed(5, b"\x04\x02\x00" + b"\x08\x08\x12\x01x"),  # two indexes, 1 and 0: Second.Inner
        _framed(5, b"\x02\x00" + b"\x08\x09"),  # one index, 0
        _framed(5, b"\x02\x10"),  # the ninth message
        _framed(5, b"\x03"),  # -2 indexes
        _framed(5, b""),
    ]
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    # First has no b, which is NOT NULL in the wanted message.
    assert sorted(decoded.faults) == [0, 2, 3, 4, 5]
    assert decoded.columns.to_pylist()[1] == {"a": 8, "b": "x"}
    first = PayloadSchema(kind=PayloadKind.PROTOBUF, text=PROTO, message="First")
    decoded = PayloadDecoder(first, Framing.CONFLUENT, _registry({5: schema})).decode(pa.array(payloads, pa.binary()))
    assert decoded.columns.column("a").to_pylist() == [7, 8, 9, None, None, None]
    assert decoded.faults[3] == "schema 5: no message has the indexes [8] in the schema"
    assert decoded.faults[4] == decoded.faults[5] == "the index of its message is damaged"


def test_framed_and_bare_json_is_decoded_and_faults_are_named() -> None:
    text = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    schema = PayloadSchema(kind=PayloadKind.JSON, text=text)
    payloads = pa.array([b'{"a": 1}', b"{}", None], pa.binary())
    decoded = PayloadDecoder(schema, Framing.NONE).decode(payloads)
    assert decoded.columns.to_pylist() == [{"a": 1}, {"a": None}, {"a": None}]
    assert decoded.faults == {1: "a: it is missing, or null"}
    framed = pa.array([_framed(1, b'{"a": 1}'), b"{}", _framed(2, b"{}"), _framed(7, b'{"a": 2}')], pa.binary())
    decoded = PayloadDecoder(schema, Framing.CONFLUENT).decode(framed)
    assert decoded.columns.column("a").to_pylist() == [1, None, None, 2]
    assert sorted(decoded.faults) == [1, 2]


@pytest.mark.parametrize("schema_id", [0, 9])
@pytest.mark.parametrize("kind", list(PayloadKind))
def test_a_framed_payload_whose_schema_is_not_registered_is_a_fault(kind: PayloadKind, schema_id: int) -> None:
    text = {
        PayloadKind.AVRO: json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}),
        PayloadKind.JSON: '{"type": "object", "properties": {"a": {"type": "integer"}}}',
        PayloadKind.PROTOBUF: 'syntax = "proto3"; message R { int32 a = 1; }',
    }
    payload = {PayloadKind.AVRO: b"\x04", PayloadKind.JSON: b'{"a":2}', PayloadKind.PROTOBUF: b"\0\x08\x02"}[kind]
    schema = PayloadSchema(kind=kind, text=text[kind])
    decoder = PayloadDecoder(schema, Framing.CONFLUENT, _registry({7: schema}))
    decoded = decoder.decode(pa.array([_framed(schema_id, payload), _framed(7, payload)], pa.binary()))
    assert decoded.columns.column("a").to_pylist() == [None, 2]
    assert decoded.faults == {0: f"no payload schema has id {schema_id}"}


def test_framed_json_with_the_id_of_an_avro_schema_is_a_fault() -> None:
    wanted = PayloadSchema(kind=PayloadKind.JSON, text='{"type": "object", "properties": {"a": {"type": "integer"}}}')
    decoder = PayloadDecoder(wanted, Framing.CONFLUENT, _registry({7: _schema(NEW)}))
    decoded = decoder.decode(pa.array([_framed(7, b'{"a":2}')], pa.binary()))
    assert decoded.faults == {0: "schema 7: it is a schema of avro payloads, but the payloads are decoded as json"}


def test_columns_without_payloads_are_decoded_to_nulls() -> None:
    for framing in Framing:
        decoder = PayloadDecoder(_schema(NEW), framing, _registry({}))
        assert decoder.decode(pa.array([], pa.binary())).columns.num_rows == 0
        decoded = decoder.decode(pa.array([None, None], pa.binary()))
        assert (decoded.columns.num_rows, decoded.columns.column("id").null_count, decoded.faults) == (2, 2, {})
