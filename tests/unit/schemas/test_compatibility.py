"""Tests of compatibility modes.

The tests cover the allowed changes, and reads of earlier versions.
"""

from __future__ import annotations

import datetime
from decimal import Decimal

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from millrace.config.topic import SchemaCompatibility as Mode
from millrace.errors import IncompatibleSchemaError, SchemaError
from millrace.schemas import check_evolution, common_type, parse_ddl, parse_schema, promote, read_schema, schema_changes

ORDERS = parse_schema("id BIGINT NOT NULL, city STRING, price FLOAT, s STRUCT<a: INT, b: STRING NOT NULL>")
BACKWARD, FORWARD, NONE = {Mode.BACKWARD, Mode.NONE}, {Mode.FORWARD, Mode.NONE}, {Mode.NONE}
EVERY = set(Mode)


def _orders(**columns: str) -> str:
    """Return the orders' DDL with columns changed, dropped (empty) or added."""
    now = {
        "id": "BIGINT NOT NULL",
        "city": "STRING",
        "price": "FLOAT",
        "s": "STRUCT<a: INT, b: STRING NOT NULL>",
        **columns,
    }
    return ", ".join(f"{name} {ddl}" for name, ddl in now.items() if ddl)


@pytest.mark.parametrize(
    ("ddl", "allowed_by"),
    [
        (_orders(), EVERY),
        (_orders(tip="DOUBLE"), EVERY),
        (_orders(city=""), EVERY),
        ("city STRING COMMENT 'x', s STRUCT<b: STRING NOT NULL, a: INT>, id BIGINT NOT NULL, price FLOAT", EVERY),
        (_orders(tip="DOUBLE NOT NULL"), FORWARD),
        (_orders(id=""), BACKWARD),
        (_orders(id="BIGINT"), BACKWARD),
        (_orders(city="STRING NOT NULL"), FORWARD),
        (_orders(price="DOUBLE"), BACKWARD),
        (_orders(id="INT NOT NULL"), FORWARD),
        (_orders(id="DECIMAL(19,0) NOT NULL"), BACKWARD),
        (_orders(id="DECIMAL(10,2) NOT NULL"), NONE),
        (_orders(s="STRUCT<a: BIGINT, b: STRING NOT NULL>"), BACKWARD),
        (_orders(s="STRUCT<a: INT>"), BACKWARD),
        (_orders(s="STRUCT<a: INT, b: STRING NOT NULL, c: ARRAY<INT>>"), EVERY),
        (_orders(s="STRUCT<a: INT, b: STRING NOT NULL, c: INT NOT NULL>"), FORWARD),
        (_orders(city="BINARY"), set()),
        (_orders(price="STRING"), set()),
        (_orders(id="DOUBLE NOT NULL"), set()),
        (_orders(s="ARRAY<INT>"), set()),
        (_orders(s="STRUCT<a: DATE, b: STRING NOT NULL>"), set()),
    ],
)
@pytest.mark.parametrize("mode", Mode)
def test_each_mode_allows_only_its_changes_to_the_last_version(ddl: str, allowed_by: set[Mode], mode: Mode) -> None:
    counterpart = Mode(mode.removesuffix("_TRANSITIVE"))
    if counterpart in allowed_by:
        check_evolution([ORDERS], parse_schema(ddl), mode)
    else:
        with pytest.raises(IncompatibleSchemaError):
            check_evolution([ORDERS], parse_schema(ddl), mode)


@pytest.mark.parametrize(
    ("versions", "mode"),
    [
        (["a INT, b BIGINT", "a INT", "a INT, b INT"], Mode.BACKWARD),
        (["a INT, b INT", "a INT", "a INT, b BIGINT"], Mode.FORWARD),
        (["a INT, b INT", "a INT", "a INT, b BIGINT"], Mode.FULL),
    ],
)
def test_transitive_modes_look_at_every_version(versions: list[str], mode: Mode) -> None:
    *before, new = [parse_schema(text) for text in versions]
    check_evolution(before, new, mode)
    with pytest.raises(IncompatibleSchemaError, match=r"version 1"):
        check_evolution(before, new, Mode(f"{mode}_TRANSITIVE"))


def test_refusals_name_column_change_mode_and_version() -> None:
    with pytest.raises(
        IncompatibleSchemaError,
        match=r"column s\.a is changed from INT to BIGINT: schema.compatibility=FULL does not allow that, because a "
        r"reader of version 1 could not read new records; leave it as it is",
    ):
        check_evolution([ORDERS], parse_schema(_orders(s="STRUCT<a: BIGINT, b: STRING NOT NULL>")))
    with pytest.raises(IncompatibleSchemaError, match=r"column city is changed .* never possible, .* version 1"):
        check_evolution(
            [ORDERS, parse_schema("id BIGINT NOT NULL")], parse_schema("id BIGINT NOT NULL, city INT"), Mode.NONE
        )


