"""Tests of serdes.

The tests check Kafka's bytes, and the order of keys by them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams import BOOLEAN, BYTES, DOUBLE, INTEGER, JSON, LONG, STRING, StreamsBuilder, TestRecord
from millrace_streams import TopologyTestDriver as Driver
from millrace_streams.errors import TopologyError, UserFunctionError
from millrace_streams.serdes import RowSerde, parse_json, row, serde_of, sort_key
from millrace_streams.steps.deserialization import UnreadableError, check_json


@pytest.mark.parametrize(
    ("serde", "value", "data"),
    [
        (STRING, "grün", b"gr\xc3\xbcn"),
        (LONG, -2, b"\xff" * 7 + b"\xfe"),
        (INTEGER, 258, b"\x00\x00\x01\x02"),
        (DOUBLE, 1.5, b"\x3f\xf8" + bytes(6)),
        (BYTES, b"\x00a", b"\x00a"),
        (BOOLEAN, True, b"\x01"),
        (JSON, {"a": [1, None]}, b'{"a":[1,null]}'),
    ],
)
def test_bytes_are_those_of_kafkas_serializers(serde: Any, value: Any, data: bytes) -> None:
    assert serde.serialize(value) == data
    assert serde.deserialize(data) == value


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_longs_are_ordered_by_their_bytes(numbers: list[int]) -> None:
    assert sorted(numbers, key=sort_key) == sorted(numbers, key=LONG.serialize)


@given(st.lists(st.text()))
def test_strings_are_ordered_by_their_bytes(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    assert sorted(texts, key=sort_key) == sorted(texts, key=STRING.serialize)


@pytest.mark.parametrize(
    ("given_serde", "serde"),
    [
        ("long", LONG),
        (str, STRING),
        (pa.int32(), INTEGER),
        (pa.schema([("value", pa.float64())]), DOUBLE),
        (JSON, JSON),
    ],
)
def test_a_serde_is_named_in_many_ways(given_serde: Any, serde: Any) -> None:
    assert serde_of(given_serde, "node") is serde


def test_other_types_are_values_but_not_bytes() -> None:
    dates = serde_of(pa.date32(), "node")
    assert not isinstance(dates, RowSerde)
    with pytest.raises(TopologyError, match=r"date32.* has no serde: a topic of bytes can hold string, bytes"):
        dates.serialize("2013-01-01")


def test_json_values_and_rows_go_through_stores_and_windows() -> None:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key="string", value="json")
    lines = orders.flat_map_values(
        lambda order: order["lines"], value=row(pa.schema([("sku", pa.string()), ("n", pa.int64())]))
    )
    lines.group_by("sku").reduce(lambda one, other: {**one, "n": one["n"] + other["n"]}, store="sold").to_stream().to(
        "sold"
    )
    orders.to_table(store="orders").to_stream().to("all")
    driver = Driver(builder.build())
    order = {"lines": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}, {"sku": "a", "n": 3}]}
    driver.pipe_records([TestRecord("orders", "o1", order, 0), TestRecord("orders", "o1", None, 1)][:1])
    assert [(record.key, record.value["n"]) for record in driver.read_records("sold")] == [("a", 1), ("b", 2), ("a", 4)]
    assert driver.read_records("all")[0].value == order
    assert driver.view("orders").get("o1") == order


@given(st.text('[]{},:" \\ud8019-.eNaIu') | st.recursive(st.floats() | st.text(), st.lists).map(json.dumps))
def test_the_check_of_json_accepts_exactly_the_texts_that_can_be_parsed(text: str) -> None:
    try:
        parse_json(text)
    except ValueError:
        with pytest.raises(UnreadableError):
            check_json(pl.Series(["1", text]))
    else:
        check_json(pl.Series(["1", text]))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "build",
    [
        lambda stream, number: stream.map_values(lambda value: {"n": [number]}),
        lambda stream, number: stream.select_key(lambda value: number, key="json"),
        lambda stream, number: stream.group_by_key().aggregate(lambda: 0, lambda k, v, a: number, value="json"),
    ],
)
def test_a_number_that_json_does_not_have_is_refused_at_its_record(build: Callable[..., Any], number: float) -> None:
    builder = StreamsBuilder()
    build(builder.stream("orders", key="string", value="json"), number).to_delta("results")
    with pytest.raises(UserFunctionError, match=r"not JSON compliant: .*record of topic orders, partition 0, offset 0"):
        Driver(builder.build()).pipe_records([TestRecord("orders", "o1", 1, 0)])
