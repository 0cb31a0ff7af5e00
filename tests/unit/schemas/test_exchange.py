"""Tests of Avro, JSON Schema and Protobuf schemas, in both directions.

Errors name the path of a type that has no counterpart.
"""

from __future__ import annotations

import json
from pathlib import Path

import fastavro
import hypothesis.strategies as st
import jsonschema
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings

from millrace.errors import SchemaError
from millrace.schemas import (
    compile_proto,
    parse_avro,
    parse_ddl,
    parse_json_schema,
    parse_protobuf,
    parse_schema,
    to_avro,
    to_ddl,
    to_json_schema,
    to_protobuf,
)

EVERY_TYPE = (
    "a BOOLEAN NOT NULL COMMENT 'said', b TINYINT, c SMALLINT, d INT, e BIGINT NOT NULL, f FLOAT, g DOUBLE, "
    "h DECIMAL(9,2), i STRING, j BINARY, k DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n INTERVAL DAY TO SECOND, o TIME, "
    "p ARRAY<INT>, q MAP<STRING, DECIMAL(38,10)>, r STRUCT<x: INT NOT NULL COMMENT 'deep', y: ARRAY<STRUCT<z: DATE>>>"
)

# --- both ways ------------------------------------------------------------------------------------------------

_scalars = st.sampled_from(
    ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(9,2)", "DECIMAL(38,0)", "STRING",
     "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "INTERVAL DAY TO SECOND", "TIME"]
)  # fmt: skip
_name = st.from_regex(r"[a-z][A-Za-z0-9_]{0,5}", fullmatch=True)


@st.composite
def _fields(draw: st.DrawFn, types: st.SearchStrategy[pa.DataType]) -> pa.Field:
    comment = draw(st.none() | st.text("ab c", min_size=1, max_size=4).map(str.strip).filter(bool))
    return pa.field(draw(_name), draw(types), draw(st.booleans()), {"comment": comment} if comment else None)


_types = st.recursive(
    _scalars.map(lambda ddl: parse_ddl(f"c {ddl}").field("c").type),
    lambda inner: (
        st.tuples(inner, st.booleans()).map(lambda pair: pa.list_(pa.field("element", *pair)))
        | st.tuples(inner, st.booleans()).map(lambda pair: pa.map_(pa.string(), pa.field("value", *pair)))
        | st.lists(_fields(inner), min_size=1, max_size=3, unique_by=lambda each: each.name).map(pa.struct)
    ),
    max_leaves=5,
)
_schemas = st.lists(_fields(_types), min_size=1, max_size=5, unique_by=lambda each: each.name).map(pa.schema)


@given(_schemas)
def test_avro_comes_back(schema: pa.Schema) -> None:
    text = json.dumps(to_avro(schema, "Order", "com.example"))
    assert parse_avro(text).equals(schema, check_metadata=True)
    assert parse_schema(text).equals(schema, check_metadata=True)


@given(_schemas)
def test_json_schema_comes_back(schema: pa.Schema) -> None:
    written = to_json_schema(schema, "Order")
    jsonschema.Draft202012Validator.check_schema(written)
    assert parse_json_schema(json.dumps(written)).equals(schema, check_metadata=True)
    assert parse_schema(written).equals(schema, check_metadata=True)


def test_every_type_comes_back() -> None:
    schema = parse_ddl(EVERY_TYPE)
    fastavro.parse_schema(to_avro(schema))
    assert parse_avro(to_avro(schema)).equals(schema, check_metadata=True)
    assert parse_json_schema(to_json_schema(schema)).equals(schema, check_metadata=True)
    without_zone = pa.schema([field for field in schema if _has_protobuf(field.type)])
    back = parse_protobuf(compile_proto(to_protobuf(without_zone, "Order", "shop")))
    assert back.equals(_as_protobuf_says(without_zone))


# protoc runs as a process, so there are few examples, each with many columns.
@settings(max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(_fields(_types), min_size=5, max_size=15, unique_by=lambda each: each.name.replace("_", "").lower()))
def test_protobuf_comes_back(fields: list[pa.Field]) -> None:
    fields = [field for field in fields if _has_protobuf(field.type)]
    if fields:
        back = parse_protobuf(compile_proto(to_protobuf(pa.schema(fields))))
        assert back.equals(_as_protobuf_says(pa.schema(fields)))


def _has_protobuf(data_type: pa.DataType, *, repeats: bool = True) -> bool:
    if pa.types.is_list(data_type):
        return repeats and _has_protobuf(data_type.value_type, repeats=False)
    if pa.types.is_map(data_type):
        value = data_type.item_type
        return repeats and not pa.types.is_decimal(value) and _has_protobuf(value, repeats=False)
    if pa.types.is_struct(data_type):
        names = {field.name.replace("_", "").lower() for field in data_type}
        return len(names) == data_type.num_fields and all(_has_protobuf(field.type) for field in data_type)
    return data_type != pa.timestamp("us")


def _as_protobuf_says(schema: pa.Schema) -> pa.Schema:
    """Return the schema after the conversion to Protobuf and back, by the documented table."""
    return pa.schema([_field_as_protobuf_says(field) for field in schema])