@pytest.mark.parametrize("ddl", ["v INT", "k BIGINT, v INT", "k STRING, v INT"])
@pytest.mark.parametrize("mode", Mode)
def test_a_key_column_stays_in_every_mode(ddl: str, mode: Mode) -> None:
    with pytest.raises(IncompatibleSchemaError, match=r"column k is .*, and it is a key column: .* never possible"):
        check_evolution([parse_schema("k INT, v INT")], parse_schema(ddl), mode, ["k"])


def test_an_invalid_schema_is_refused_as_such() -> None:
    with pytest.raises(SchemaError, match="columns city and City"):
        check_evolution([ORDERS], pa.schema([*ORDERS, pa.field("City", pa.string())]))


def test_the_read_schema_holds_the_values_of_all_versions() -> None:
    versions = [
        "id BIGINT NOT NULL, price FLOAT, old INT, s STRUCT<a: INT NOT NULL>",
        "id INT NOT NULL, price DOUBLE NOT NULL, s STRUCT<a: INT NOT NULL, b: INT NOT NULL>, "
        "new INT NOT NULL COMMENT 'n'",
    ]
    expected = "id BIGINT NOT NULL, price DOUBLE, s STRUCT<a: INT NOT NULL, b: INT>, new INT COMMENT 'n'"
    assert read_schema([*map(parse_schema, versions)]).equals(parse_ddl(expected), check_metadata=True)


# --- properties -------------------------------------------------------------------------------------------------

_numbers = st.sampled_from(["TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(9,2)", "DECIMAL(25,6)"])
_types = st.recursive(
    _numbers | st.sampled_from(["STRING", "DATE"]),
    lambda inner: (
        inner.map("ARRAY<{}>".format)
        | st.lists(
            st.tuples(st.sampled_from("xyz"), inner), min_size=1, max_size=3, unique_by=lambda pair: pair[0]
        ).map(lambda fields: f"STRUCT<{', '.join(f'{name}: {ddl}' for name, ddl in fields)}>")
    ),
    max_leaves=3,
)
_column = st.tuples(st.sampled_from("abcd"), _types, st.sampled_from(["", " NOT NULL"]))
_schemas = st.lists(_column, min_size=1, max_size=4, unique_by=lambda column: column[0]).map(
    lambda columns: parse_schema(", ".join(f"{name} {ddl}{null}" for name, ddl, null in columns))
)


@given(_schemas, _schemas)
def test_backward_one_way_is_forward_the_other_way(left: pa.Schema, right: pa.Schema) -> None:
    there, back = schema_changes(left, right), schema_changes(right, left)
    assert all(change.kind.backward for change in there) == all(change.kind.forward for change in back)


@given(st.lists(_schemas, min_size=2, max_size=4), st.sampled_from(list(Mode)))
def test_records_of_allowed_versions_can_be_read(schemas: list[pa.Schema], mode: Mode) -> None:
    versions = schemas[:1]
    for schema in schemas[1:]:
        try:
            check_evolution(versions, schema, mode)
        except IncompatibleSchemaError:
            continue
        versions.append(schema)
    found = read_schema(versions)
    assert found.names == versions[-1].names
    for version in versions:
        for field in found:
            if field.name in version.names:
                values = pa.array([_sample(version.field(field.name).type)], version.field(field.name).type)
                assert promote(values, field.type).type == field.type


@given(_types, _types)
def test_a_common_type_holds_both(left: str, right: str) -> None:
    one, other = (parse_ddl(f"c {ddl}").field("c").type for ddl in (left, right))
    common = common_type(one, other)
    assert (common is None) == (common_type(other, one) is None)
    if common is not None:
        for data_type in (one, other):
            value = _sample(data_type)
            assert _same(promote(pa.array([value], data_type), common)[0].as_py(), value)


def _sample(data_type: pa.DataType) -> object:
    """Return a value at the end of the type's range."""
    if pa.types.is_struct(data_type):
        return {field.name: _sample(field.type) for field in data_type}
    if pa.types.is_list(data_type):
        return [_sample(data_type.value_type)]
    if pa.types.is_integer(data_type):
        return 2 ** (data_type.bit_width - 1) - 1
    if pa.types.is_floating(data_type):
        return 1.5
    if pa.types.is_decimal(data_type):
        return Decimal("9" * data_type.precision).scaleb(-data_type.scale)
    return "text" if pa.types.is_string(data_type) else datetime.date(2020, 1, 1)


def _same(found: object, sent: object) -> bool:
    if isinstance(found, dict) and isinstance(sent, dict):
        return all(_same(value, sent[name]) for name, value in found.items() if name in sent)
    if isinstance(found, list) and isinstance(sent, list):
        return all(_same(*pair) for pair in zip(found, sent, strict=True))
    return found == sent
