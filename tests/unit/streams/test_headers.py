"""Tests of headers.

Results keep the headers, through stores, joins and repartitions.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from millrace_streams import Record, StreamsBuilder, TestRecord, TopologyTestDriver, compile_topology, count
from millrace_streams.layout import Layout
from millrace_streams.runners.shuffle import arrive, repartition_frame
from millrace_streams.serdes import LONG, STRING
from millrace_streams.steps.batch import HEADERS, OFFSET, PARTITION, TIMESTAMP
from millrace_streams.steps.flow import ROOT
from millrace_streams.steps.reader import Reader

TYPES = {"key": "string", "value": "long"}
SCHEMA = pa.schema([STRING.field("key"), LONG.field("value")])
TRACE = (("trace", b"1"), ("empty", None))


def given(rows: list[dict[str, Any]]) -> list[tuple[Any, Any, Any]]:
    """Return key, value and the headers as they were piped."""
    return [
        (row["key"], row["value"], tuple((each["key"], each["value"]) for each in row.get(HEADERS, ()))) for row in rows
    ]


def test_results_of_a_record_keep_its_headers() -> None:
    builder = StreamsBuilder()
    numbers, others = builder.stream("numbers", **TYPES), builder.table("others", **TYPES)
    numbers.filter(lambda value: value > 0).map_values(lambda value: value * 10, value="long").to("passed")
    numbers.group_by_key().reduce(lambda one, other: one + other).to_stream().to("sums")
    numbers.group_by(lambda key, value: "all", key="string").aggregate(value=count()).to_stream().to("moved")
    numbers.join(others, lambda one, other: one + other).to("joined")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records(
        [
            TestRecord("others", "a", 7, 0, (("table", b"t"),)),
            TestRecord("numbers", "a", 1, 1, TRACE),
            TestRecord("numbers", "b", -1, 2, (("trace", b"2"),)),
            TestRecord("numbers", "a", 2, 3),
        ]
    )
    assert given(driver.read("passed")) == [("a", 10, TRACE), ("a", 20, ())]
    assert given(driver.read("sums")) == [("a", 1, TRACE), ("b", -1, (("trace", b"2"),)), ("a", 3, ())]
    assert given(driver.read("moved")) == [("all", 1, TRACE), ("all", 2, (("trace", b"2"),)), ("all", 3, ())]
    assert given(driver.read("joined")) == [("a", 8, TRACE), ("a", 9, ())]


def test_a_processor_sees_the_headers_of_the_record_in_hand_and_none_in_a_punctuation() -> None:
    seen = []

    class Looking:
        def init(self, context: Any) -> None:
            self.context = context
            context.schedule(10, "wall_clock_time", lambda time_ms: seen.append(context.headers))

        def process(self, record: Record) -> None:
            seen.append(self.context.headers)
            self.context.forward(record)
            self.context.forward("twice", record.value)

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Looking).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("in", "a", 1, 0, TRACE), TestRecord("in", "b", 2, 0)])
    driver.advance_wall_clock(20)
    assert seen == [TRACE, (), ()]
    assert given(driver.read("out")) == [("a", 1, TRACE), ("twice", 1, TRACE), ("b", 2, ()), ("twice", 2, ())]


def test_headers_cross_to_other_buckets_beside_rows_that_have_none() -> None:
    layout = Layout(schema=SCHEMA, key=("key",), bucket_columns=None, value="value")
    headers = pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))
    trace = [{"key": "trace", "value": b"1"}]
    with_some = _frame([0, 2, 4], pl.Series(HEADERS, [trace, None, trace], dtype=headers))
    flows, roots = arrive({"x": with_some, "y": _frame([1, 3])}, {"x": layout, "y": layout}, {"y": 1}, 0, 0)
    frames = {name: repartition_frame(flow, roots, pickled=False, topic=True) for name, flow in flows.items()}
    assert frames["x"][HEADERS].to_list() == [trace, None, trace]
    assert frames["y"][HEADERS].to_list() == [None, None]
    again, there = arrive(frames, {"x": layout, "y": layout}, {}, 0, 0)
    origin = there.origin(["first", "second"])
    found = [origin(root) for flow in again.values() for root in flow.marks[:, ROOT].tolist()]
    assert [(place.topic, place.offset, place.headers) for place in found] == [
        ("first", 0, (("trace", b"1"),)),
        ("first", 2, ()),
        ("first", 4, (("trace", b"1"),)),
        ("second", 1, ()),
        ("second", 3, ()),
    ]


def test_without_any_headers_nothing_is_carried() -> None:
    layout = Layout(schema=SCHEMA, key=("key",), bucket_columns=None, value="value")
    flows, roots = arrive({"x": _frame([1, 2])}, {"x": layout}, {}, 0, 0)
    assert roots.headers_of(flows["x"].marks) is None
    assert HEADERS not in repartition_frame(flows["x"], roots, pickled=False, topic=False).columns


def _frame(offsets: list[int], *more: pl.Series) -> pl.DataFrame:
    columns = {"key": [f"k{each}" for each in offsets], "value": offsets, TIMESTAMP: offsets, OFFSET: offsets}
    return pl.DataFrame(columns).with_columns(pl.lit(0, pl.Int32).alias(PARTITION), *more)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [(None, None), ([None, None], None), ([[], None], [[], None]), ([None, [b"1"]], [None, [b"1"]])],
)
def test_a_reader_carries_headers_if_any_record_has_them(headers: Any, expected: Any) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TYPES).to("out")
    [reader] = compile_topology(builder.build(), {}).readers
    decoded = pl.DataFrame(
        {"key": [b"a", b"b"], "value": [(1).to_bytes(8, "big")] * 2, OFFSET: [4, 5], TIMESTAMP: [0, 1]}
    )
    if headers is not None:
        decoded = decoded.with_columns(pl.Series(HEADERS, headers, dtype=pl.List(pl.Binary)))
    rows, dropped = Reader(reader.source, reader.layout, reader.operators).run(decoded, 0)
    assert (rows["value"].to_list(), rows[OFFSET].to_list(), dropped) == ([1, 1], [4, 5], 0)
    assert (rows[HEADERS].to_list() if HEADERS in rows.columns else None) == expected