def _field_as_protobuf_says(field: pa.Field) -> pa.Field:
    data_type = field.type
    if pa.types.is_list(data_type):
        element = _field_as_protobuf_says(data_type.value_field)
        return pa.field(field.name, pa.list_(pa.field("element", element.type, False)), False)
    if pa.types.is_map(data_type):
        item = _field_as_protobuf_says(data_type.item_field)
        key = pa.int32() if data_type.key_type in (pa.int8(), pa.int16()) else data_type.key_type
        return pa.field(field.name, pa.map_(key, pa.field("value", item.type, False)), False)
    if pa.types.is_struct(data_type):
        return pa.field(field.name, pa.struct([_field_as_protobuf_says(each) for each in data_type]))
    if data_type in (pa.int8(), pa.int16()):
        data_type = pa.int32()
    is_message = pa.types.is_temporal(data_type) or pa.types.is_decimal(data_type)
    return pa.field(field.name, data_type, field.nullable or is_message)


# --- schemas of other writers -------------------------------------------------------------------------------


def test_an_avro_schema_of_another_program_is_read() -> None:
    schema = {
        "type": "record", "name": "Order", "namespace": "shop", "fields": [
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}, "doc": "number"},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
            {"name": "before", "type": ["null", "State"], "default": None},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "exact", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
            {"name": "hash", "type": {"type": "fixed", "name": "MD5", "size": 16}},
            {"name": "trace", "type": {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}},
            {"name": "price", "type": {
                "type": "fixed", "name": "P", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 3}},
            {"name": "number", "type": ["int", "long", "null"]},
            {"name": "either", "type": ["string", "double"]},
            {"name": "ship", "type": {"type": "record", "name": "Ship", "fields": [{"name": "to", "type": "string"}]}},
            {"name": "bill", "type": ["null", "Ship"]},
            {"name": "small", "type": {"type": "int", "connect.type": "int16"}},
        ],
    }  # fmt: skip
    assert to_ddl(parse_schema(schema)) == (
        "id STRING NOT NULL COMMENT 'number', state STRING NOT NULL, before STRING, at TIMESTAMP NOT NULL, "
        "exact BIGINT NOT NULL, hash BINARY NOT NULL, trace STRING NOT NULL, price DECIMAL(12,3) NOT NULL, "
        "number BIGINT, either STRUCT<member0: STRING, member1: DOUBLE> NOT NULL, "
        "ship STRUCT<to: STRING NOT NULL> NOT NULL, bill STRUCT<to: STRING NOT NULL>, small SMALLINT NOT NULL"
    )


