"""Tests of stream-table joins.

Each record sees the table's version at its time.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams import StreamsBuilder, TopologyTestDriver
from millrace_streams.runners.topology_test_driver import TestRecord

cells = st.sampled_from([None, "a", "b", "c"])
BEFORE = {"a": "A", "b": "B"}


def joining(kind: str) -> TopologyTestDriver:
    """Create a driver of such a join, whose table has rows for a and b."""
    builder = StreamsBuilder()
    table = builder.table("table", key="string", value="string")
    stream = builder.stream("stream", key="string", value="string")
    join = stream.join if kind == "inner" else stream.left_join
    join(table, lambda key, left, right: f"{key} {left} {right}", value="string").to("joined")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("table", key, value, 0) for key, value in BEFORE.items()])
    return driver


def expected(kind: str, records: list[TestRecord]) -> tuple[list[str], int]:
    """Return Kafka Streams' joined values record by record, and the number of dropped records."""
    rows, joined, dropped = dict(BEFORE), [], 0
    for record in records:
        if record.topic == "table":
            if record.key is None:
                dropped += 1
            elif record.value is None:
                rows.pop(record.key, None)
            else:
                rows[record.key] = record.value
        elif record.value is None or (record.key is None and kind == "inner"):
            dropped += 1
        elif record.key in rows or kind == "left":
            joined.append(f"{record.key} {record.value} {rows.get(record.key)}")
    return joined, dropped


@pytest.mark.parametrize("kind", ["inner", "left"])
@given(arriving=st.lists(st.tuples(st.sampled_from(["table", "stream", "stream"]), cells, cells), max_size=14))
def test_a_record_sees_the_changes_before_it(kind: str, arriving: list[tuple[str, str | None, str | None]]) -> None:
    records = [TestRecord(topic, key, value, time_ms) for time_ms, (topic, key, value) in enumerate(arriving)]
    driver = joining(kind)
    driver.pipe_records(records)
    found = [record.value for record in driver.read_records("joined")], driver.dropped_records
    assert found == expected(kind, records)
