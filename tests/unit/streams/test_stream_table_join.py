"""A stream joined with a table: key by key while that rests, record by record while it changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams import StreamsBuilder, TopologyTestDriver
from millrace_streams.runners.driver import TestRecord

cells = st.sampled_from([None, "a", "b", "c"])


def joining(kind: str) -> TopologyTestDriver:
    """A driver of such a join, whose table has rows for a and b."""
    builder = StreamsBuilder()
    table = builder.table("table", key="string", value="string")
    stream = builder.stream("stream", key="string", value="string")
    join = stream.join if kind == "inner" else stream.left_join
    join(table, lambda key, left, right: f"{key} {left} {right}", value="string").to("joined")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("table", "a", "A", 0), TestRecord("table", "b", "B", 0)])
    return driver


@pytest.mark.parametrize("kind", ["inner", "left"])
@given(records=st.lists(st.tuples(cells, cells), max_size=12))
def test_it_is_nothing_to_records_that_another_row_of_the_table_changes(
    kind: str, records: list[tuple[str | None, str | None]]
) -> None:
    resting, changing = joining(kind), joining(kind)
    stream = [TestRecord("stream", key, value, time_ms) for time_ms, (key, value) in enumerate(records)]
    resting.pipe_records(stream)
    changing.pipe_records([TestRecord("table", "z", "Z", 0), *stream])
    assert resting.read_records("joined") == changing.read_records("joined")
    assert resting.dropped_records == changing.dropped_records
