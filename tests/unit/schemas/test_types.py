"""Tests of Arrow types.

Each type becomes a Spark type by the documented rule, or is refused.
"""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from millrace.errors import SchemaError
from millrace.schemas import normalize_schema, parse_ddl, parse_schema, spark_name, to_ddl, validate_topic_schema
from millrace.schemas.types import normalize_type

spark_types = pytest.importorskip("pyspark.sql.pandas.types")

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "schemas.md"
UNITS = ["s", "ms", "us", "ns"]

_plain = st.sampled_from(
    [
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
        pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view(),
        pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(7), pa.date32(), pa.date64(), pa.time32("s"),
        pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.month_day_nano_interval(), pa.uuid(), pa.json_(),
        pa.bool8(),
        pa.opaque(pa.int32(), "geo", "vendor"),
    ]
)  # fmt: skip
_scalars = (
    _plain
    | st.builds(pa.timestamp, st.sampled_from(UNITS), st.sampled_from([None, "UTC", "Europe/Zurich", "+02:00"]))
    | st.sampled_from(UNITS).map(pa.duration)
    | st.tuples(st.integers(1, 38), st.integers(-5, 40)).map(lambda digits: pa.decimal128(*digits))
    | st.tuples(st.integers(1, 76), st.integers(0, 20)).map(lambda digits: pa.decimal256(*digits))
    | st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda digits: pa.decimal32(*digits))
    | st.tuples(st.integers(1, 18), st.integers(0, 18)).map(lambda digits: pa.decimal64(*digits))
)


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(pa.field, st.sampled_from("abc"), inner)
    return (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | inner.map(pa.list_view)
        | st.tuples(inner, st.integers(1, 3)).map(lambda pair: pa.list_(*pair))
        | st.tuples(inner.filter(lambda key: not pa.types.is_null(key)), inner).map(lambda pair: pa.map_(*pair))
        | st.lists(fields, max_size=3).map(pa.struct)
        | st.lists(fields, min_size=1, max_size=2).map(lambda members: pa.union(members, "dense"))
        | inner.filter(lambda each: not pa.types.is_nested(each)).map(lambda each: pa.dictionary(pa.int32(), each))
        | inner.map(lambda each: pa.run_end_encoded(pa.int32(), each))
    )


_types = st.recursive(_scalars, _nested, max_leaves=6)


@settings(max_examples=400)
@given(_types, st.booleans())
@example(pa.uint64(), True)
@example(pa.decimal128(38, 38), False)
@example(pa.struct([]), True)
def test_an_arrow_type_has_a_spark_type_or_is_refused(data_type: pa.DataType, nullable: bool) -> None:
    given_schema = pa.schema([pa.field("c", data_type, nullable or pa.types.is_null(data_type))])
    stored = _stored(given_schema)
    if stored is None:
        with pytest.raises(SchemaError, match=r"column c\b.*: "):
            normalize_schema(given_schema)
        with pytest.raises(SchemaError, match="column c"):
            validate_topic_schema(given_schema)
        return
    validate_topic_schema(stored)
    assert normalize_schema(stored).equals(stored)
    spark = spark_types.from_arrow_schema(stored, prefer_timestamp_ntz=True)
    back = spark_types.to_arrow_schema(spark, timezone="UTC")
    assert _without_nullability(back.field("c").type) == _without_nullability(stored.field("c").type)
    # The document's rule: the table has the name by which Spark reads the type.
    assert parse_schema(spark).equals(stored)
    assert to_ddl(parse_ddl(to_ddl(stored))) == to_ddl(stored)
    if not given_schema.equals(stored):
        with pytest.raises(SchemaError, match="column c"):
            validate_topic_schema(given_schema)


def _stored(schema: pa.Schema) -> pa.Schema | None:
    try:
        return normalize_schema(schema)
    except SchemaError:
        return None


def _without_nullability(data_type: pa.DataType) -> str:
    return str(data_type).replace(" not null", "").replace("element: ", "item: ")


def test_the_documented_table_is_the_rule() -> None:
    table = re.findall(r"^\| (`[^|]+`[^|]*) \| ([^|]+) \|", DOCUMENT.read_text().split("## Where")[0], re.MULTILINE)
    assert len(table) == 18
    for names, arrow in table:
        for name in re.findall(r"`([^`]+)`", names):
            ddl = name.replace("(p,s)", "(12,3)").replace("(p)", "(6)").replace("(n)", "(5)")
            ddl = ddl.replace("<K, V>", "<INT, STRING>").replace("<T>", "<INT>").replace("<a: T, ...>", "<a: INT>")
            stored = parse_ddl(f"c {ddl}").field("c").type
            kind = re.match(r"[a-z]+", arrow.strip())
            assert kind is not None
            assert str(stored).startswith(kind[0].replace("float", "")) or (kind[0], str(stored)) in _NAMES, name


_NAMES = {("float", "float"), ("float", "double"), ("date", "date32[day]")}


@pytest.mark.parametrize("data_type", [pa.uint64(), pa.decimal64(10, 2), pa.dictionary(pa.int8(), pa.large_string())])
def test_spark_names_are_those_of_the_stored_type(data_type: pa.DataType) -> None:
    assert parse_ddl(f"c {spark_name(normalize_type(data_type, 'c'))}")
