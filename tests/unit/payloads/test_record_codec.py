"""Tests of conversions between client records and typed columns.

Records of Kafka clients become columns of a typed topic and the reverse. The tests also cover the errors of records
that do not fit.
"""

from __future__ import annotations

import datetime
import io
import json
import struct
from decimal import Decimal
from typing import Any

import fastavro
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from millrace.config.topic import Framing, KafkaKeyFormat, KafkaValueFormat
from millrace.errors import SchemaError, UnknownSchemaError
from millrace.payloads import DecodedRecords, PayloadFormat, PayloadKind, PayloadSchema, RecordCodec
from millrace.schemas import parse_ddl
from millrace.schemas.avro import to_avro

JSON, AVRO, PROTOBUF, RAW = (
    KafkaValueFormat.JSON,
    KafkaValueFormat.AVRO,
    KafkaValueFormat.PROTOBUF,
    KafkaValueFormat.RAW,
)
UTC = datetime.UTC
VALUE_FORMATS = [JSON, AVRO, PROTOBUF]

COLUMNS = (
    "id BIGINT NOT NULL, b BOOLEAN, t TINYINT, i INT, f FLOAT, d DOUBLE, n DECIMAL(20,8), s STRING, z BINARY, "
    "day DATE, at TIMESTAMP, clock TIME, took INTERVAL DAY TO SECOND, "
    "list ARRAY<STRUCT<x: INT, y: STRING>>, o STRUCT<p: STRING, q: STRUCT<r: DATE>>, m MAP<STRING, BIGINT>"
)
SCHEMA = parse_ddl(COLUMNS)

_dates = st.dates(datetime.date(1, 1, 2), datetime.date(9998, 1, 1))
_instants = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9998, 1, 1), timezones=st.just(datetime.UTC))
_cells = {
    "b": st.booleans(),
    "t": st.integers(-128, 127),
    "i": st.integers(-(2**31), 2**31 - 1),
    "f": st.floats(width=32, allow_nan=False),
    "d": st.floats(allow_nan=False),
    "n": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-8)),
    "s": st.text(max_size=9),
    "z": st.binary(max_size=9),
    "day": _dates,
    "at": _instants,
    "clock": st.integers(0, 86_400 * 10**6 - 1).map(lambda micros: micros * 1000),
    "took": st.integers(-(10**14), 10**14).map(lambda micros: datetime.timedelta(microseconds=micros)),
    "list": st.lists(
        st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "y": st.none() | st.text(max_size=3)}), max_size=3
    ),
    "o": st.fixed_dictionaries(
        {"p": st.none() | st.text(max_size=3), "q": st.none() | st.fixed_dictionaries({"r": _dates})}
    ),
    "m": st.dictionaries(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1), max_size=3).map(
        lambda found: list(found.items())
    ),
}
_repeated = ("list", "m")
"""Columns that are empty instead of null in Protobuf."""
_rows = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(-(2**63), 2**63 - 1)}
        | {name: cell if name in _repeated else st.none() | cell for name, cell in _cells.items()}
    ),
    min_size=1,
    max_size=12,
)


def _unknown(schema_id: int) -> PayloadSchema:
    raise UnknownSchemaError(f"no payload schema has id {schema_id}")


def _codec(columns: str, *keys: str, value: KafkaValueFormat = JSON, **options: Any) -> RecordCodec:
    return RecordCodec(parse_ddl(columns), keys, PayloadFormat(value=value, **options), _unknown)


def _bytes(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def _decoded(codec: RecordCodec, *records: tuple[bytes | None, bytes | None]) -> DecodedRecords:
    return codec.decode(_bytes(*(key for key, _ in records)), _bytes(*(value for _, value in records)))


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[each.name] for row in rows], each.type) for each in schema], schema=schema
    )


@pytest.mark.parametrize("value_format", VALUE_FORMATS)
@settings(max_examples=30, deadline=None)
@given(rows=_rows, key_format=st.sampled_from(list(KafkaKeyFormat)), cut=st.integers(0, 3))
def test_rows_come_back_from_the_records_that_they_were_written_to(
    value_format: KafkaValueFormat, rows: list[dict[str, Any]], key_format: KafkaKeyFormat, cut: int
) -> None:
    codec = _codecs(value_format, key_format)
    batch = _batch(rows, SCHEMA).slice(min(cut, len(rows) - 1))
    keys, values = codec.encode(batch, None)
    decoded = codec.decode(keys, values)
    assert decoded.faults == {}
    assert decoded.tombstones is None
    decoded.columns.validate(full=True)
    for name in SCHEMA.names:
        assert decoded.columns.column(name).equals(batch.column(name)), name


