"""Tests of joins by expressions against the same joins by Python functions.

Batches have any size. Joins by expressions read fewer columns.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import (
    StreamsBuilder,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    UnknownColumnError,
    coalesce,
    col,
    compile_topology,
    json_rows,
    left,
    right,
    row,
    within,
)

pytestmark = pytest.mark.slow

LONGS = {"key": "string", "value": "long"}
ROWS = {"key": "string", "value": json_rows("a BIGINT, b STRING, ref STRING")}
JOINED = row("a BIGINT, c BIGINT, d STRING")
KINDS = ("join", "left_join", "outer_join")


def add(one: int | None, other: int | None) -> int:
    return (one or 0) * 3 + (other or 0)


def merge(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any]:
    return {"a": one and one["a"], "c": other and other["a"], "d": other and other["b"]}


NUMBERS = coalesce(left(), 0) * 3 + coalesce(right(), 0)
COLUMNS = {"a": left("a"), "c": right("a"), "d": right("b")}
Join = Callable[[StreamsBuilder, bool, dict[str, Any]], Any]


def by(columns: bool, types: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a join, as expressions or as the equivalent function."""
    if types is LONGS:
        return ((NUMBERS,) if columns else (add,)), {}
    return ((), COLUMNS) if columns else ((merge,), {"value": JOINED})


def streams(kind: str) -> Join:
    def build(builder: StreamsBuilder, columns: bool, types: dict[str, Any]) -> Any:
        first, named = by(columns, types)
        one, other = builder.stream("x", **types), builder.stream("y", **types)
        return getattr(one, kind)(other, *first, window=within(8, grace=3), **named)

    return build


def table(kind: str, **table_options: Any) -> Join:
    def build(builder: StreamsBuilder, columns: bool, types: dict[str, Any]) -> Any:
        first, named = by(columns, types)
        found = builder.table("y", **types, **table_options)
        grace = {"grace": 5} if table_options else {}
        return getattr(builder.stream("x", **types), kind)(found, *first, **grace, **named)

    return build


def globally(kind: str) -> Join:
    def build(builder: StreamsBuilder, columns: bool, types: dict[str, Any]) -> Any:
        first, named = by(columns, types)
        everywhere = builder.global_table("y", **types)
        if types is LONGS:
            selector = col("key") if columns else lambda key, value: key
        else:
            selector = "ref" if columns else lambda value: value["ref"]
        return getattr(builder.stream("x", **types), kind)(everywhere, *first, selector=selector, **named)

    return build


def tables(kind: str, *, foreign: bool = False) -> Join:
    def build(builder: StreamsBuilder, columns: bool, types: dict[str, Any]) -> Any:
        first, named = by(columns, types)
        keys: dict[str, Any] = {}
        if foreign and types is LONGS:
            letter = col("value") % 3
            keys = {"foreign_key": letter.cast("string")} if columns else {"foreign_key": lambda v: str(v % 3)}
        elif foreign:
            keys = {"foreign_key": "ref" if columns else lambda value: value["ref"]}
        one, other = builder.table("x", **types), builder.table("y", **types)
        return getattr(one, kind)(other, *first, **keys, **named).to_stream()

    return build


JOINS: dict[str, Join] = {
    **{f"streams {kind}": streams(kind) for kind in KINDS},
    **{f"table {kind}": table(kind) for kind in KINDS[:2]},
    "versioned table": table("left_join", versioned=20, store="versions"),
    **{f"global {kind}": globally(kind) for kind in KINDS[:2]},
    **{f"tables {kind}": tables(kind) for kind in KINDS},
    **{f"foreign {kind}": tables(kind, foreign=True) for kind in KINDS[:2]},
}


def script(types: dict[str, Any]) -> list[TestRecord]:
    chance = random.Random(5)
    records = []
    for place in range(120):
        number = chance.choice([None, *range(9)])
        value: Any = number
        if types is ROWS and number is not None:
            # JSON rows without a column have null in it.
            value = {"a": chance.choice([None, number]), "b": f"b{number}", "ref": chance.choice(["0", "1", "2", None])}
        key = chance.choice(["0", "1", "2", "k", None])
        records.append(TestRecord(chance.choice("xy"), key, value, max(0, place + chance.randint(-9, 9))))
    return records


