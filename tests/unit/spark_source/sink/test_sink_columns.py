"""Tests of a DataFrame's columns as fields of a record."""

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType

from millrace.errors import SchemaMismatchError, UnknownTopicOrPartitionError, UsageError
from pyspark_millrace.sink.columns import route_to, topic_column

TYPES = {
    "headers": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
    "int": IntegerType(),
    "bigint": LongType(),
    "texts": ArrayType(StringType()),
    "folded": StringType("UNICODE_CI"),
}
TYPED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("timestamp", pa.string())])


def schema_of(text):
    """Parse ``name type, ...`` without a Spark session."""
    schema = StructType()
    for name, type_name in (column.split() for column in text.split(",")):
        schema = schema.add(name, TYPES.get(type_name, type_name))
    return schema


def route(ddl, topic_schema=None, topic_from=None, *, include_headers=True):
    schema = schema_of(ddl)
    found = route_to("orders", topic_schema, schema, topic_from=topic_from, include_headers=include_headers)
    return {target: source for source, target in found.columns}


def test_an_opaque_topic_takes_kafkas_columns_and_passes_over_others():
    ddl = "key string, value binary, headers headers, partition int, timestamp timestamp, offset bigint, topic string"
    names = ("key", "value", "headers", "partition", "timestamp")
    assert route(ddl) == {name: name for name in names}
    assert "headers" not in route(ddl, include_headers=False)
    assert route("value string") == {"value": "value"}


def test_an_opaque_topic_takes_metadata_columns_by_the_names_of_reading():
    found = route("value string, __timestamp timestamp, __partition int, __headers headers, __offset bigint")
    assert found == {
        "value": "value",
        "timestamp": "__timestamp",
        "partition": "__partition",
        "headers": "__headers",
    }


@pytest.mark.parametrize("name", ["partition", "__partition"])
def test_a_partition_is_none_or_one_that_there_may_be(name):
    schema = schema_of(f"value string, {name} int")
    found = route_to("orders", None, schema, topic_from=None, include_headers=True)
    rows = pa.table({"value": ["a", "b"], name: pa.array([None, 3], pa.int32())})
    assert found.apply(rows).column_names == ["value", "partition"]
    with pytest.raises(UnknownTopicOrPartitionError, match="topic orders has no partition -1: name one of its"):
        found.apply(pa.table({"value": ["a", "b"], name: pa.array([3, -1], pa.int32())}))
    # In a typed topic it is an ordinary column.
    typed = route_to(
        "orders",
        pa.schema([("partition", pa.int32())]),
        schema_of("partition int"),
        topic_from=None,
        include_headers=True,
    )
    assert typed.apply(pa.table({"partition": pa.array([-1], pa.int32())})).num_rows == 1


def test_a_typed_topic_takes_its_own_columns_of_any_name():
    found = route("timestamp string, id int, __timestamp timestamp, __offset bigint, __timestamp_type int", TYPED)
    assert found == {name: name for name in ("timestamp", "id", "__timestamp")}
    assert route("topic string, id int", TYPED, topic_from="topic") == {"id": "id"}


@pytest.mark.parametrize(
    ("ddl", "topic_schema", "kind", "message"),
    [
        ("key string", None, SchemaMismatchError, "required column 'value' not found: topic orders is opaque"),
        ("value int", None, SchemaMismatchError, "column value is INT, expected STRING or BINARY: cast it"),
        ("value string, key double", None, SchemaMismatchError, "column key is DOUBLE, expected STRING or BINARY"),
        ("value string, headers texts", None, SchemaMismatchError, "column headers is ARRAY<STRING>, expected"),
        (
            "value string, __timestamp bigint",
            None,
            SchemaMismatchError,
            "column __timestamp is BIGINT, expected TIMEST",
        ),
        ("value string, partition int, __partition int", None, UsageError, "partition and __partition have the same"),
        (
            "id int, more int",
            TYPED,
            SchemaMismatchError,
            "column more is not in the schema of topic orders: its columns",
        ),
        ("id int, __tombstone int", TYPED, SchemaMismatchError, "column __tombstone is INT, expected BOOLEAN"),
    ],
)
def test_a_column_that_does_not_fit_is_named(ddl, topic_schema, kind, message):
    with pytest.raises(kind) as caught:
        route(ddl, topic_schema)
    assert message in caught.value.message


def test_nullability_and_collations_do_not_change_a_type():
    assert "value" in route("value folded")


def test_the_option_counts_more_than_the_column_and_one_is_needed():
    schema = schema_of("topic string, value string")
    assert topic_column(schema, has_option=True) is None
    assert topic_column(schema, has_option=False) == "topic"
    assert topic_column(schema_of("topic string, __topic string"), has_option=False) == "__topic"
    with pytest.raises(UsageError, match="topic option required when no 'topic' column is present"):
        topic_column(schema_of("value string"), has_option=False)
    with pytest.raises(SchemaMismatchError, match="column topic is INT, expected STRING"):
        topic_column(schema_of("topic int"), has_option=False)


def test_a_route_chooses_and_renames_without_copying():
    table = pa.table({"x": [1], "value": ["v"], "__partition": [2]})
    schema = schema_of("x int, value string, __partition int")
    found = route_to("orders", None, schema, topic_from=None, include_headers=True).apply(table)
    assert found.to_pydict() == {"value": ["v"], "partition": [2]}