_made: dict[tuple[KafkaValueFormat, KafkaKeyFormat], RecordCodec] = {}


def _codecs(value_format: KafkaValueFormat, key_format: KafkaKeyFormat) -> RecordCodec:
    found = _made.get((value_format, key_format))
    if found is None:
        found = _made[value_format, key_format] = _codec(COLUMNS, "id", value=value_format, key=key_format)
    return found


_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (_DAYS[0] * 86_400 * 10**6, (_DAYS[1] + 1) * 86_400 * 10**6 - 1)
_PROTOBUF_DURATION = 315_576_000_000 * 10**6


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("column", "limits", "options"),
    [
        ("DATE", _DAYS, {}),
        ("TIMESTAMP", _MICROSECONDS, {}),
        ("TIMESTAMP_NTZ", _MICROSECONDS, {}),
        ("DATE", _DAYS, {"key": KafkaKeyFormat.STRING}),
        ("TIMESTAMP", _MICROSECONDS, {"key": KafkaKeyFormat.JSON}),
        ("DATE", _DAYS, {"value": PROTOBUF}),
        ("TIMESTAMP", _MICROSECONDS, {"value": PROTOBUF}),
        ("INTERVAL DAY TO SECOND", (-_PROTOBUF_DURATION, _PROTOBUF_DURATION), {"value": PROTOBUF}),
    ],
)
def test_a_time_beyond_those_of_its_format_is_refused(
    column: str, limits: tuple[int, int], options: dict[str, Any], sign: int
) -> None:
    schema = parse_ddl(f"x {column}")
    keys = ("x",) if "key" in options else ()
    codec = RecordCodec(schema, keys, PayloadFormat(**{"value": JSON} | options), _unknown)
    number = pa.int32() if column == "DATE" else pa.int64()

    def batch(value: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([None, value], number).view(schema.types[0])], schema=schema)

    limit = max(limits) if sign > 0 else min(limits)
    decoded = codec.decode(*codec.encode(batch(limit), None))
    assert decoded.faults == {}
    assert decoded.columns.equals(batch(limit))
    with pytest.raises(SchemaError, match=r"(x|key).* (range|years)"):
        codec.encode(batch(limit + sign), None)


@pytest.mark.parametrize("micros", [-(2**63), -1, 0, 1, 2**63 - 1])
def test_each_duration_comes_back_from_json(micros: int) -> None:
    codec = _codec("x INTERVAL DAY TO SECOND")
    batch = pa.RecordBatch.from_arrays(
        [pa.array([micros], pa.duration("us"))], schema=parse_ddl("x INTERVAL DAY TO SECOND")
    )
    decoded = codec.decode(*codec.encode(batch, None))
    assert decoded.faults == {}
    assert decoded.columns.equals(batch)


