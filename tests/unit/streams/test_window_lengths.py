"""Tests of window lengths at their boundaries, and of retention."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest

from millrace_streams import TopologyError
from millrace_streams.windows import (
    FOREVER_MS,
    JoinWindows,
    TimeWindows,
    hopping,
    milliseconds,
    sessions,
    sliding,
    tumbling,
    unlimited,
    window_end,
    within,
)


@pytest.mark.parametrize(
    ("start_ms", "length_ms", "end_ms"),
    [(3, 7, 10), (FOREVER_MS - 7, 7, FOREVER_MS), (FOREVER_MS - 6, 7, FOREVER_MS), (3, None, FOREVER_MS)],
)
def test_no_window_ends_after_the_end_of_all_time(start_ms: int, length_ms: int | None, end_ms: int) -> None:
    assert window_end(start_ms, length_ms) == end_ms
    assert window_end(FOREVER_MS - 8, 7) == FOREVER_MS - 1


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda: tumbling(0), "the size must be positive"),
        (lambda: tumbling(-1), "the size must be positive"),
        (lambda: hopping(5, advance=0), "the advance must be positive"),
        (lambda: hopping(5, advance=6), "at most the size"),
        (lambda: tumbling(5, grace=-1), "grace of -1 ms"),
        (lambda: sliding(-1), "must not be negative"),
        (lambda: sliding(1, grace=-1), "grace of -1 ms"),
        (lambda: sessions(0), "the gap must be positive"),
        (lambda: sessions(1, grace=-1), "grace of -1 ms"),
        (lambda: within(5).before(-6), "is empty"),
        (lambda: within(5, grace=-1), "grace of -1 ms"),
        (lambda: tumbling(1, grace=FOREVER_MS), "window and grace of 9223372036854775808 ms"),
        (lambda: sessions(1, grace=FOREVER_MS), "window and grace of 9223372036854775808 ms"),
        (lambda: sliding(1, grace=FOREVER_MS - 1), "window and grace of 9223372036854775808 ms"),
        (lambda: tumbling(10, grace=5).retain(14), "retention of 14 ms is shorter"),
        (lambda: sliding(10, grace=5).retain(24), "retention of 24 ms is shorter"),
        (lambda: sessions(10, grace=5).retain(14), "retention of 14 ms is shorter"),
        (lambda: milliseconds(dt.timedelta(microseconds=1500)), "not a whole number"),
        (lambda: milliseconds(1.5), "not a length of time"),
    ],
)
def test_lengths_that_cannot_be_are_refused(refused: Callable[[], object], says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        refused()


def test_the_shortest_lengths_there_can_be() -> None:
    assert tumbling(1).retention_ms == 1
    assert hopping(5, advance=5).tumbling
    assert not hopping(5, advance=4).tumbling
    assert sliding(0).retention_ms == 0
    assert sessions(1).retention_ms == 1
    assert within(5).before(-5).retention_ms == 0
    assert milliseconds(dt.timedelta(milliseconds=1)) == 1
    assert milliseconds(-3) == -3


def test_results_are_kept_until_the_window_closes_or_longer() -> None:
    assert tumbling(10, grace=5).retention_ms == 15
    assert tumbling(10, grace=5).retain(15).retention_ms == 15
    assert tumbling(10, grace=5).retain(dt.timedelta(milliseconds=16)).retention_ms == 16
    assert sliding(10, grace=5).retention_ms == 25
    assert sliding(10, grace=5).retain(25).retention_ms == 25
    assert sessions(10, grace=5).retention_ms == 15
    assert sessions(10, grace=5).retain(15).retention_ms == 15
    assert unlimited().retain(1).retention_ms == FOREVER_MS
    assert JoinWindows(before_ms=3, after_ms=4, grace_ms=5).retention_ms == 12
    assert within(FOREVER_MS).retention_ms == FOREVER_MS
    assert within(3).before(1).after(2) == JoinWindows(before_ms=1, after_ms=2)


def test_the_default_retention_follows_the_grace() -> None:
    assert tumbling(10).grace(5).retention_ms == 15
    assert tumbling(10, grace=9).grace(5).retention_ms == 15
    assert tumbling(10).retain(30).grace(5).retention_ms == 30
    assert tumbling(10).retain(11).grace(1).retention_ms == 11
    assert tumbling(10).retain(10).grace(5).retention_ms == 15, "an explicit minimum equals the default"
    assert hopping(10, advance=10).advance_by(5) == TimeWindows(size_ms=10, advance_ms=5)
