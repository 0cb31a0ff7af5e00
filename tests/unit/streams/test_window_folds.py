"""Tests of folds in windows at their boundaries.

The tests cover late records, merged sessions, sliding windows, and state that expires.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace_streams import (
    StreamsBuilder,
    TestRecord,
    TopologyTestDriver,
    UserFunctionError,
    count,
    hopping,
    sessions,
    sliding,
    tumbling,
)
from millrace_streams.stores import ObjectStore

TYPES = {"key": "string", "value": "string"}
UPDATE, CLOSE = "on_window_update", "on_window_close"


def folding(window: Any, strategy: Any = UPDATE, *, named: bool = False) -> TopologyTestDriver:
    """Create a driver that concatenates the sorted values of each window, or counts them as a named aggregate."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TYPES).group_by_key().windowed_by(window).emit_strategy(strategy)
    if named:
        folded = grouped.aggregate(store="s", n=count())
    else:
        folded = grouped.reduce(lambda one, other: "".join(sorted(one + other)), store="s")
    folded.to_stream().to("out")
    return TopologyTestDriver(builder.build())


def pipe(driver: TopologyTestDriver, *records: tuple[str, int]) -> None:
    """Pipe records, whose values are letters in their order, at once."""
    driver.pipe_records([TestRecord("in", key, chr(97 + at), time_ms) for at, (key, time_ms) in enumerate(records)])


def found(driver: TopologyTestDriver) -> list[tuple[str, int, int, Any]]:
    results = driver.read_records("out")
    return [(each.key.key, each.key.start, each.key.end, each.value) for each in results]


# A record at 100, then one of another key by which stream time goes on, then a record of the first key.
LATE = [
    # A tumbling window is closed when stream time reaches its end and grace.
    (tumbling(10, grace=5), 114, 104, 0),
    (tumbling(10, grace=5), 115, 104, 1),
    # A record is late once for each of its windows that is closed.
    (hopping(10, advance=5, grace=5), 109, 104, 0),
    (hopping(10, advance=5, grace=5), 110, 104, 1),
    (hopping(10, advance=5, grace=5), 115, 104, 2),
    # A session is closed when stream time is after its end, gap and grace.
    (sessions(10, grace=5), 120, 105, 0),
    (sessions(10, grace=5), 121, 105, 1),
    (sessions(10, grace=5), 122, 106, 1),
    # A sliding window is closed when stream time is after its end and grace: here the window [94, 104].
    (sliding(10, grace=5), 109, 104, 0),
    (sliding(10, grace=5), 110, 104, 1),
    # A record whose right window is closed is late once, whatever the windows that contain it.
    (sliding(10, grace=5), 119, 104, 2),
    (sliding(10, grace=5), 120, 104, 1),
    (sliding(10, grace=5), 130, 104, 1),
]


@pytest.mark.parametrize("strategy", [UPDATE, CLOSE])
@pytest.mark.parametrize(("window", "now_ms", "time_ms", "dropped"), LATE)
def test_late_records_are_counted(window: Any, now_ms: int, time_ms: int, dropped: int, strategy: str) -> None:
    driver = folding(window, strategy)
    pipe(driver, ("a", 100), ("b", now_ms), ("a", time_ms))
    assert driver.dropped_records == dropped


@pytest.mark.parametrize(("time_ms", "start_ms"), [(5, 14), (6, 6), (7, 7)])
def test_a_record_joins_no_session_that_has_expired(time_ms: int, start_ms: int) -> None:
    driver = folding(sessions(10, grace=5))
    # At 20 sessions have expired that end at 5 or earlier.
    pipe(driver, ("a", time_ms), ("b", 20), ("a", 14))
    assert found(driver)[-1] == ("a", start_ms, 14, "c" if start_ms == 14 else "ac")


@pytest.mark.parametrize("strategy", [UPDATE, CLOSE])
@pytest.mark.parametrize(("apart_ms", "expected"), [(9, ["ab"]), (10, ["ab"]), (11, ["a", "b"])])
def test_records_as_far_apart_as_the_gap_are_one_session(apart_ms: int, expected: list[str], strategy: str) -> None:
    for times in ((0, apart_ms), (apart_ms, 0)):
        driver = folding(sessions(10, grace=100), strategy)
        pipe(driver, *(("a", time_ms) for time_ms in times))
        pipe(driver, ("z", 1000))
        values = {value for key, _, _, value in found(driver) if key == "a"}
        assert values >= set(expected)
        assert len([entry for entry in driver.entries("s") if entry.key.key == "a"]) == 0
        assert ("ab" in values) == (expected == ["ab"])


records = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 15)), min_size=1, max_size=12)


def table_of(driver: TopologyTestDriver) -> dict[tuple[str, int, int], tuple[str, int]]:
    """Return the newest value and time of each window."""
    newest: dict[tuple[str, int, int], tuple[str, int]] = {}
    for each in driver.read_records("out"):
        if each.value is None:
            del newest[each.key]
        else:
            newest[each.key] = (each.value, each.timestamp)
    return newest


@settings(max_examples=30)
@given(script=records, length_ms=st.sampled_from([0, 1, 6]), cut=st.integers(0, 12))
@example(script=[("a", 1), ("a", 5), ("a", 3)], length_ms=6, cut=0)
@example(script=[("a", 20), ("a", 26), ("a", 23), ("a", 20), ("a", 29), ("a", 14)], length_ms=6, cut=2)
def test_there_is_a_sliding_window_for_each_set_of_records_that_fits(
    script: list[tuple[str, int]], length_ms: int, cut: int
) -> None:
    expected: dict[tuple[str, int, int], tuple[str, int]] = {}
    for key, time_ms in script:
        # The window that ends with the record, and the one that begins after it. None begins before the epoch.
        for start in (max(0, time_ms - length_ms), time_ms + 1):
            within = [
                (at, other)
                for at, (its_key, other) in enumerate(script)
                if its_key == key and start <= other <= start + length_ms
            ]
            if within:
                values = "".join(chr(97 + at) for at, _ in within)
                expected[key, start, start + length_ms] = (values, max(other for _, other in within))
    driver = folding(sliding(length_ms, grace=1000))
    records = [TestRecord("in", key, chr(97 + at), time_ms) for at, (key, time_ms) in enumerate(script)]
    for batch in (records[:cut], records[cut:]):
        driver.pipe_records(batch)
    assert table_of(driver) == expected
    assert driver.dropped_records == 0


@settings(max_examples=30)
@given(script=records, gap_ms=st.sampled_from([1, 3, 6]), cut=st.integers(0, 12))
def test_sessions_are_the_records_that_are_near_each_other(
    script: list[tuple[str, int]], gap_ms: int, cut: int
) -> None:
    expected: dict[tuple[str, int, int], tuple[str, int]] = {}
    for key in "ab":
        times = sorted({time_ms for its_key, time_ms in script if its_key == key})
        begins = [at for at, time_ms in enumerate(times) if at == 0 or time_ms - times[at - 1] > gap_ms]
        for first, after in pairwise([*begins, len(times)]):
            start, end = times[first], times[after - 1]
            values = "".join(
                chr(97 + at) for at, (k, time_ms) in enumerate(script) if k == key and start <= time_ms <= end
            )
            expected[key, start, end] = (values, end)
    driver = folding(sessions(gap_ms, grace=1000))
    records = [TestRecord("in", key, chr(97 + at), time_ms) for at, (key, time_ms) in enumerate(script)]
    for batch in (records[:cut], records[cut:]):
        driver.pipe_records(batch)
    assert table_of(driver) == expected


@pytest.mark.parametrize("strategy", [UPDATE, CLOSE])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    "window",
    [tumbling(10), hopping(10, advance=5), sliding(10), sessions(5)],
    ids=["tumbling", "hopping", "sliding", "sessions"],
)
def test_the_state_of_windows_that_are_over_is_forgotten(window: Any, named: bool, strategy: str) -> None:
    driver = folding(window, strategy, named=named)
    for first in range(0, 1000, 100):
        pipe(driver, *(("ab"[time_ms % 2], time_ms) for time_ms in range(first, first + 100, 7)))
    for store in driver._tasks[0].stores.values():
        kept = store.packed_entries() if isinstance(store, ObjectStore) else store.rows().rows()
        assert 0 < len(list(kept)) <= 12


