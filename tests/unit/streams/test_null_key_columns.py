"""Tests of keys of several columns with a null in some.

A null is a value of its own, and comes first in orders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    TestRecord,
    TopicShape,
    TopologyTestDriver,
    col,
    count,
    left,
    right,
    sessions,
    sliding,
    tumbling,
    unlimited,
    within,
)

SCHEMA = pa.schema([("one", pa.string()), ("two", pa.string()), ("n", pa.int64())])
SHAPE = TopicShape(schema=SCHEMA, key_columns=("one", "two"))


def row(topic: str, two: str | None, n: int, time_ms: int) -> TestRecord:
    return TestRecord(topic, ("a", two), {"one": "a", "two": two, "n": n}, time_ms)


def driver_of(build: Callable[[StreamsBuilder], None], *topics: str) -> TopologyTestDriver:
    builder = StreamsBuilder()
    build(builder)
    return TopologyTestDriver(builder.build(), topics=dict.fromkeys(topics, SHAPE))


def closing(windows: Any) -> Callable[[Any], Any]:
    def counts(x: Any) -> Any:
        grouped = x.group_by_key().windowed_by(windows).emit_strategy("on_window_close")
        return grouped.aggregate(n=count(), store="kept").to_stream()

    return counts


def suppressed(x: Any) -> Any:
    table = x.group_by_key().windowed_by(tumbling(10)).aggregate(n=count(), store="kept")
    return table.suppress(Suppressed.until_window_closes()).to_stream()


def limited(x: Any) -> Any:
    return x.to_table(store="kept").suppress(Suppressed.until_time_limit(5)).to_stream()


def unmatched(x: Any) -> Any:
    return x.left_join(x.filter(col("n") > 5), m=right("n"), window=within(3), name="pairs")


@pytest.mark.parametrize(
    "build",
    [closing(tumbling(10)), closing(sessions(5)), closing(sliding(5)), suppressed, limited, unmatched],
    ids=["tumbling", "sessions", "sliding", "suppressed", "time limit", "left join"],
)
def test_results_of_one_time_are_ordered_by_key_with_nulls_first(build: Callable[[Any], Any]) -> None:
    driver = driver_of(lambda builder: build(builder.stream("x")).to("out"), "x")
    driver.pipe_records([row("x", "c", 1, 1), row("x", None, 1, 1), row("x", "b", 1, 1), row("x", "z", 1, 1000)])
    assert [result["two"] for result in driver.read("out")][:3] == [None, "b", "c"]


def test_subscribers_of_a_foreign_row_are_ordered_by_key_with_nulls_first() -> None:
    def build(builder: StreamsBuilder) -> None:
        rows = builder.stream("y").select_key("one").to_table(store="ys")
        joined = builder.stream("x").to_table(store="xs").join(rows, foreign_key="one", m=right("n"), name="linked")
        joined.to_stream().to("out")

    driver = driver_of(build, "x", "y")
    driver.pipe_records([row("x", "b", 1, 1), row("x", None, 1, 2), row("y", "q", 7, 3)])
    assert [(result["two"], result["m"]) for result in driver.read("out")] == [(None, 7), ("b", 7)]


def test_stored_entries_are_ordered_by_key_with_nulls_first() -> None:
    kept = driver_of(lambda builder: builder.stream("x").to_table(store="kept").to_stream().to("out"), "x")
    kept.pipe_records([row("x", "b", 1, 1), row("x", None, 1, 2)])
    assert [entry.key for entry in kept.entries("kept")] == [("a", None), ("a", "b")]


@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_join_finds_the_changes_of_its_micro_batch_under_a_key_with_a_null(size: int) -> None:
    def build(builder: StreamsBuilder) -> None:
        table = builder.table("y", store="ys")
        builder.stream("x").left_join(table, x=left("n"), y=right("n"), name="pairs").to("out")

    driver = driver_of(build, "x", "y")
    script = [row("y", None, 1, 0), row("x", None, 10, 1), row("y", "b", 2, 2), row("x", "b", 11, 3)]
    script += [row("y", None, 3, 4), row("x", None, 12, 5)]
    for first in range(0, len(script), size):
        driver.pipe_records(script[first : first + size])
    found = [(result["two"], result["x"], result["y"]) for result in driver.read("out")]
    assert found == [(None, 10, 1), ("b", 11, 2), (None, 12, 3)]


@pytest.mark.parametrize("size", [1, 4])
def test_a_join_finds_the_changes_of_its_micro_batch_in_a_window_without_end(size: int) -> None:
    def build(builder: StreamsBuilder) -> None:
        x, y = (builder.stream(topic).group_by_key().windowed_by(unlimited()) for topic in "xy")
        table = y.aggregate(m=count(), store="ys")
        counts = x.aggregate(n=count(), store="xs").to_stream()
        counts.left_join(table, n=left("n"), m=right("m"), name="pairs").to("out")

    driver = driver_of(build, "x", "y")
    script = [row("y", "a", 1, 0), row("x", "a", 1, 1), row("y", "a", 1, 2), row("x", "a", 1, 3)]
    for first in range(0, len(script), size):
        driver.pipe_records(script[first : first + size])
    assert [(result["n"], result["m"]) for result in driver.read("out")] == [(1, 1), (2, 2)]
