"""Tests of records for topics of bytes.

Keys and values are written by the serdes of their columns or by given ones, and rows in a format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace_streams import (
    Serde,
    StreamsBuilder,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    UserFunctionError,
    Windowed,
    avro,
    col,
    compile_topology,
    count,
    explain,
    json_rows,
    protobuf,
    row,
    sessions,
    sum,
    tumbling,
)
from millrace_streams.layout import OPAQUE_SHAPE
from millrace_streams.runners.topic_rows import OpaqueRows
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.flow import FIXED, Flow, Origin

TYPES = {"key": "string", "value": "long"}
ORDERS = pa.schema([("sku", pa.string()), ("n", pa.int64()), ("day", pa.date32())])
COLUMNS = "sku STRING, n BIGINT"
DAYS = Serde(
    name="days",
    data_type=pa.date32(),
    serialize=lambda day: struct.pack(">i", day.toordinal()),
    deserialize=lambda data: date.fromordinal(struct.unpack(">i", data)[0]),
)


def orders(builder: StreamsBuilder) -> Any:
    """Create a typed topic without a key."""
    return builder.stream("orders", schema=ORDERS, key_columns=())


def longs(builder: StreamsBuilder) -> Any:
    return builder.stream("numbers", **TYPES)


def written(
    build: Callable[[StreamsBuilder], Any], keys: list[Any], values: list[Any]
) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values of the records that a topology's sink makes of results."""
    builder = StreamsBuilder()
    build(builder)
    plan = compile_topology(builder.build(), {})
    [node] = plan.outputs
    layout = plan.layouts[node.name]
    marks = np.zeros((len(keys), FIXED), dtype=np.int64)
    flow = Flow(Batch.of_lists(layout, keys, values, [7] * len(keys)), marks)
    records = OpaqueRows.of(node, layout).written(flow, lambda root: Origin("numbers", 0, root)).batch
    assert records.times == [7] * len(keys)
    return list(zip(records.keys, records.values, strict=True))


@pytest.mark.parametrize("make", [json_rows, avro, protobuf])
def test_rows_are_written_in_a_format_and_rows_without_a_value_as_none(make: Any) -> None:
    serde = make(COLUMNS)
    value = {"sku": "a", "n": 2, "day": None}
    [one, none] = written(lambda b: orders(b).select_key("sku").to("out", value=serde), ["a", "b"], [value, None])
    assert one == (b"a", serde.serialize({"sku": "a", "n": 2}))
    assert serde.deserialize(one[1]) == {"sku": "a", "n": 2}
    assert none == (b"b", None)


def test_several_columns_are_a_key_in_a_format_and_a_window_is_written_after_them() -> None:
    keys, values = avro(COLUMNS), json_rows("day DATE")
    value = {"sku": "a", "n": 2, "day": date(2024, 5, 6)}
    rows = written(
        lambda b: orders(b).select_key("sku", "n").to("out", key=keys, value=values), [("a", 2), None], [value] * 2
    )
    assert rows == [(keys.serialize(value), b'{"day":"2024-05-06"}'), (None, b'{"day":"2024-05-06"}')]

    def counted(window: Any) -> Any:
        return lambda b: orders(b).group_by("sku", "n").windowed_by(window).count().to_stream().to("out", key=keys)

    [(key, data)] = written(counted(tumbling(10)), [Windowed(("a", 2), 20, 30)], [5])
    assert (key, data) == (keys.serialize(value) + struct.pack(">q", 20), struct.pack(">q", 5))
    [(key, _)] = written(counted(sessions(10)), [Windowed(("a", 2), 20, 25)], [5])
    assert key == keys.serialize(value) + struct.pack(">qq", 25, 20)


def test_single_keys_and_values_are_written_by_serdes_of_the_users() -> None:
    def hexed(name: str) -> Serde:
        return Serde(
            name=name,
            data_type=pa.string(),
            serialize=lambda text: text.encode().hex().encode(),
            deserialize=lambda data: bytes.fromhex(data.decode()).decode(),
        )

    rows = written(lambda b: longs(b).to("out", key=hexed("hex"), value="long"), ["a", None], [1, None])
    assert rows == [(b"61", struct.pack(">q", 1)), (None, None)]
    days = written(
        lambda b: orders(b).select_key("day").map_values(lambda v: v["n"], value="long").to("out", key=DAYS),
        [date(2024, 5, 6)],
        [1],
    )
    assert days == [(DAYS.serialize(date(2024, 5, 6)), struct.pack(">q", 1))]


