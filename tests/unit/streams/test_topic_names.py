"""Tests of topics that a function names, in the test driver."""

from __future__ import annotations

from typing import Any

import pytest

from millrace_streams import (
    RecordContext,
    StreamsBuilder,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    UserFunctionError,
    col,
)

TYPES = {"key": "string", "value": "long"}


def written_by(function: Any, **options: Any) -> TopologyTestDriver:
    builder = StreamsBuilder()
    builder.stream("in", **TYPES).to(function, **options)
    return TopologyTestDriver(builder.build())


def test_each_record_goes_to_the_topic_that_is_named_for_it() -> None:
    for function in (
        lambda value: "odd" if value % 2 else "even",
        lambda key, value: "odd" if value % 2 else "even",
        lambda key, value, context: "odd" if value % 2 else "even",
    ):
        driver = written_by(function)
        driver.pipe_records([TestRecord("in", "a", value, value) for value in (1, 2, 3)])
        assert [record.value for record in driver.read_records("odd")] == [1, 3]
        assert [record.value for record in driver.read_records("even")] == [2]
        assert driver.read_records("none yet") == []


def test_the_function_gets_the_origin_of_the_record() -> None:
    told: list[RecordContext] = []

    def name(key: str, value: int, context: RecordContext) -> str:
        told.append(context)
        return "out"

    driver = written_by(name)
    driver.pipe_records([TestRecord("in", "a", 1, 7), TestRecord("in", "a", 2, 8, (("h", b"x"),))])
    assert told == [RecordContext("in", 0, 0, 7), RecordContext("in", 0, 1, 8, (("h", b"x"),))]


def test_records_of_the_wall_clock_have_no_place() -> None:
    told: list[RecordContext] = []

    class Clock:
        def init(self, context: Any) -> None:
            context.schedule(100, "wall_clock_time", lambda time_ms: context.forward("tick", time_ms, 5))

        def process(self, record: Any) -> None:
            pass

    def name(key: str, value: int, context: RecordContext) -> str:
        told.append(context)
        return "out"

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).process(Clock).to(name)
    TopologyTestDriver(builder.build()).advance_wall_clock(100)
    assert told == [RecordContext(None, -1, -1, 5)]


@pytest.mark.parametrize("at_once", [True, False])
def test_records_of_several_sinks_keep_their_order_in_a_topic(at_once: bool) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TYPES)
    stream.to("both")
    stream.map_values(lambda value: -value).to(lambda value: "both")
    driver = TopologyTestDriver(builder.build())
    records = [TestRecord("in", "a", value, 0) for value in (1, 2)]
    for batch in [records] if at_once else [[record] for record in records]:
        driver.pipe_records(batch)
    assert [record.value for record in driver.read_records("both")] == [1, -1, 2, -2]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda value: None, "returned None, which cannot be the name of a topic"),
        (lambda value: "no topic", "returned 'no topic', which cannot be the name of a topic"),
        (lambda value: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_a_function_that_names_no_topic_stops_the_query_at_the_record(function: Any, message: str) -> None:
    with pytest.raises(UserFunctionError, match=message) as error:
        written_by(function, name="sink").pipe_records([TestRecord("in", "a", 1, 0)])
    assert (error.value.node, error.value.topic, error.value.offset) == ("sink", "in", 0)


def test_rows_of_columns_need_a_format_and_a_function_one_to_three_parameters() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TYPES)
    with pytest.raises(TopologyError, match=r"must take \(value\), \(key, value\) or \(key, value, context\)"):
        stream.to(lambda: "out")
    stream.map_values(twice=col("value") * 2, same=col("value")).to(lambda value: "out")
    with pytest.raises(TopologyError, match="is one value in a topic of bytes, not the columns"):
        TopologyTestDriver(builder.build())


def test_the_description_names_the_function() -> None:
    def by_parity(value: int) -> str:
        return "odd" if value % 2 else "even"

    builder = StreamsBuilder()
    builder.stream("in", **TYPES).to(by_parity, name="sink")
    assert "Sink: sink (extractor class: " in builder.build().describe()
