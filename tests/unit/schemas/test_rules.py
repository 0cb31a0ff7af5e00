"""Tests of the schemas that a typed topic accepts."""

import pyarrow as pa
import pytest

from millrace.errors import SchemaError
from millrace.schemas import parse_schema, validate_topic_schema

ORDERS = parse_schema("id BIGINT NOT NULL, city STRING, price DOUBLE")


def test_a_schema_of_stored_types_is_accepted() -> None:
    validate_topic_schema(ORDERS, ["id", "city"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "1 to 2000 columns"),
        ([("__time", pa.int32())], "column __time: .*reserved"),
        ([("", pa.int32())], "empty name"),
        ([("a", pa.int32()), ("a", pa.string())], "columns a and a"),
        ([("a", pa.int32()), ("A", pa.string())], "columns a and A"),
        ([("a", pa.large_string())], "column a: Arrow type large_string is stored as string"),
        ([("a", pa.timestamp("ns"))], "column a: .*TIMESTAMP_NTZ"),
        ([("a", pa.list_(pa.uint8()))], "column a"),
        ([("a", pa.null())], "column a: .*cast it"),
        ([("a", pa.struct([("b", pa.month_day_nano_interval())]))], "column a.b: .*months as INT"),
        ([("a", pa.decimal256(50, 2))], "38 digits"),
        ([("x" * 300, pa.int32())], "at most 255 bytes"),
    ],
)
def test_refusals_name_the_column(fields: list[tuple[str, pa.DataType]], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        validate_topic_schema(pa.schema(fields))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["nope"], "key column nope is not in the schema"),
        (["id", "id"], "named twice"),
        (["price"], "DOUBLE cannot be a key"),
    ],
)
def test_key_columns_must_exist_and_compare_by_bytes(keys: list[str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        validate_topic_schema(ORDERS, keys)
