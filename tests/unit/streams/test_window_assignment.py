"""Which windows a record falls into, near both ends of time, beside Kafka Streams' ``windowsFor`` in plain Python."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_streams import StreamsBuilder, TestRecord, TimeWindows, TopologyTestDriver, Windowed, sliding, tumbling
from millrace_streams.steps.batch import TIMESTAMP
from millrace_streams.steps.window_assignment import STREAM_TIME, WINDOW, in_open_windows, in_windows

LAST = 2**63 - 1
TYPES = {"key": "string", "value": "long"}

times = st.one_of(st.integers(0, 50), st.integers(LAST - 50, LAST), st.integers(0, LAST))
windows = st.builds(
    lambda advance, more, grace: TimeWindows(size_ms=advance + more, advance_ms=advance, grace_ms=grace),
    st.integers(1, 20),
    st.integers(0, 30),
    st.one_of(st.integers(0, 30), st.just(LAST // 2)),
)


def windows_for(time_ms: int, window: TimeWindows) -> list[tuple[int, int]]:
    """Start and end, as Kafka Streams has them; an end after the largest long is that, as in its stores."""
    start = max(0, time_ms - window.size_ms + window.advance_ms) // window.advance_ms * window.advance_ms
    found = []
    while start <= time_ms:
        found.append((start, min(start + window.size_ms, LAST)))
        start += window.advance_ms
    return [(start, end) for start, end in found if start < end]


@given(times=st.lists(times, max_size=6), window=windows)
def test_windows_are_those_of_kafka_streams(times: list[int], window: TimeWindows) -> None:
    # The last instant has no window of its own, as no end could come after it.
    expected = [(time_ms, start) for time_ms in times for start, _ in windows_for(min(time_ms, LAST - 1), window)]
    found = in_windows(pl.DataFrame({TIMESTAMP: pl.Series(times, dtype=pl.Int64)}), window)
    assert found.select(TIMESTAMP, WINDOW).rows() == expected


@given(times=st.lists(times, min_size=1, max_size=6), stream_time_ms=times, window=windows)
def test_windows_are_open_until_stream_time_has_passed_end_and_grace(
    times: list[int], stream_time_ms: int, window: TimeWindows
) -> None:
    frame = pl.DataFrame({TIMESTAMP: pl.Series(times, dtype=pl.Int64)})
    placed = in_windows(frame.with_columns(pl.lit(stream_time_ms, pl.Int64).alias(STREAM_TIME)), window)
    expected = [
        start
        for time_ms in times
        for start, end in windows_for(min(time_ms, LAST - 1), window)
        if end > stream_time_ms - window.grace_ms
    ]
    assert in_open_windows(placed, window)[WINDOW].to_list() == expected


def counts(window: Any, strategy: Any, moments: list[int], **emit: Any) -> list[tuple[Any, Any]]:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TYPES).group_by_key().windowed_by(window).emit_strategy(strategy)
    grouped.aggregate(lambda: 0, lambda key, value, total: total + 1, **emit).to_stream().to("folded")
    grouped.count().to_stream().to("counted")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("in", "a", 1, time_ms) for time_ms in moments])
    found = [(each.key, each.value) for each in driver.read_records("folded")]
    assert [(each.key, each.value) for each in driver.read_records("counted")] == found
    return found


# A timestamp of microseconds tells no later instants, so that starts further on are all the last of them.
TELLABLE = LAST // 1000


@pytest.mark.parametrize("moment", [TELLABLE - 3, LAST - 3])
def test_windows_near_the_end_of_time_end_there(moment: int) -> None:
    start = moment // 10 * 10
    told = Windowed("a", min(start, TELLABLE), LAST if start + 10 > TELLABLE else start + 10)
    assert counts(tumbling(10), "on_window_update", [moment, moment]) == [(told, 1), (told, 2)]


def test_the_last_windows_close_when_stream_time_reaches_the_largest_long() -> None:
    window = Windowed("a", (LAST - 5) // 10 * 10, LAST)
    assert counts(tumbling(10), "on_window_close", [LAST - 5, LAST]) == [(window, 1)]
    # Of a sliding window the end is part, and no time comes after the last one.
    assert counts(sliding(10), "on_window_close", [LAST - 5, LAST]) == [(Windowed("a", LAST - 15, LAST - 5), 1)]