@settings(max_examples=25, deadline=None)
@given(_rows)
def test_avro_is_what_fastavro_reads(rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([each for each in SCHEMA if each.name not in ("took", "clock")])
    text = json.dumps(to_avro(schema))
    batch = _batch(rows, schema)
    codec = RecordCodec(schema, (), PayloadFormat(value=AVRO), _unknown)
    parsed = fastavro.parse_schema(json.loads(text))
    for row, payload in zip(batch.to_pylist(), codec.encode(batch, None)[1].to_pylist(), strict=True):
        read = fastavro.schemaless_reader(io.BytesIO(payload), parsed, None)
        assert isinstance(read, dict)
        assert read | {"m": list(read["m"].items())} == row


@pytest.mark.parametrize("key_format", [KafkaKeyFormat.BINARY, KafkaKeyFormat.JSON])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_keys_of_several_columns_come_back(key_format: KafkaKeyFormat, data: st.DataObject) -> None:
    names = ["b", "t", "i", "n", "s", "z", "day", "at", "clock", "took"]
    schema = pa.schema([SCHEMA.field(name) for name in names] + [pa.field("v", pa.string())])
    codec = RecordCodec(schema, names, PayloadFormat(value=RAW, key=key_format), _unknown)
    rows = data.draw(st.lists(st.fixed_dictionaries({name: st.none() | _cells[name] for name in names}), min_size=1))
    batch = _batch([row | {"v": "x"} for row in rows], schema)
    decoded = codec.decode(*codec.encode(batch, None))
    assert decoded.faults == {}
    assert decoded.columns.equals(batch)


@pytest.mark.parametrize("key_format", [KafkaKeyFormat.BINARY, KafkaKeyFormat.STRING, KafkaKeyFormat.JSON])
@pytest.mark.parametrize("name", ["id", "b", "t", "i", "n", "s", "day", "at", "clock", "took"])
def test_each_type_of_key_comes_back(key_format: KafkaKeyFormat, name: str) -> None:
    rows = [
        {"id": -5, "b": True, "t": -1, "i": 7, "n": Decimal("-1.5"), "s": 'a"b', "day": datetime.date(2020, 2, 29),
         "at": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), "clock": 5_000, "took": datetime.timedelta(1, 2, 3)}
    ]  # fmt: skip
    schema = pa.schema([SCHEMA.field(name), pa.field("v", pa.string())])
    batch = _batch([rows[0] | {"v": "x"}], schema)
    codec = RecordCodec(schema, (name,), PayloadFormat(value=RAW, key=key_format), _unknown)
    decoded = codec.decode(*codec.encode(batch, None))
    assert decoded.faults == {}
    assert decoded.columns.equals(batch)


def test_a_null_value_is_a_tombstone_of_its_key() -> None:
    codec = _codec("id BIGINT NOT NULL, name STRING NOT NULL", "id", key=KafkaKeyFormat.STRING)
    decoded = _decoded(codec, (b"1", b'{"name":"a"}'), (b"2", None))
    assert decoded.faults == {}
    assert decoded.columns.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    assert decoded.tombstones is not None
    assert decoded.tombstones.to_pylist() == [False, True]
    keys, values = codec.encode(decoded.columns, decoded.tombstones)
    assert keys.to_pylist() == [b"1", b"2"]
    assert values.to_pylist() == [b'{"id":1,"name":"a"}', None]


def test_key_columns_come_from_the_key_or_the_value() -> None:
    codec = _codec("id BIGINT NOT NULL, name STRING", "id", key=KafkaKeyFormat.STRING)
    decoded = _decoded(codec, (b"1", b'{"name":"a"}'), (None, b'{"id":2}'), (b"3", b'{"id":3}'))
    assert decoded.faults == {}
    assert decoded.columns.column("id").to_pylist() == [1, 2, 3]


BAD_RECORDS: list[tuple[dict[str, Any], tuple[bytes | None, bytes | None], str]] = [
    ({}, (None, b"{"), "it is not JSON"),
    ({}, (None, b"\xff\xfe"), "it is not JSON"),
    ({}, (None, b"[1]"), "expected an object, found list"),
    ({}, (None, b'{"id":"7"}'), 'id: "7" is not a valid BIGINT'),
    ({}, (None, b'{"id":9223372036854775808}'), "id: 9223372036854775808 is not a valid BIGINT"),
    ({}, (None, b'{"id":1.5}'), 'id: "1.5" is not a valid BIGINT'),
    ({}, (None, b'{"id":1,"price":12345678.9}'), "price: "),
    ({}, (None, b'{"id":1,"price":1.234}'), "price: "),
    ({}, (None, b'{"id":1,"at":"2020-01-01 00:00:00"}'), "at: "),
    ({}, (None, b'{"id":1,"score":NaN}'), "it is not JSON: NaN is not a number"),
    ({}, (None, b'{"id":1,"score":"many"}'), 'score: "many" is not a valid DOUBLE'),
    ({}, (None, b'{"name":"x"}'), "id: it is missing, or null, and the column is NOT NULL"),
    ({}, (None, b'{"id":null}'), "id: it is missing, or null, and the column is NOT NULL"),
    ({}, (b"12345678", b'{"id":1}'), "key column id is 3544952156018063160 in the key and 1 in the value"),
    ({}, (b"1", b'{"id":1}'), "its key: '1' is no BIGINT, the type of key column id"),
    ({}, (None, None), "it has neither value nor key"),
    ({"key": KafkaKeyFormat.STRING}, (b"x", b'{"id":1}'), "its key: 'x' is no BIGINT, the type of key column id"),
    ({"key": KafkaKeyFormat.STRING}, (b'1,"k":2', b'{"id":2}'), "its key: "),
    ({"key": KafkaKeyFormat.STRING}, (b"2", b'{"id":1}'), "key column id is 2 in the key and 1 in the value"),
    ({"key": KafkaKeyFormat.JSON}, (b'{"id":"x"}', b'{"id":1}'), 'its key: id: "x" is not a valid BIGINT'),
    ({"key": KafkaKeyFormat.IGNORE}, (b"?", None), "it has no value, which deletes the rows of its key"),
    ({"value": AVRO}, (None, b"\x02\x00"), "at: it ends in the middle of a value"),
    ({"value": AVRO}, (None, b""), "id: it ends in the middle of a value"),
    ({"value": AVRO}, (None, b"\x02\x00\x00\x00\x00\x00!"), "the record ends before the payload"),
    ({"value": PROTOBUF}, (None, b"\xff"), "it is not a Record"),
]


