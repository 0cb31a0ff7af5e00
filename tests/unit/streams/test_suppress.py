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
