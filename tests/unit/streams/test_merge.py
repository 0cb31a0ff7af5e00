"""Tests of merged streams of single values.

The names of their columns do not matter.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from millrace_streams import StreamsBuilder, TestRecord, TopologyError, TopologyTestDriver, col, tumbling

LONGS = {"key": "string", "value": "long"}


def merged(builder: StreamsBuilder) -> Any:
    numbers = builder.stream("numbers", **LONGS)
    counts = numbers.group_by_key().count().to_stream()
    letters = builder.stream("words", key="string", value="string").select_key(word=col("value"))
    lengths = letters.map_values(length=col("value").length().cast("bigint"))
    return numbers, counts, lengths


@pytest.mark.parametrize("counts_first", [False, True])
@pytest.mark.parametrize("edges", [(0, 1, 2, 3, 4), (0, 3, 4), (0, 4)])
def test_columns_of_other_names_are_merged(edges: tuple[int, ...], counts_first: bool) -> None:
    builder = StreamsBuilder()
    numbers, counts, lengths = merged(builder)
    both = counts.merge(numbers) if counts_first else numbers.merge(counts)
    both.merge(lengths).filter(col("count" if counts_first else "value") > 0).to("out")
    driver = TopologyTestDriver(builder.build())
    script = [
        TestRecord("numbers", "a", 7, 0),
        TestRecord("words", "k", "word", 1),
        TestRecord("numbers", "a", 0, 2),
        TestRecord("numbers", "b", 9, 3),
    ]
    for start, end in pairwise(edges):
        driver.pipe_records(script[start:end])
    found = [(record.key, record.value) for record in driver.read_records("out")]
    assert sorted(found) == [("a", 1), ("a", 2), ("a", 7), ("b", 1), ("b", 9), ("word", 4)]


def test_windows_are_merged_too() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("numbers", **LONGS).group_by_key().windowed_by(tumbling(10))
    counts, sums = grouped.count(column="n"), grouped.reduce(lambda one, other: one + other)
    counts.to_stream().merge(sums.to_stream()).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("numbers", "a", 7, 0), TestRecord("numbers", "a", 5, 12)])
    found = [(record.key.key, record.key.start, record.value) for record in driver.read_records("out")]
    assert found == [("a", 0, 1), ("a", 0, 7), ("a", 10, 1), ("a", 10, 5)]


def test_several_topics_are_read_as_one_stream() -> None:
    builder = StreamsBuilder()
    together = builder.stream(["x", "y", "z"], key="string", value="long", name="all")
    together.group_by_key().reduce(lambda one, other: one * 10 + other).to_stream().to("out")
    topology = builder.build()
    assert [(source.name, source.topic) for source in topology.sources] == [
        ("all-x", "x"),
        ("all-y", "y"),
        ("all-z", "z"),
    ]
    driver = TopologyTestDriver(topology)
    driver.pipe_records([TestRecord(topic, "a", number, 5) for number, topic in enumerate("xzyx", start=1)])
    assert [record.value for record in driver.read_records("out")] == [1, 12, 123, 1234]
    alone = StreamsBuilder()
    alone.stream(["x"], key="string", value="long").to("out")
    assert [source.topic for source in alone.build().sources] == ["x"]


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ([], "name at least one topic, and none twice"),
        (["x", "x"], "name at least one topic, and none twice"),
        (
            re.compile("x.*"),
            r"a topic is given by its name; topics of a pattern are not followed: name them, stream\(\[",
        ),
        (5, "source of 5: a topic is given by its name"),
    ],
)
def test_arguments_that_name_no_topic_are_refused(topics: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        StreamsBuilder().stream(topics, key="string", value="long")
    if topics:
        with pytest.raises(TopologyError, match="a topic is given by its name"):
            StreamsBuilder().table(topics, key="string", value="long")


@pytest.mark.parametrize("second_first", [False, True])
def test_a_record_that_two_sources_read_goes_through_the_first_of_them_first(second_first: bool) -> None:
    builder = StreamsBuilder()
    first = builder.stream("in", **LONGS)
    second = builder.stream("in", **LONGS).map_values(lambda value: -value)
    (second.merge(first) if second_first else first.merge(second)).to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("in", "a", value, 0) for value in (1, 2)])
    assert [record.value for record in driver.read_records("out")] == [1, -1, 2, -2]


@pytest.mark.parametrize("at_once", [True, False])
def test_records_through_two_repartition_topics_are_taken_in_turn(at_once: bool) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **LONGS)
    first = stream.flat_map_values(lambda value: [f"a{at}" for at in range(value)], value="string")
    second = stream.flat_map_values(
        lambda value: [f"b{at}" for at in range(value)] if value < 3 else [], value="string"
    )
    one, other = (each.select_key(lambda key, value: value).repartition() for each in (first, second))
    one.merge(other).to("out")
    driver = TopologyTestDriver(builder.build())
    records = [TestRecord("in", "k", value, 0) for value in (3, 2)]
    for batch in [records] if at_once else [[record] for record in records]:
        driver.pipe_records(batch)
    assert [record.value for record in driver.read_records("out")] == ["a0", "a1", "a2", "a0", "b0", "a1", "b1"]


@pytest.mark.parametrize("at_once", [True, False])
def test_branches_of_branches_are_merged_in_the_order_of_single_records(at_once: bool) -> None:
    builder = StreamsBuilder()
    texts = builder.stream("in", **LONGS).flat_map_values(lambda value: [f"{value}", f"{value + 1}"], value="string")

    def branches(stream: Any, depth: int) -> Any:
        if not depth:
            return stream
        first, second = (stream.map_values(lambda text, end=end: text + end) for end in "ab")
        return branches(first, depth - 1).merge(second)

    branches(texts, 3).to("out")
    driver = TopologyTestDriver(builder.build())
    records = [TestRecord("in", "k", value, 0) for value in (1, 7)]
    for batch in [records] if at_once else [[record] for record in records]:
        driver.pipe_records(batch)
    expected = [f"{number}{end}" for number in (1, 2, 7, 8) for end in ("aaa", "aab", "ab", "b")]
    assert [record.value for record in driver.read_records("out")] == expected
