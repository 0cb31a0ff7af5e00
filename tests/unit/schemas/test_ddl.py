"""Tests of Spark's DDL text, read and written as Spark does it."""

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from millrace.errors import SchemaError
from millrace.schemas import parse_ddl, to_ddl

TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "byte": pa.int8(),
    "SMALLINT": pa.int16(),
    "short": pa.int16(),
    "INT": pa.int32(),
    "integer": pa.int32(),
    "BIGINT": pa.int64(),
    "long": pa.int64(),
    "FLOAT": pa.float32(),
    "real": pa.float32(),
    "DOUBLE": pa.float64(),
    "DECIMAL": pa.decimal128(10, 0),
    "DECIMAL(7)": pa.decimal128(7, 0),
    "numeric(38, 18)": pa.decimal128(38, 18),
    "DEC(5,2)": pa.decimal128(5, 2),
    "STRING": pa.string(),
    "STRING COLLATE UTF8_BINARY": pa.string(),
    "CHAR(3)": pa.string(),
    "VARCHAR(30)": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIME(6)": pa.time64("ns"),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP WITH LOCAL TIME ZONE": pa.timestamp("us", tz="UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "TIMESTAMP WITHOUT TIME ZONE": pa.timestamp("us"),
    "INTERVAL DAY TO SECOND": pa.duration("us"),
    "INTERVAL HOUR": pa.duration("us"),
    "ARRAY<INT>": pa.list_(pa.field("element", pa.int32())),
    "ARRAY<ARRAY<INT>>": pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int32())))),
    "MAP<STRING, DOUBLE>": pa.map_(pa.string(), pa.float64()),
    "STRUCT<a: INT NOT NULL COMMENT 'x', b STRING>": pa.struct(
        [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())]
    ),
}


@pytest.mark.parametrize("text", TYPES)
def test_every_spark_type_is_read(text: str) -> None:
    assert parse_ddl(f"c {text}").field("c").type == TYPES[text]


def test_not_null_comments_and_quoted_names_are_read() -> None:
    schema = parse_ddl('`a b``c` INT NOT NULL COMMENT \'it\\\'s "x"\', d STRING COMMENT "y" NOT NULL, année DATE')
    assert schema.names == ["a b`c", "d", "année"]
    assert [field.nullable for field in schema] == [False, False, True]
    assert schema.field(0).metadata == {b"comment": b'it\'s "x"'}
    assert schema.field(1).metadata == {b"comment": b"y"}


def test_a_create_table_statement_is_read() -> None:
    schema = parse_ddl("""
        -- the orders
        CREATE OR REPLACE TABLE shop.orders (
            id BIGINT NOT NULL, /* key */
            date DATE,
            items ARRAY<STRUCT<sku: STRING, price: DECIMAL(10,2)>>
        );
    """)
    assert schema.names == ["id", "date", "items"]
    assert parse_ddl("create table if not exists t (a int) USING delta PARTITIONED BY (a)").names == ["a"]


def test_columns_may_be_named_as_the_words_of_a_statement() -> None:
    assert parse_ddl("create BOOLEAN NOT NULL, table INT, or STRING").names == ["create", "table", "or"]
    assert parse_ddl("struct STRUCT<struct: INT>").names == ["struct"]


def test_the_simple_string_of_a_struct_is_read() -> None:
    assert parse_ddl("struct<a:int,b:map<string,array<decimal(10,2)>>>").names == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected a column"),
        ("a", "expected a type"),
        ("a INT,", "expected a name"),
        ("a INTT", "INTT is not a Spark type"),
        ("a INT b INT", "expected a comma or the end"),
        ("a ARRAY<INT", "expected >"),
        ("a DECIMAL(39,0)", "precision is 1 to 38"),
        ("a DECIMAL(3,4)", "precision is 1 to 38"),
        ("a INTERVAL YEAR TO MONTH", "store months as INT"),
        ("a INTERVAL", "calendar intervals"),
        ("a INTERVAL SECOND TO DAY", "smaller than SECOND"),
        ("a VARIANT", "use STRING"),
        ("a VOID", "name the type"),
        ("a INT DEFAULT 3", "DEFAULT is not kept"),
        ("a STRING COLLATE UNICODE_CI", "collation UNICODE_CI"),
        ("a INT COMMENT x", "expected a quoted string"),
        ("a INT ; b", "expected a comma or the end"),
        ("a INT ?", "unexpected character"),
        ("a data_type", "not a Spark type"),
    ],
)
def test_errors_say_where_and_what(text: str, what: str) -> None:
    with pytest.raises(SchemaError, match=what):
        parse_ddl(text)


_scalars = st.sampled_from([value for value in TYPES.values() if not pa.types.is_nested(value)])
_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
_comments = st.none() | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
)


@st.composite
def _fields(draw: st.DrawFn, types: st.SearchStrategy[pa.DataType]) -> pa.Field:
    comment = draw(_comments)
    return pa.field(
        draw(_names), draw(types), nullable=draw(st.booleans()), metadata={"comment": comment} if comment else None
    )


_types = st.recursive(
    _scalars,
    lambda inner: (
        inner.map(lambda data_type: pa.list_(pa.field("element", data_type)))
        | st.tuples(inner, inner).map(lambda pair: pa.map_(*pair))
        | st.lists(_fields(inner), min_size=1, max_size=3, unique_by=lambda field: field.name).map(pa.struct)
    ),
    max_leaves=4,
)


@given(st.lists(_fields(_types), min_size=1, max_size=4).map(pa.schema))
def test_written_ddl_is_read_back(schema: pa.Schema) -> None:
    assert parse_ddl(to_ddl(schema)).equals(schema, check_metadata=True)