def test_a_json_schema_of_another_program_is_read() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {
            "address": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        },
        "type": "object",
        "required": ["id", "home", "kind"],
        "properties": {
            "id": {"type": "integer", "description": "number"},
            "home": {"$ref": "#/definitions/address"},
            "work": {"oneOf": [{"type": "null"}, {"$ref": "other.json#/address"}]},
            "kind": {"enum": ["a", "b"]},
            "ratio": {"type": ["integer", "number"]},
            "both": {"allOf": [{"$ref": "#/definitions/address"}, {"properties": {"zip": {"type": "integer"}}}]},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
            "when": {"type": "string", "format": "date-time"},
            "time": {"type": "string", "format": "time"},
        },
    }
    other = json.dumps({"address": {"type": "object", "properties": {"street": {"type": "string"}}}})
    assert to_ddl(parse_json_schema(schema, {"other.json": other})) == (
        "id BIGINT NOT NULL COMMENT 'number', home STRUCT<city: STRING NOT NULL> NOT NULL, "
        "work STRUCT<street: STRING>, kind STRING NOT NULL, ratio DOUBLE, "
        "both STRUCT<city: STRING NOT NULL, zip: BIGINT>, tags MAP<STRING, STRING>, when TIMESTAMP, time STRING"
    )


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum State { NEW = 0; DONE = 1; }
message Order {
  uint64 id = 1;
  optional State state = 2;
  oneof pay { string card = 3; int32 cash = 4; }
  repeated Item items = 5;
  message Item { string sku = 1; fixed32 count = 2; }
  google.protobuf.Timestamp at = 6;
  google.protobuf.StringValue note = 7;
  map<int64, Item> by_number = 8;
  repeated sint64 deltas = 9;
}
"""


def test_a_protobuf_schema_of_another_program_is_read(tmp_path: Path) -> None:
    expected = (
        "id DECIMAL(20,0) NOT NULL, state STRING, card STRING, cash INT, "
        "items ARRAY<STRUCT<sku: STRING NOT NULL, count: BIGINT NOT NULL>> NOT NULL, at TIMESTAMP, note STRING, "
        "by_number MAP<BIGINT, STRUCT<sku: STRING NOT NULL, count: BIGINT NOT NULL>> NOT NULL, "
        "deltas ARRAY<BIGINT> NOT NULL"
    )
    assert to_ddl(parse_schema(PROTO)) == expected
    (tmp_path / "common").mkdir()
    (tmp_path / "order.proto").write_text(
        PROTO.replace("package", 'import "common/extra.proto"; package') + "message B {int32 b = 1;}"
    )
    (tmp_path / "common" / "extra.proto").write_text('syntax = "proto3"; message Extra { int32 c = 1; }')
    assert to_ddl(parse_schema(f"{tmp_path}/order.proto#Order")) == expected
    assert (
        to_ddl(parse_schema(tmp_path / "order.proto#shop.Order.Item")) == "sku STRING NOT NULL, count BIGINT NOT NULL"
    )
    with pytest.raises(SchemaError, match=r"which message\?: the file's messages are shop\.Order, shop\.B"):
        parse_schema(tmp_path / "order.proto")
    with pytest.raises(SchemaError, match=r"no message Nope: the file's messages are"):
        parse_schema(tmp_path / "order.proto#Nope")
    compiled = compile_proto(PROTO)
    (tmp_path / "order.desc").write_bytes(compiled.data)
    assert to_ddl(parse_schema(tmp_path / "order.desc")) == expected
    assert to_ddl(parse_schema(compiled.message_class(compiled.message()))) == expected


def test_a_generated_protobuf_class_is_read_as_its_descriptor() -> None:
    from millrace.protocol import millrace_pb2

    assert to_ddl(parse_schema(millrace_pb2.BrokerNode)) == to_ddl(parse_schema(millrace_pb2.BrokerNode.DESCRIPTOR))


# --- types without a counterpart --------------------------------------------------------------------------------


def _avro(type_: object) -> dict[str, object]:
    inner = {"type": "record", "name": "I", "fields": [{"name": "b", "type": type_}]}
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": inner}]}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (_avro("null"), r"a\.b: a field that is always null"),
        (_avro(["null", "R"]), r"a\.b: record R contains itself"),
        (_avro({"type": "fixed", "name": "d", "size": 12, "logicalType": "duration"}), r"a\.b: .*months"),
        (_avro({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}), r"a\.b: .*38 digits"),
        (_avro({"type": "record", "name": "E", "fields": []}), r"a\.b: a record without fields"),
        (_avro("Missing"), "type Missing is unknown"),
        ({"type": "record", "fields": []}, "not valid"),
        ({"type": "map", "values": "int"}, "must be a record"),
    ],
)
def test_avro_schemas_that_give_no_columns_are_refused(source: object, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema(source)


@pytest.mark.parametrize(
    ("property_", "message"),
    [
        ({"type": ["integer", "string"]}, r"a\.b: types integer, string in one"),
        ({}, r"a\.b: no type"),
        (True, r"a\.b: true does not define a type"),
        ({"type": "array"}, r"a\.b: an array needs one schema of its items"),
        ({"type": "array", "items": {"type": "object"}}, r"a\.b\.element: an object needs properties"),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, r"a\.b: oneOf of 2 types"),
        ({"$ref": "#/properties/a"}, r"a\.b\.b: #/properties/a contains itself"),
        ({"$ref": "#/nowhere"}, r"a\.b: \$ref #/nowhere points to nothing"),
        ({"$ref": "x.json"}, r"a\.b: \$ref x\.json: there is no such document"),
        ({"type": "number", "format": "decimal"}, r"a\.b: format decimal needs precision"),
        ({"type": "text"}, r"a\.b: type 'text' is unknown"),
    ],
)
def test_json_schemas_that_give_no_columns_are_refused(property_: object, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": property_}}}})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("message A { A a = 1; }", "a: message A contains itself"),
        ("message A { B b = 1; } message B {}", "which message"),
        ("message A { message B {} B b = 1; }", "b: a message without fields"),
        ("message A { int3 a = 1; }", r'schema.proto:\d+:\d+: "int3" is not defined'),
        ('import "confluent/type/decimal.proto"; message A { confluent.type.Decimal d = 1; }', "d: .*does not define"),
        ('import "../../etc/x.proto"; message A { int32 d = 1; }', "not valid"),
    ],
)
def test_protobuf_schemas_that_give_no_columns_are_refused(body: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema(f'syntax = "proto3"; {body}')


def test_columns_that_the_other_format_cannot_express_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"column s\.b c: 'b c' is not an Avro name"):
        to_avro(parse_ddl("s STRUCT<`b c`: INT>"))
    for write in (to_avro, to_json_schema):
        with pytest.raises(SchemaError, match=r"column a\.element: .*text, not INT"):
            write(parse_ddl("a ARRAY<MAP<INT, INT>>"))
    for ddl, message in [
        ("a ARRAY<ARRAY<INT>>", r"column a: ARRAY<INT> has no place"),
        ("s STRUCT<t: TIMESTAMP_NTZ>", r"column s\.t: .*use TIMESTAMP"),
        ("m MAP<DATE, INT>", r"column m: keys of Protobuf"),
        ("m MAP<INT, DECIMAL(3,2)>", r"column m\.value"),
        ("`1a` INT", "not a Protobuf name"),
    ]:
        with pytest.raises(SchemaError, match=message):
            to_protobuf(parse_ddl(ddl))