def test_a_topic_to_go_through_is_written_alike() -> None:
    serde = json_rows(COLUMNS)

    def build(builder: StreamsBuilder) -> None:
        through = orders(builder).select_key("sku").through("between", value=serde)
        through.for_each(lambda value: None)

    assert written(build, ["a"], [{"sku": "a", "n": 2, "day": None}]) == [(b"a", b'{"sku":"a","n":2}')]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda b: orders(b).select_key("sku").to("out", key="string"),
            r"the value of out is one value in a topic of bytes, not the columns n, day: write them in a format, "
            r"value=json_rows\(\.\.\.\), avro",
        ),
        (
            lambda b: orders(b).select_key("sku", "n").through("out", value=json_rows(COLUMNS)).for_each(print),
            "KSTREAM-REPARTITION-.*: the key of out is one value in a topic of bytes, not the columns sku, n",
        ),
        (
            lambda b: longs(b).to("out", value=row(COLUMNS)),
            "is written in a format, which row of sku, n does not define",
        ),
        (lambda b: longs(b).to("out", value=avro("m BIGINT")), "the value of out: no column m in its input"),
        (
            lambda b: orders(b).to("out", value=avro("n INT")),
            "the value of out: its column n is int64, not int32 as in avro of n: cast",
        ),
        (lambda b: longs(b).to("out", value="string"), "the value of out is long, not string: convert it by"),
        (
            lambda b: orders(b).to("out", key="string", value=json_rows("n BIGINT")),
            "the records have no key: select_key",
        ),
        (
            lambda b: orders(b).select_key("day").to("out", value=json_rows("n BIGINT")),
            r"the key of out is date32\[day\], which no serde writes: cast\(\) it to one of string, .*key=Serde",
        ),
    ],
)
def test_values_that_a_serde_cannot_write_are_refused_by_all_runners(
    build: Callable[[StreamsBuilder], Any], message: str
) -> None:
    def made() -> TopologyTestDriver:
        builder = StreamsBuilder()
        build(builder)
        return TopologyTestDriver(builder.build())

    with pytest.raises(TopologyError, match=message):
        made()


def test_the_driver_refuses_what_a_topic_of_bytes_cannot_hold() -> None:
    builder = StreamsBuilder()
    orders(builder).select_key("sku").to("out")
    TopologyTestDriver(builder.build())
    with pytest.raises(TopologyError, match="the value of out is one value in a topic of bytes"):
        TopologyTestDriver(builder.build(), topics={"out": OPAQUE_SHAPE})
    builder = StreamsBuilder()
    strict = avro(pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    longs(builder).group_by_key().aggregate(n=sum("value")).to_stream().to("out", value=strict, name="sums")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("numbers", "a", 1, 0)])
    assert driver.read("out")[0]["n"] == 1
    builder = StreamsBuilder()
    longs(builder).with_columns(n=col("value") + col("value")).to("out", value=strict, name="sums")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match=r"sums: the value \{'n': None\} cannot be written as avro of n: ") as e:
        driver.pipe("numbers", [{"key": "a", "value": 1}, {"key": "a", "value": None}])
    assert (e.value.node, e.value.topic, e.value.partition, e.value.offset) == ("sums", "numbers", 0, 1)


def test_a_serde_that_gives_something_else_than_bytes_is_blamed_with_the_record() -> None:
    careless = Serde(
        name="words",
        data_type=pa.string(),
        serialize=lambda text: 7 if "b" in text else text.encode(),  # type: ignore[return-value]
        deserialize=bytes.decode,
    )
    builder = StreamsBuilder()
    longs(builder).map_values(lambda value: "ab"[value], value="string").to("out", value=careless)
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match=r"the value 'b' cannot be written as words: .*offset 1, timestamp 5"):
        driver.pipe_records([TestRecord("numbers", "k", value, 5) for value in (0, 1, 0)])


def test_an_error_of_a_wall_clock_result_names_no_record() -> None:
    builder = StreamsBuilder()
    byte = Serde(
        name="byte", data_type=pa.int64(), serialize=lambda n: struct.pack(">B", n), deserialize=lambda data: data[0]
    )
    longs(builder).to("out", value=byte)
    plan = compile_topology(builder.build(), {})
    [node] = plan.outputs
    layout = plan.layouts[node.name]
    flow = Flow(Batch.of_lists(layout, ["a"], [300], [7]), np.full((1, FIXED), -1, dtype=np.int64))
    with pytest.raises(UserFunctionError, match=r"cannot be written as byte: .* \(no record\)") as e:
        OpaqueRows.of(node, layout).written(flow, [Origin("innocent", 0, 0)].__getitem__)
    assert (e.value.topic, e.value.offset) == (None, None)


def test_explain_says_how_a_topic_is_written() -> None:
    builder = StreamsBuilder()
    orders(builder).group_by("sku").aggregate(n=count()).to_stream().to("out", key="string", value=avro(COLUMNS))
    text = explain(compile_topology(builder.build(), {}))
    assert "write to topic out (key as string, value as avro of sku, n)" in text
