"""Tests of the limits of suppression.

A reached limit emits early results, or ends the query.
"""

from __future__ import annotations

from typing import Any

import pytest

from millrace_streams import (
    BufferConfig,
    StreamsBuilder,
    Suppressed,
    TestRecord,
    TopologyTestDriver,
    UserFunctionError,
    sessions,
    tumbling,
)

TYPES = {"key": "string", "value": "long"}
RECORDS = [TestRecord("t", key, place, 10 + place) for place, key in enumerate("abacbd")]


def held_back(buffer: BufferConfig | None) -> TopologyTestDriver:
    builder = StreamsBuilder()
    table = builder.table("t", **TYPES)
    table.suppress(Suppressed.until_time_limit(100, buffer), name="wait").to_stream().to("out")
    return TopologyTestDriver(builder.build())


def out_of(driver: TopologyTestDriver) -> list[tuple[Any, Any]]:
    return [(record.key, record.value) for record in driver.read_records("out")]


@pytest.mark.parametrize("at_once", [True, False])
def test_the_oldest_row_is_emitted_early_beyond_the_limit_of_rows(at_once: bool) -> None:
    driver = held_back(BufferConfig.max_records(2))
    for batch in [RECORDS] if at_once else [[record] for record in RECORDS]:
        driver.pipe_records(batch)
    # The row of c is the third held one, and so is that of d later. Each time the oldest row is emitted as it is then.
    assert out_of(driver) == [("a", 2), ("b", 4)]
    driver.pipe_records([TestRecord("t", "e", 9, 200)])
    assert out_of(driver) == [("c", 3), ("d", 5)]


@pytest.mark.parametrize("final", [False, True])
def test_a_strict_buffer_that_is_full_stops_the_query_and_names_the_record(final: bool) -> None:
    strict = BufferConfig.max_records(2).shut_down_when_full()
    if final:
        builder = StreamsBuilder()
        counts = builder.stream("t", **TYPES).group_by_key().windowed_by(tumbling(50)).count()
        counts.suppress(Suppressed.until_window_closes(strict), name="wait").to_stream().to("out")
        driver = TopologyTestDriver(builder.build())
    else:
        driver = held_back(strict)
    driver.pipe_records(RECORDS[:3])
    with pytest.raises(UserFunctionError, match="wait: more than 2 rows are held back: allow more, or emit_early") as e:
        driver.pipe_records(RECORDS[3:])
    assert (e.value.node, e.value.topic, e.value.offset) == ("wait", "t", 3)


def test_an_unbounded_buffer_holds_all() -> None:
    for buffer in (None, BufferConfig.unbounded()):
        driver = held_back(buffer)
        driver.pipe_records(RECORDS)
        assert out_of(driver) == []
        driver.pipe_records([TestRecord("t", "e", 9, 200)])
        assert out_of(driver) == [("a", 2), ("b", 4), ("c", 3), ("d", 5)]


def final(build: Any, script: list[tuple[str, int]], *, at_once: bool) -> list[tuple[str, int]]:
    """Return keys with starts and values of a suppression's results for records of these topics and times."""
    builder = StreamsBuilder()
    table = build(*(builder.stream(topic, **TYPES).group_by_key() for topic in "xy"))
    held = table.suppress(Suppressed.until_window_closes())
    held.to_stream(lambda key, _: f"{key.key}{key.start}", key="string").to("out")
    driver = TopologyTestDriver(builder.build())
    records = [TestRecord(topic, "a", 1, time_ms) for topic, time_ms in script]
    found = []
    for batch in [records] if at_once else [[record] for record in records]:
        driver.pipe_records(batch)
        found += out_of(driver)
    return found


def both(one: int | None, other: int | None) -> int:
    return (one or 0) * 10 + (other or 0)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(("left_ms", "right_ms"), [(0, 10), (10, 0)])
def test_a_joined_window_closes_after_the_longest_grace_of_both_tables(
    left_ms: int, right_ms: int, at_once: bool
) -> None:
    # GraphGraceSearchUtil of Kafka Streams: all parents must define a grace, and the longest counts.
    def build(x: Any, y: Any) -> Any:
        left = x.windowed_by(tumbling(10, grace=left_ms)).count()
        return left.outer_join(y.windowed_by(tumbling(10, grace=right_ms)).count().filter(lambda n: n > 0), both)

    script = [("x", 1), ("y", 2), ("x", 19)]
    assert final(build, script, at_once=at_once) == []
    assert final(build, [*script, ("y", 20)], at_once=at_once) == [("a0", 11)]


@pytest.mark.parametrize(
    ("build", "closed_ms"),
    [
        (lambda x, _: x.windowed_by(tumbling(10, grace=3)).count().to_stream().to_table(store="again"), 13),
        (lambda x, _: x.windowed_by(tumbling(10, grace=3)).count().to_stream().group_by_key().reduce(max), 13),
        (lambda x, _: x.windowed_by(tumbling(10)).count().suppress(Suppressed.until_time_limit(0)), 10),
        (lambda x, y: x.windowed_by(sessions(5, grace=4)).count().outer_join(
            y.windowed_by(sessions(5)).count(), both), 10),
    ],
)  # fmt: skip
def test_a_window_closes_behind_any_operators_by_the_grace_of_its_aggregation(build: Any, closed_ms: int) -> None:
    for at_once in (True, False):
        assert final(build, [("x", 1), ("x", closed_ms - 1)], at_once=at_once) == []
        [(key, _)] = final(build, [("x", 1), ("x", closed_ms)], at_once=at_once)
        assert key in ("a0", "a1")


class Passing:
    """A processor that forwards values as they are."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        self.context.forward_value(record.value)


@pytest.mark.parametrize(
    "behind",
    [
        lambda stream, known: stream.join(known, lambda n, _: n, selector=lambda key, _: key.key),
        lambda stream, _: stream.process_values(Passing, stores=["t"]),
        lambda stream, _: stream.process_values(Passing, stores=["g"]),
    ],
    ids=["global_join", "processor_of_table", "processor_of_global_table"],
)
def test_a_table_that_a_stream_reads_has_no_part_in_the_close_of_its_windows(behind: Any) -> None:
    # KStreamImpl of Kafka Streams: only the stream is a parent of its join with a table, and of a processor.
    builder = StreamsBuilder()
    builder.table("t", **TYPES, store="t")
    known = builder.global_table("g", **TYPES, store="g")
    counts = builder.stream("x", **TYPES).group_by_key().windowed_by(tumbling(10, grace=3)).count()
    held = behind(counts.to_stream(), known).to_table(store="again").suppress(Suppressed.until_window_closes())
    held.to_stream(lambda key, _: f"{key.key}{key.start}", key="string").to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("g", "a", 1, 0)])
    driver.pipe_records([TestRecord("x", "a", 1, 1), TestRecord("x", "a", 1, 12)])
    assert out_of(driver) == []
    driver.pipe_records([TestRecord("x", "a", 1, 13)])
    assert out_of(driver) == [("a0", 1)]
