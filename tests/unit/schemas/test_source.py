"""Tests of schemas read from each kind of source."""

import json
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import SchemaError
from millrace.schemas import deserialize_schema, parse_schema, serialize_schema, to_ddl, validate_topic_schema

EXPECTED = parse_schema("id BIGINT, name STRING")


def test_a_schema_is_read_from_frames_of_other_libraries() -> None:
    assert parse_schema(pd.DataFrame({"id": [1], "name": ["a"]})) == EXPECTED
    assert parse_schema(pl.DataFrame({"id": [1], "name": ["a"]})) == EXPECTED
    assert parse_schema(pa.table({"id": [1], "name": pa.array(["a"]).dictionary_encode()})) == EXPECTED


def test_a_schema_is_read_from_a_spark_struct_type() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    struct = types.StructType(
        [
            types.StructField("id", types.LongType(), False, {"comment": "key"}),
            types.StructField("tags", types.ArrayType(types.StringType(), containsNull=False)),
            types.StructField("at", types.TimestampType()),
            types.StructField("m", types.MapType(types.StringType(), types.DecimalType(9, 2))),
            types.StructField("wait", types.DayTimeIntervalType()),
        ]
    )
    schema = parse_schema(struct)
    assert schema == parse_schema(struct.json())
    assert not schema.field("tags").type.value_field.nullable
    assert to_ddl(schema) == (
        "id BIGINT NOT NULL COMMENT 'key', tags ARRAY<STRING>, at TIMESTAMP, m MAP<STRING, DECIMAL(9,2)>, "
        "wait INTERVAL DAY TO SECOND"
    )
    assert types.StructType.fromDDL is not None


def test_stored_types_are_those_that_spark_sends_and_expects() -> None:
    types = pytest.importorskip("pyspark.sql.pandas.types")
    schema = parse_schema(
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h DECIMAL(9,2), i STRING, j BINARY,"
        "k DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n INTERVAL DAY TO SECOND, "
        "o ARRAY<INT>, p MAP<STRING, INT>, q STRUCT<x: INT>"
    )
    assert types.to_arrow_schema(types.from_arrow_schema(schema), timezone="UTC") == schema


def test_a_schema_is_read_from_json_with_names_and_types() -> None:
    columns = [{"name": "id", "type": "BIGINT"}, {"name": "name", "type": "string", "nullable": True}]
    for source in (columns, {"columns": columns}, json.dumps(columns), json.dumps({"columns": columns})):
        assert parse_schema(source) == EXPECTED


@pytest.mark.parametrize("suffix", ["json", "ddl", "sql", "parquet", "arrow", "ipc"])
def test_a_schema_is_read_from_a_file_by_its_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"schema.{suffix}"
    if suffix == "json":
        path.write_text('{"columns": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}')
    elif suffix in ("ddl", "sql"):
        path.write_text("CREATE TABLE t (id BIGINT, name STRING)")
    elif suffix == "parquet":
        pq.write_table(EXPECTED.empty_table(), path)
    else:
        opener = pa.ipc.new_file if suffix == "arrow" else pa.ipc.new_stream
        with pa.OSFile(str(path), "wb") as file, opener(file, EXPECTED):
            pass
    assert parse_schema(path) == EXPECTED
    assert parse_schema(str(path)) == EXPECTED


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.parquet", "cannot read the schema file missing.parquet"),
        (Path("data.csv"), "CSV has no types"),
        (42, "cannot read a schema from a int"),
        ("{", "not valid JSON"),
        ("[]", "a JSON schema is"),
        ('[{"name": "a"}]', "a column is"),
        ('[{"name": "a", "type": "INTT"}]', "column a: .*not a Spark type"),
        ('[{"name": "a", "type": "INT", "nullable": "no"}]', "nullable is true or false"),
        ('[{"name": "a", "type": "INT", "size": 3}]', "unknown property size"),
        ('{"type": "struct"}', "fields"),
        (pa.schema([]), "no columns"),
    ],
)
def test_sources_that_give_no_schema_are_refused_with_the_reason(source: object, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema(source)


def test_damaged_files_are_schema_errors(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "a.json", "a.ddl"):
        path = tmp_path / name
        path.write_bytes(b"\xff\xfe nonsense")
        with pytest.raises(SchemaError):
            parse_schema(path)


def test_serialized_schemas_come_back() -> None:
    schema = parse_schema("id BIGINT NOT NULL COMMENT 'key', s STRUCT<a: ARRAY<INT>>")
    assert deserialize_schema(serialize_schema(schema)).equals(schema, check_metadata=True)
    validate_topic_schema(deserialize_schema(serialize_schema(schema)), ["id"])
    for damaged in (b"", b"x" * 30, serialize_schema(schema)[:-20]):
        with pytest.raises(SchemaError):
            deserialize_schema(damaged)
