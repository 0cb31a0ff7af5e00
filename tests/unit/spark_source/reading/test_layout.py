"""Tests of layouts.

The tests cover Kafka's columns, a schema's columns, and metadata by name.
"""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from millrace.errors import UsageError
from millrace.schemas import parse_ddl
from pyspark_millrace.columns import Metadata, available_columns
from pyspark_millrace.reading.layout import check_layout, default_layout, layout_of_user_schema, named_layout

TYPED = pa.schema([pa.field("word", pa.string(), nullable=False), pa.field("amount", pa.float64())])


def test_an_opaque_topic_has_the_columns_of_spark_s_kafka_source():
    schema = default_layout(None, include_headers=True, include_metadata=False).spark_schema()
    header = StructType().add("key", StringType()).add("value", BinaryType())
    assert [(field.name, field.dataType) for field in schema.fields][:-1] == [
        ("key", BinaryType()),
        ("value", BinaryType()),
        ("topic", StringType()),
        ("partition", IntegerType()),
        ("offset", LongType()),
        ("timestamp", TimestampType()),
        ("timestampType", IntegerType()),
    ]
    assert schema["headers"].dataType.elementType == header
    assert all(field.nullable for field in schema.fields)
    without = default_layout(None, include_headers=False, include_metadata=False)
    assert without.spark_schema().fieldNames() == schema.fieldNames()[:-1]


def test_a_typed_topic_has_its_own_columns_and_metadata_when_asked_for():
    layout = default_layout(TYPED, include_headers=False, include_metadata=False)
    assert layout.spark_schema() == StructType().add("word", StringType(), False).add("amount", DoubleType())
    assert layout.topic_columns == ["word", "amount"]
    assert default_layout(TYPED, include_headers=False, include_metadata=True).spark_schema().fieldNames() == [
        "word", "amount", "__topic", "__partition", "__offset", "__timestamp", "__timestamp_type", "__headers",
    ]  # fmt: skip


def test_every_stored_type_passes_to_spark_without_a_cast():
    schema = parse_ddl(
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h STRING, i BINARY, j DATE, "
        "k TIMESTAMP, l TIMESTAMP_NTZ, m DECIMAL(12,3), n ARRAY<INT>, o MAP<STRING, BIGINT>, "
        "p STRUCT<x: INT, y: ARRAY<STRING>>, q INT NOT NULL, r INTERVAL DAY TO SECOND"
    )
    arrow = default_layout(schema, include_headers=False, include_metadata=False).arrow_schema()
    assert [field.type for field in arrow] == [field.type for field in schema]
    assert [field.nullable for field in arrow] == [field.nullable for field in schema]


def test_columns_have_the_order_of_the_requested_names():
    layout = named_layout(TYPED, ["__offset", "amount"], topics="topic t")
    assert [column.source for column in layout.columns] == [Metadata.OFFSET, "amount"]
    assert layout.topic_columns == ["amount"]


def test_metadata_of_an_opaque_topic_is_read_by_both_of_its_names():
    layout = named_layout(None, ["offset", "__offset", "value"], topics="topic t")
    assert layout.topic_columns == ["value"]
    assert {"timestampType", "__timestamp_type"} <= available_columns(None).keys()


def test_the_tombstone_mark_of_an_opaque_topic_needs_the_value():
    assert named_layout(None, ["__tombstone"], topics="topic t").topic_columns == ["value"]
    assert named_layout(TYPED, ["__tombstone"], topics="topic t").topic_columns == []


def test_a_column_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="columns: topic t has no column 'amuont': did you mean amount"):
        named_layout(TYPED, ["amuont"], topics="topic t")
    with pytest.raises(UsageError, match=r"the columns are .*word"):
        named_layout(TYPED, ["xyz"], topics="topic t")


def test_a_schema_given_by_the_user_chooses_columns():
    asked = StructType().add("__partition", IntegerType()).add("amount", DoubleType())
    assert layout_of_user_schema(TYPED, asked, topics="topic t").spark_schema() == asked
    with pytest.raises(UsageError, match="column amount of topic t is DOUBLE, not INT"):
        layout_of_user_schema(TYPED, StructType().add("amount", IntegerType()), topics="topic t")
    with pytest.raises(UsageError, match="may be null"):
        layout_of_user_schema(TYPED, StructType().add("amount", DoubleType(), False), topics="topic t")


def test_topics_found_later_must_have_the_columns_that_are_read():
    layout = default_layout(TYPED, include_headers=False, include_metadata=False)
    check_layout(layout, TYPED.append(pa.field("more", pa.int32())), topic="u")
    for other in (None, pa.schema([pa.field("word", pa.int32()), pa.field("amount", pa.float64())])):
        with pytest.raises(UsageError, match="no column word STRING, which the query reads"):
            check_layout(layout, other, topic="u")


def test_a_topic_may_evolve_while_it_is_read():
    def layout_of(ddl):
        return default_layout(parse_ddl(ddl), include_headers=False, include_metadata=False)

    def check(layout, ddl, *, is_new=False):
        check_layout(layout, parse_ddl(ddl), topic="u", is_new=is_new)

    started = layout_of("id INT NOT NULL, word STRING, place ARRAY<STRUCT<x: INT>>, by MAP<STRING, STRUCT<y: INT>>")
    evolved = "id INT NOT NULL, place ARRAY<STRUCT<z: INT, x: INT>>, by MAP<STRING, STRUCT<w: INT>>, more INT"
    check(started, evolved)
    with pytest.raises(UsageError, match="topic u: no column word STRING, which the query reads"):
        check(started, evolved, is_new=True)
    for other, wrong in {
        evolved.replace("id INT NOT NULL", "id STRING NOT NULL"): "id INT",
        evolved.replace("id INT NOT NULL, ", ""): "id INT",
        evolved.replace("x: INT", "x: BIGINT"): "place ARRAY",
        evolved.replace("MAP<STRING", "MAP<INT"): "by MAP",
    }.items():
        with pytest.raises(UsageError, match=f"no column {wrong}"):
            check(started, other)