@pytest.mark.parametrize("strategy", [UPDATE, CLOSE])
@pytest.mark.parametrize("window", [tumbling(10), sliding(10), sessions(5)], ids=["tumbling", "sliding", "sessions"])
def test_the_record_whose_aggregator_fails_is_named(window: Any, strategy: str) -> None:
    def fail(one: str, other: str) -> str:
        if "c" in (one, other):
            raise ValueError("broken")
        return one + other

    builder = StreamsBuilder()
    grouped = builder.stream("in", **TYPES).group_by_key().windowed_by(window).emit_strategy(strategy)
    grouped.reduce(fail).to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match="aggregator raised ValueError: broken") as failure:
        pipe(driver, ("a", 1), ("b", 2), ("a", 3), ("a", 4))
    assert failure.value.offset == 2


@pytest.mark.parametrize(
    ("window", "options"),
    [(tumbling(10), {}), (sliding(10), {}), (sessions(5), {"merger": lambda key, one, other: one + other})],
    ids=["tumbling", "sliding", "sessions"],
)
def test_the_first_of_several_records_whose_aggregator_fails_is_named(window: Any, options: dict[str, Any]) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TYPES).group_by_key().windowed_by(window)
    sums = grouped.aggregate(lambda: 0, lambda key, value, total: total + int(value), value="long", **options)
    sums.to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    with pytest.raises(UserFunctionError, match="aggregator raised ValueError") as failure:
        pipe(driver, *((chr(122 - at), 1) for at in range(20)))
    assert failure.value.offset == 0


FINALS = {
    "tumbling": tumbling(10).retain(1000),
    "hopping": hopping(10, advance=5).retain(1000),
    "sliding": sliding(10).retain(1000),
    "sessions": sessions(5).retain(1000),
}


@pytest.mark.parametrize("kind", FINALS)
def test_a_window_that_is_retained_gives_its_final_result_once(kind: str) -> None:
    times = [0, 3, 4, 11, 18, 25, 26, 40, 41, 47, 60, 72]
    whole, parts = folding(FINALS[kind], CLOSE), folding(FINALS[kind], CLOSE)
    records = [TestRecord("in", "ab"[time_ms % 2], "x", time_ms) for time_ms in times]
    whole.pipe_records(records)
    for record in records:
        parts.pipe_records([record])
        parts.pipe_records([])
    results = found(parts)
    assert results == found(whole)
    assert len({result[:3] for result in results}) == len(results) >= 6
    assert len(parts.entries("s")) >= len(results), "readable until the end of the retention"


@pytest.mark.parametrize(
    ("window", "closing_ms"), [(tumbling(10, grace=2), 12), (sliding(10, grace=2), 13), (sessions(10, grace=2), 13)]
)
def test_a_final_result_is_that_of_the_record_that_closed_the_window(window: Any, closing_ms: int) -> None:
    class Tell:
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Any) -> None:
            self.context.forward(record.key.key, f"{record.value}{self.context.record_metadata.offset}")

    builder = StreamsBuilder()
    grouped = builder.stream("in", **TYPES).group_by_key().windowed_by(window).emit_strategy(CLOSE)
    grouped.reduce(lambda one, other: one + other).to_stream().process(Tell, key="string", value="string").to("out")
    for at_once in (True, False):
        driver = TopologyTestDriver(builder.build())
        records = [("a", 0), ("z", closing_ms - 1), ("z", closing_ms), ("z", closing_ms + 1)]
        for batch in [records] if at_once else [records[:2], records[2:]]:
            pipe(driver, *batch)
        assert driver.read_records("out")[0].value == "a2"


@pytest.mark.parametrize("strategy", [UPDATE, CLOSE])
@pytest.mark.parametrize(("now_ms", "kept"), [(40, ["a"]), (41, [])])
@pytest.mark.parametrize("earlier_ms", [[], [0]], ids=["one", "two"])
def test_a_session_whose_aggregate_is_none_advances_time_for_others(
    strategy: str, earlier_ms: list[int], now_ms: int, kept: list[str]
) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TYPES).group_by_key().windowed_by(sessions(10, grace=31)).emit_strategy(strategy)
    folded = grouped.aggregate(
        lambda: "", lambda key, value, total: None if key == "b" else total + value,
        merger=lambda key, one, other: one + other, value="string", store="s",
    )  # fmt: skip
    folded.to_stream().to("out")
    driver = TopologyTestDriver(builder.build())
    pipe(driver, ("a", 0))
    pipe(driver, *(("b", time_ms) for time_ms in [*earlier_ms, now_ms]))
    assert [entry.key.key for entry in driver.entries("s")] == kept