def outputs(join: Join, columns: bool, types: dict[str, Any], batch_records: int) -> list[Any]:
    builder = StreamsBuilder()
    join(builder, columns, types).to("out")
    driver = TopologyTestDriver(builder.build())
    records = script(types)
    for first in range(0, len(records), batch_records):
        driver.pipe_records(records[first : first + batch_records])
    return [(record.key, _plain(record.value), record.timestamp) for record in driver.read_records("out")]


def _plain(value: Any) -> Any:
    return {name: value[name] for name in "acd"} if isinstance(value, dict) else value


@pytest.mark.parametrize("types", [LONGS, ROWS], ids=["numbers", "rows"])
@pytest.mark.parametrize("name", JOINS)
def test_expressions_join_as_functions_do(name: str, types: dict[str, Any]) -> None:
    expected = outputs(JOINS[name], False, types, 1)
    assert expected
    for batch_records in (1, 7, 1000):
        assert outputs(JOINS[name], True, types, batch_records) == expected


ORDERS = pa.schema([("id", pa.string()), ("customer", pa.string()), ("amount", pa.int64()), ("note", pa.string())])
CUSTOMERS = pa.schema([("id", pa.string()), ("region", pa.string()), ("name", pa.string())])


def orders_and_customers(builder: StreamsBuilder) -> tuple[Any, Any]:
    orders = builder.stream("orders", schema=ORDERS, key_columns=["id"])
    return orders, builder.global_table("customers", schema=CUSTOMERS, key_columns=["id"])


def test_only_the_columns_that_a_join_needs_are_read() -> None:
    builder = StreamsBuilder()
    orders, customers = orders_and_customers(builder)
    orders.join(customers, selector="customer", region=right("region"), amount=left("amount")).to("joined")
    assert compile_topology(builder.build(), {}).readers[0].columns == ("id", "customer", "amount")


def test_all_left_columns_are_kept_if_one_says_so() -> None:
    builder = StreamsBuilder()
    orders, customers = orders_and_customers(builder)
    kept = orders.left_join(customers, selector="customer", keep=True, region=right("region"), note=lit_note())
    kept.to("joined")
    driver = TopologyTestDriver(builder.build())
    driver.pipe("customers", [{"id": "c1", "region": "north", "name": "Ann"}])
    driver.pipe("orders", [{"id": "o1", "customer": "c1", "amount": 5, "note": "n"}, {"id": "o2", "customer": "c2"}])
    assert [record.value for record in driver.read_records("joined")] == [
        {"id": "o1", "customer": "c1", "amount": 5, "note": "N", "region": "north"},
        {"id": "o2", "customer": "c2", "amount": None, "note": None, "region": None},
    ]


def lit_note() -> Any:
    return left("note").upper()


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda o, c: o.join(c, selector="customer"), TopologyError, "give joiner(left, right), or columns such as"),
        (
            lambda o, c: o.join(c, add, selector="customer", region=right("region")),
            TopologyError,
            "and not both",
        ),
        (
            lambda o, c: o.join(c, selector="customer", value="string"),
            TopologyError,
            "value='string' is only for a joiner that is a function: use cast() instead",
        ),
        (
            lambda o, c: o.join(c, selector="customer", region=right("country")),
            UnknownColumnError,
            "no column right.country in its input; the columns are id, left.id, left.customer, left.amount",
        ),
        (
            lambda o, c: o.join(c, selector="customer", id=right("region")),
            TopologyError,
            "id is part of the key: name the column otherwise",
        ),
        (
            lambda o, c: o.join(c, selector="amount", region=right("region")),
            TopologyError,
            "the selector amount is int64, but the table's key is string: cast() it",
        ),
    ],
)
def test_invalid_joins_by_expressions_are_refused(
    build: Callable[[Any, Any], Any], error: type[Exception], message: str
) -> None:
    def compiled() -> None:
        builder = StreamsBuilder()
        build(*orders_and_customers(builder)).to("out")
        compile_topology(builder.build(), {})

    with pytest.raises(error) as refused:
        compiled()
    assert message in str(refused.value)