@pytest.mark.parametrize(("options", "record", "text"), BAD_RECORDS)
def test_a_record_that_does_not_fit_is_named_with_the_reason(
    options: dict[str, Any], record: tuple[bytes | None, bytes | None], text: str
) -> None:
    columns = "id BIGINT NOT NULL, price DECIMAL(9,2), at TIMESTAMP, score DOUBLE, name STRING"
    codec = _codec(columns, "id", **options)
    keys, values = codec.encode(pa.RecordBatch.from_pylist([{"id": 1}], schema=parse_ddl(columns)), None)
    good = (keys[0].as_py(), values[0].as_py())
    decoded = _decoded(codec, *[good] * 20, record, *[good] * 20)
    assert list(decoded.faults) == [20]
    assert decoded.faults[20].startswith(text), decoded.faults[20]


def test_fields_that_are_no_columns_are_ignored_and_the_last_of_two_equal_names_counts() -> None:
    decoded = _decoded(_codec("id BIGINT"), *[(None, b'{"id":1,"more":[{}],"id":2}')] * 20)
    assert decoded.faults == {}
    assert decoded.columns.column(0).to_pylist() == [2] * 20


def test_floats_without_a_number_are_the_strings_of_spark() -> None:
    codec = _codec("d DOUBLE")
    decoded = _decoded(codec, *[(None, b'{"d":"%s"}' % text) for text in (b"NaN", b"Infinity", b"-Infinity")])
    assert decoded.faults == {}
    assert str(decoded.columns.column(0).to_pylist()) == "[nan, inf, -inf]"
    assert codec.encode(decoded.columns, None)[1].to_pylist() == [
        b'{"d":"NaN"}',
        b'{"d":"Infinity"}',
        b'{"d":"-Infinity"}',
    ]


def test_a_topic_without_key_columns_takes_no_keys_and_no_deletions() -> None:
    decoded = _decoded(_codec("a INT"), (b"k", b'{"a":1}'), (None, None), (None, b'{"a":2}'))
    assert list(decoded.faults) == [0, 1]
    assert "kafka.key.format=ignore" in decoded.faults[0]
    assert "send a value" in decoded.faults[1]
    ignoring = _codec("a INT", key=KafkaKeyFormat.IGNORE)
    assert _decoded(ignoring, (b"k", b'{"a":1}')).columns.to_pylist() == [{"a": 1}]


def test_raw_values_are_the_bytes_of_the_one_column() -> None:
    codec = _codec("id STRING, body BINARY", "id", value=RAW)
    decoded = _decoded(codec, (b"a", b"\xff\0"), (b"b", None))
    assert decoded.columns.to_pylist() == [{"id": "a", "body": b"\xff\0"}, {"id": "b", "body": None}]
    assert [each.to_pylist() for each in codec.encode(decoded.columns, decoded.tombstones)] == [
        [b"a", b"b"],
        [b"\xff\0", None],
    ]
    text = _decoded(_codec("body STRING", value=RAW), (None, b"\xff"), (None, "é".encode()), (None, None))
    assert list(text.faults) == [0]
    assert text.faults[0] == "'\\xff' of column body is not UTF-8"
    assert text.tombstones is None


