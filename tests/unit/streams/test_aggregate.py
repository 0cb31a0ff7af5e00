"""Tests of the aggregation step against a model of single records.

Kafka Streams aggregates single records too.
"""

import itertools
import math
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import StreamsBuilder, TimeWindows, Topology, TopologyTestDriver, count, mean
from millrace_streams import max as max_
from millrace_streams import min as min_
from millrace_streams import sum as sum_

SCHEMA = pa.schema([("key", pa.string()), ("i", pa.int32()), ("x", pa.float64()), ("s", pa.string())])
AGGREGATES = {
    "n": count(),
    "n_x": count("x"),
    "sum_i": sum_("i"),
    "sum_x": sum_("x"),
    "mean_i": mean("i"),
    "mean_x": mean("x"),
    "min_x": min_("x"),
    "max_x": max_("x"),
    "min_s": min_("s"),
    "max_s": max_("s"),
}


def build(window: TimeWindows | None, emit: str) -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", schema=SCHEMA, key_columns=["key"]).group_by_key()
    source = grouped if window is None else grouped.windowed_by(window)
    source.aggregate(store="s", emit=emit, **AGGREGATES).to_delta("out")
    return builder.build()


@dataclass
class Model:
    """A model that aggregates record by record. ``updates`` are all results in order."""

    window: TimeWindows | None
    stream_time: int = -1
    rows: dict = field(default_factory=dict)
    times: dict = field(default_factory=dict)
    updates: list = field(default_factory=list)
    dropped: int = 0

    def handle(self, record: dict, timestamp: int) -> None:
        if record["key"] is None:
            self.dropped += 1
            return
        self.stream_time = max(self.stream_time, timestamp)
        starts = self.open_windows(timestamp)
        self.dropped += len(self.windows_of(timestamp)) - len(starts)
        for start in starts:
            group = (record["key"], start)
            self.rows.setdefault(group, []).append(record)
            self.times[group] = max(self.times.get(group, -1), timestamp)
            self.updates.append((group, self.times[group], self.result(group)))

    def open_windows(self, timestamp: int) -> list:
        window = self.window
        if window is None:
            return [None]
        closes_after = window.size_ms + window.grace_ms
        return [start for start in self.windows_of(timestamp) if start + closes_after > self.stream_time]

    def windows_of(self, timestamp: int) -> list:
        window = self.window
        if window is None:
            return [None]
        first = max(0, timestamp - window.size_ms + window.advance_ms) // window.advance_ms * window.advance_ms
        return list(range(first, timestamp + 1, window.advance_ms))

    def result(self, group: tuple) -> dict:
        rows = self.rows[group]
        i = [row["i"] for row in rows if row["i"] is not None]
        x = [row["x"] for row in rows if row["x"] is not None]
        s = [row["s"] for row in rows if row["s"] is not None]
        total = 0.0
        for value in x:
            total += value
        by_size = [(math.isnan(value), value) for value in x]
        return {
            "n": len(rows),
            "n_x": len(x),
            "sum_i": sum(i) if i else None,
            "sum_x": total if x else None,
            "mean_i": sum(i) / len(i) if i else None,
            "mean_x": total / len(x) if x else None,
            "min_x": min(by_size)[1] if x else None,
            "max_x": max(by_size)[1] if x else None,
            "min_s": min(s, default=None),
            "max_s": max(s, default=None),
        }


records = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["a", "b", "c", None]),
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "x": st.none() | st.floats(allow_infinity=False),
        "s": st.none() | st.text(max_size=3),
    }
)
windows = st.none() | st.builds(
    lambda advance, times, grace: TimeWindows(size_ms=advance * times, advance_ms=advance, grace_ms=grace),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(0, 30),
)
scripts = st.lists(st.tuples(records, st.integers(0, 120)), min_size=1, max_size=40)


def update_of(row: dict) -> tuple:
    start = round(row["window_start"].timestamp() * 1000) if "window_start" in row else None
    return (row["key"], start), row["__timestamp"], {name: row[name] for name in AGGREGATES}


def same(left: object, right: object) -> bool:
    return repr(left).replace("-0.0", "0.0") == repr(right).replace("-0.0", "0.0")


@settings(deadline=None, max_examples=150)
@given(script=scripts, window=windows, data=st.data())
def test_every_update_is_the_models_for_any_batches(script, window, data):
    driver, model = TopologyTestDriver(build(window, "every")), Model(window)
    for batch in cut(script, data):
        pipe(driver, batch)
    for record, timestamp in script:
        model.handle(record, timestamp)
    assert same([update_of(row) for row in driver.read("out")], model.updates)
    assert driver.dropped_records == model.dropped


@settings(deadline=None, max_examples=150)
@given(script=scripts, window=windows, data=st.data())
def test_last_updates_of_each_batch_are_the_models(script, window, data):
    driver, model = TopologyTestDriver(build(window, "last")), Model(window)
    for batch in cut(script, data):
        pipe(driver, batch)
        before = len(model.updates)
        for record, timestamp in batch:
            model.handle(record, timestamp)
        last = {group: (group, time, result) for group, time, result in model.updates[before:]}
        by_group = {update[0]: update for update in map(update_of, driver.read("out"))}
        assert same(sorted(by_group.items(), key=repr), sorted(last.items(), key=repr))
    assert driver.dropped_records == model.dropped


@settings(deadline=None, max_examples=50)
@given(script=scripts, data=st.data())
def test_state_holds_just_the_windows_within_retention(script, data):
    window = TimeWindows(size_ms=10, advance_ms=10, grace_ms=5)
    driver, model = TopologyTestDriver(build(window, "last")), Model(window)
    for batch in cut(script, data):
        pipe(driver, batch)
    for record, timestamp in script:
        model.handle(record, timestamp)
    kept = {(row["key"], row["__window"]) for row in driver.store("s").to_dicts()}
    assert kept == {group for group in model.rows if group[1] + 15 > model.stream_time // 10 * 10}


@pytest.mark.parametrize("emit", ["last", "every"])
def test_doubles_are_added_in_record_order_across_batches(emit):
    values = [1e16, 1.0, -1e16, 1.0, 3.14, 1e-9]
    expected = 0.0
    for value in values:
        expected += value
    for cut_at in range(len(values)):
        driver = TopologyTestDriver(build(None, emit))
        for batch in (values[:cut_at], values[cut_at:]):
            driver.pipe("in", [{"key": "a", "x": value} for value in batch])
        assert driver.table("out")["sum_x"].to_list() == [expected]


def cut(script: list, data: st.DataObject) -> list:
    edges = sorted(data.draw(st.sets(st.integers(0, len(script)), max_size=4)) | {0, len(script)})
    return [script[start:end] for start, end in itertools.pairwise(edges)]


def pipe(driver: TopologyTestDriver, batch: list) -> None:
    driver.pipe("in", [record for record, _ in batch], timestamps_ms=[timestamp for _, timestamp in batch])
