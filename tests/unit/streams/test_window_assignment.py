"""Tests of the windows of a record near the ends of time.

The reference is Kafka Streams' ``windowsFor``.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace_streams
from millrace_streams import (
    SessionWindows,
    StreamsBuilder,
    TestRecord,
    TimeWindows,
    TopologyTestDriver,
    Windowed,
    aggregates,
    hopping,
    sessions,
    sliding,
    tumbling,
    unlimited,
)
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
    """Return start and end of Kafka Streams' windows.

    An end after the largest long becomes the largest long, as in its stores.
    """
    start = max(0, time_ms - window.size_ms + window.advance_ms) // window.advance_ms * window.advance_ms
    found = []
    while start <= time_ms:
        found.append((start, min(start + window.size_ms, LAST)))
        start += window.advance_ms
    return [(start, end) for start, end in found if start < end]


@given(times=st.lists(times, max_size=6), window=windows)
def test_windows_are_those_of_kafka_streams(times: list[int], window: TimeWindows) -> None:
    # The last instant has no window of its own, because no end could be after it.
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


def counts(window: Any, strategy: Any, moments: list[int]) -> list[tuple[Any, Any]]:
    """Count one key's records by a Python function, by ``count()`` and as rows, and compare their windows."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TYPES).group_by_key().windowed_by(window).emit_strategy(strategy)
    merger = {"merger": lambda key, one, other: one + other} if isinstance(window, SessionWindows) else {}
    folded = grouped.aggregate(lambda: 0, lambda key, value, total: total + 1, value="long", **merger)
    folded.to_stream().to("folded")
    grouped.count().to_stream().to("counted")
    grouped.aggregate(n=aggregates.count()).to_stream().to("rows")
    driver = TopologyTestDriver(builder.build())
    driver.pipe_records([TestRecord("in", "a", 1, time_ms) for time_ms in moments])
    found = [(each.key, each.value) for each in driver.read_records("folded")]
    assert [(each.key, each.value) for each in driver.read_records("counted")] == found
    rows = [(each.key, each.value and each.value["n"]) for each in driver.read_records("rows")]
    assert rows == found
    return found


# A timestamp of microseconds has no later instants, so later starts all become the last instant.
TELLABLE = LAST // 1000
KINDS = {
    "tumbling": tumbling(10),
    "hopping": hopping(10, advance=5),
    "sliding": sliding(10),
    "sessions": sessions(10),
    "unlimited": unlimited(),
}


@pytest.mark.parametrize("moment", [TELLABLE - 3, LAST - 3])
def test_windows_near_the_end_of_time_end_there(moment: int) -> None:
    start = moment // 10 * 10
    told = Windowed("a", min(start, TELLABLE), LAST if start + 10 > TELLABLE else start + 10)
    assert counts(tumbling(10), "on_window_update", [moment, moment]) == [(told, 1), (told, 2)]


EMITTED = [(kind, "on_window_update") for kind in KINDS] + [
    (kind, "on_window_close") for kind in KINDS if kind != "unlimited"
]


@pytest.mark.parametrize(("kind", "strategy"), EMITTED)
@pytest.mark.parametrize("end", [253_402_300_800_000, TELLABLE, LAST])
def test_all_aggregations_tell_the_same_windows_near_the_ends_of_times(kind: str, strategy: str, end: int) -> None:
    moments = [end - 45, end - 28, end - 25, end - 12, end - 8, end - 1, end]
    found = counts(KINDS[kind], strategy, moments)
    assert found
    assert all(key.start <= TELLABLE and (key.end <= TELLABLE or key.end == LAST) for key, _ in found)


def test_the_last_windows_close_when_stream_time_reaches_the_largest_long() -> None:
    told = Windowed("a", TELLABLE, LAST)
    assert counts(tumbling(10), "on_window_close", [LAST - 5, LAST]) == [(told, 1)]
    # A sliding window includes its end, and no time is after the last instant.
    assert counts(sliding(10), "on_window_close", [LAST - 5, LAST]) == [(told, 1)]


# Start of each window that Kafka Streams 3.9.1 gives a record of this time, by size and advance; None if it stops with
# "Window endMs time cannot be smaller than window startMs time".
KAFKAS: list[tuple[int, int, list[int] | None]] = [
    (LAST - 25, 10, [LAST - 27]),
    (LAST - 12, 10, [LAST - 17]),
    (LAST - 8, 10, [LAST - 17]),
    (LAST - 7, 10, None),
    (LAST, 10, None),
    (LAST - 25, 5, [LAST - 32, LAST - 27]),
    (LAST - 12, 5, [LAST - 17, LAST - 12]),
    (LAST - 8, 5, [LAST - 17, LAST - 12]),
    (LAST - 7, 5, None),
]


@pytest.mark.parametrize(("time_ms", "advance_ms", "starts"), KAFKAS)
def test_windows_up_to_the_largest_long_are_kafkas(time_ms: int, advance_ms: int, starts: list[int] | None) -> None:
    frame = pl.DataFrame({TIMESTAMP: pl.Series([time_ms], dtype=pl.Int64)})
    found = in_windows(frame, TimeWindows(size_ms=10, advance_ms=advance_ms))[WINDOW].to_list()
    if starts is not None:
        assert found == starts
    else:
        # Kafka Streams fails at a window that would end after the largest long. Here the window ends at the largest
        # long.
        assert found[-1] + 10 > LAST


def _divides_by_a_window_length(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.FloorDiv | ast.Mod):
        return False
    names = {each.attr for each in ast.walk(node.right) if isinstance(each, ast.Attribute)}
    names |= {each.id for each in ast.walk(node.right) if isinstance(each, ast.Name)}
    return bool(names & {"size_ms", "advance_ms"})


def test_one_module_computes_where_windows_start() -> None:
    package = Path(millrace_streams.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(map(_divides_by_a_window_length, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {"steps/window_assignment.py"}