def test_nested_nulls_are_found_where_the_writer_allows_them() -> None:
    writer = PayloadSchema(kind=PayloadKind.AVRO, text=json.dumps(to_avro(parse_ddl("o STRUCT<x: INT>, v INT"))))
    schema = parse_ddl("o STRUCT<x: INT NOT NULL>, v INT")
    codec = RecordCodec(
        schema,
        (),
        PayloadFormat(value=AVRO, schema_id=3),
        lambda schema_id: writer,
    )
    good, bad = (None, b"\x02\x02\x02\x00"), (None, b"\x02\x00\x00")
    assert _decoded(codec, good, bad, (None, b"\x00\x00")).faults == {
        1: "column o.x: null, but the column is NOT NULL in o"
    }
    decoded = _decoded(codec, good, (None, b"\x00\x00"))
    assert decoded.columns.schema == schema
    assert decoded.columns.to_pylist() == [{"o": {"x": 1}, "v": None}, {"o": None, "v": None}]
    decoded.columns.validate(full=True)


@pytest.mark.parametrize(
    ("field_type", "default", "value"),
    [
        ("bytes", "\u00ff", b"\xff"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1, datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        ({"type": "int", "logicalType": "date"}, 1, datetime.date(1970, 1, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "\u0001", Decimal("0.01")),
        ({"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
    ],
)
def test_an_avro_field_that_is_no_column_is_written_with_its_default(field_type: Any, default: Any, value: Any) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "x", "type": field_type, "default": default}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    schema = parse_ddl("id BIGINT NOT NULL")
    payload_schema = PayloadSchema(kind=PayloadKind.AVRO, text=text)
    codec = RecordCodec(schema, (), PayloadFormat(value=AVRO, schema_id=1), lambda schema_id: payload_schema)
    [written] = codec.encode(_batch([{"id": 5}], schema), None)[1].to_pylist()
    parsed = fastavro.parse_schema(json.loads(text))
    assert fastavro.schemaless_reader(io.BytesIO(written), parsed, None) == {"id": 5, "x": value}


REGISTERED = {
    7: PayloadSchema(
        kind=PayloadKind.AVRO,
        text=json.dumps(
            {
                "type": "record",
                "name": "R",
                "fields": [
                    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                    {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
                    {"name": "gone", "type": "string", "default": "-"},
                    {"name": "id", "type": ["int", "null"]},
                ],
            }
        ),
    ),
    8: PayloadSchema(
        kind=PayloadKind.PROTOBUF,
        text='syntax = "proto3"; message Other { message R { int32 id = 9; optional string kind = 1; } R r = 1; }',
    ),
    9: PayloadSchema(
        kind=PayloadKind.AVRO, text='{"type":"record","name":"R","fields":[{"name":"id","type":"string"}]}'
    ),
}


def _find(schema_id: int) -> PayloadSchema:
    if schema_id not in REGISTERED:
        raise UnknownSchemaError(f"no payload schema has id {schema_id}: register it")
    return REGISTERED[schema_id]


def test_framed_values_are_read_and_written_with_registered_schemas() -> None:
    schema = parse_ddl("id BIGINT, kind STRING, at TIMESTAMP")
    codec = RecordCodec(schema, (), PayloadFormat(value=AVRO, framing=Framing.CONFLUENT, schema_id=7), _find)
    payload = struct.pack(">bI", 0, 7) + b"\xd0\x0f\x02\x02-\x00\x0a"
    decoded = _decoded(
        codec,
        (None, payload),
        (None, struct.pack(">bI", 0, 5)),
        (None, b"{}"),
        (None, struct.pack(">bI", 0, 9) + b"\x00"),
    )
    assert decoded.faults[1] == "no payload schema has id 5: register it"
    assert decoded.faults[2].startswith("it does not begin with a zero byte and a schema id")
    assert decoded.faults[3] == "schema 9: column id is STRING, but BIGINT is expected"
    decoded = _decoded(codec, (None, payload))
    at = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    assert decoded.columns.to_pylist() == [{"id": 5, "kind": "B", "at": at}]
    assert codec.encode(decoded.columns, None)[1].to_pylist() == [payload]
    with pytest.raises(SchemaError, match="'C', which is no symbol"):
        codec.encode(pa.RecordBatch.from_pylist([{"id": 5, "kind": "C", "at": at}], schema=schema), None)
    with pytest.raises(SchemaError, match="column at has a null, and the Avro schema has it without null"):
        codec.encode(pa.RecordBatch.from_pylist([{"id": 5, "kind": "B"}], schema=schema), None)


def test_framed_messages_name_the_message_within_its_file() -> None:
    schema = parse_ddl("id SMALLINT NOT NULL, kind STRING")
    codec = RecordCodec(
        schema,
        (),
        PayloadFormat(value=PROTOBUF, framing=Framing.CONFLUENT, schema_id=8, message="Other.R"),
        _find,
    )
    batch = pa.RecordBatch.from_pylist([{"id": 300, "kind": "x"}, {"id": -1}], schema=schema)
    payloads = codec.encode(batch, None)[1]
    assert payloads[0].as_py() == struct.pack(">bI", 0, 8) + b"\x04\x00\x00" + b"\x0a\x01x\x48\xac\x02"
    assert codec.decode(pa.nulls(2, pa.binary()), payloads).columns.equals(batch)
    large = struct.pack(">bI", 0, 8) + b"\x04\x00\x00" + b"\x48\x80\x80\x04"
    assert _decoded(codec, (None, payloads[0].as_py()), (None, large)).faults == {1: "id: 65536 does not fit SMALLINT"}


@pytest.mark.parametrize(
    ("columns", "keys", "options", "text"),
    [
        ("a INT, b INT", (), {"value": RAW}, "raw values need one column of type BINARY or STRING"),
        ("m MAP<INT, INT>", (), {"value": JSON}, "names in JSON are text"),
        ("m MAP<INT, INT>", (), {"value": AVRO}, "keys of Avro's maps are text"),
        ("t TIMESTAMP_NTZ", (), {"value": PROTOBUF}, "TIMESTAMP_NTZ has no place in a Protobuf field"),
        ("a INT, b INT", ("a", "b"), {"value": JSON, "key": KafkaKeyFormat.STRING}, "the topic has 2"),
        ("a INT", (), {"value": AVRO, "schema_id": 8}, "payload schema 8 is of protobuf payloads"),
        (
            "id STRING, at INT",
            (),
            {"value": AVRO, "schema_id": 7},
            "column at is INT, and the Avro schema has TIMESTAMP",
        ),
        ("kind STRING", (), {"value": AVRO, "schema_id": 7}, "has the field at without null and default"),
        ("id STRING", (), {"value": PROTOBUF, "schema_id": 8, "message": "Other.R"}, "column id is STRING"),
        ("id STRING", (), {"value": PROTOBUF, "schema_id": 8, "message": "No"}, "no message No"),
    ],
)
def test_a_format_that_cannot_hold_the_columns_is_refused(
    columns: str, keys: tuple[str, ...], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(SchemaError, match=text):
        RecordCodec(parse_ddl(columns), keys, PayloadFormat(**options), _find)


@pytest.mark.parametrize("faults_max", [None, 100])
@pytest.mark.parametrize("step", [1, 3])
def test_after_enough_faults_no_more_records_are_read(faults_max: int | None, step: int) -> None:
    values = [b'{"a":"x"}' if row % step == 0 else b'{"a":1}' for row in range(20_000)]
    decoded = _codec("a BIGINT").decode(_bytes(*[None] * len(values)), _bytes(*values), faults_max=faults_max)
    bad = range(0, len(values), step)
    assert decoded.is_complete == (faults_max is None)
    assert list(decoded.faults) == list(bad[: len(decoded.faults)])
    assert len(decoded.faults) == len(bad) if faults_max is None else faults_max <= len(decoded.faults) < len(bad) // 2
    assert decoded.columns.column("a").null_count == len(values)


def test_many_records_become_rows_in_their_order() -> None:
    codec = _codec("id BIGINT, s STRING", "id", key=KafkaKeyFormat.STRING)
    count = 20_000
    keys = _bytes(*(b"%d" % row for row in range(count)))
    values = _bytes(*(None if row == 9_999 else b'{"s":"%d"}' % row for row in range(count)))
    decoded = codec.decode(keys, values)
    assert (decoded.faults, decoded.is_complete) == ({}, True)
    assert decoded.columns.column("id").to_pylist() == list(range(count))
    assert decoded.columns.column("s").to_pylist() == [None if row == 9_999 else str(row) for row in range(count)]
    assert decoded.tombstones is not None
    assert np.flatnonzero(decoded.tombstones.to_numpy(zero_copy_only=False)).tolist() == [9_999]
