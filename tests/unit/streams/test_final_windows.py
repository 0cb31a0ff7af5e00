"""Tests of final results of windows.

Each kind of window emits its last update once.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    StreamsBuilder,
    TestRecord,
    TopologyError,
    TopologyTestDriver,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
)

TYPES = {"key": "string", "value": "string"}
WINDOWS = {
    "tumbling": (tumbling(10, grace=4), 1),
    "hopping": (hopping(10, advance=3, grace=4), 1),
    "sliding": (sliding(6, grace=9), 0),
}
"""Window kinds, and whether a window closes when stream time reaches its end plus grace, or after that."""

records = st.lists(
    st.builds(TestRecord, st.just("x"), st.sampled_from("ab"), st.sampled_from("pqrs"), st.integers(0, 70)),
    min_size=1,
    max_size=25,
)


def results(window: Any, strategy: Any, script: list[TestRecord]) -> tuple[list[Any], int]:
    builder = StreamsBuilder()
    grouped = builder.stream("x", **TYPES).group_by_key().windowed_by(window).emit_strategy(strategy)
    grouped.reduce(lambda one, other: one + other).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records(script)
    return [(found.key, found.value) for found in driver.read_records("out")], driver.dropped_records


@pytest.mark.parametrize("kind", WINDOWS)
@settings(max_examples=40)
@given(script=records)
def test_finals_are_the_last_updates_of_the_windows_that_have_closed(kind: str, script: list[TestRecord]) -> None:
    window, closes_at_once = WINDOWS[kind]
    # The retention is long, because a window's result must not be deleted before the comparison.
    updates, _ = results(window.retain(500), "on_window_update", script)
    finals, late = results(window, "on_window_close", script)
    now = max(record.timestamp_ms for record in script)
    closed = {key: value for key, value in updates if key.end + window.grace_ms < now + closes_at_once}
    assert dict(finals) == closed
    assert len(finals) == len(closed)
    # The retention is equal, because a sliding window counts records that were too late for the windows of stored
    # records.
    assert late == results(window, "on_window_update", script)[1]


def test_an_unlimited_window_never_closes_and_so_has_no_finals() -> None:
    grouped = StreamsBuilder().stream("x", **TYPES).group_by_key().windowed_by(unlimited())
    with pytest.raises(TopologyError, match="emit_strategy after KSTREAM-SOURCE-0000000000: an unlimited window never"):
        grouped.emit_strategy("on_window_close")
    grouped.emit_strategy("on_window_update").count()


def test_grace_and_retention_are_chosen_in_any_order() -> None:
    hours = tumbling(60, grace=5).retain(500)
    assert tumbling(60).retain(500).grace(5) == tumbling(60).grace(5).retain(500) == hours
    assert hours.advance_by(20).retention_ms == 500
    assert (hours.advance_by(20).size_ms, hours.advance_by(20).grace_ms) == (60, 5)
    # The default retention is as long as the window is open.
    assert tumbling(60, grace=50).grace(5).retention_ms == 65
    assert tumbling(60).grace(5).retention_ms == 65
    with pytest.raises(TopologyError, match="retention of 90 ms is shorter than window and grace"):
        tumbling(60).retain(90).grace(40)


def test_closed_sessions_emit_final_results() -> None:
    script = [TestRecord("x", "a", "p", 0), TestRecord("x", "a", "q", 3), TestRecord("x", "b", "r", 60)]
    finals, _ = results(sessions(5, grace=9), "on_window_close", script)
    assert [(key.start, key.end, value) for key, value in finals] == [(0, 3, "pq")]


def test_finals_of_sessions_that_end_together_are_in_the_order_of_their_starts_and_then_keys() -> None:
    # TimeFirstSessionKeySchema of Kafka Streams 3.9: end, start, key.
    script = [TestRecord("x", key, "p", at) for key, at in (("b", 1), ("a", 5), ("c", 1), ("b", 10), ("a", 10))]
    script += [TestRecord("x", "c", "p", 10), TestRecord("x", "z", "p", 100)]
    finals, _ = results(sessions(10), "on_window_close", script)
    assert [(key.key, key.start, key.end) for key, _ in finals] == [("b", 1, 10), ("c", 1, 10), ("a", 5, 10)]
