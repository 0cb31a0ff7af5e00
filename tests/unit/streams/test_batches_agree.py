"""Tests that batches of any size give the results of single records.

The results are order, values, times and state.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_streams import (
    Record,
    StreamsBuilder,
    Suppressed,
    TestRecord,
    TopologyTestDriver,
    col,
    count,
    hopping,
    key_value_store,
    mean,
    sessions,
    sliding,
    tumbling,
    within,
)
from millrace_streams import max as max_

pytestmark = pytest.mark.slow

TYPES = {"key": "string", "value": "long"}
TOPICS = ("x", "y")


def joined(left: Any, right: Any) -> int:
    return (left or 0) * 10 + (right or 0)


def add(one: int, other: int | None) -> int:
    return one + (other or 0)


class Ranking:
    """A processor that keeps sums.

    It forwards them at every punctuation, and each record with its rank in the store.
    """

    def init(self, context: Any) -> None:
        self.context, self.sums = context, context.store("sums")
        context.schedule(7, "stream_time", self.punctuate)

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        self.sums.put(record.key, (self.sums.get(record.key) or 0) + (record.value or 0))
        self.context.forward(record.with_value(len(list(self.sums.all()))))

    def punctuate(self, time_ms: int) -> None:
        for key, total in self.sums.all():
            self.context.forward(key, total, time_ms)


def diamond(x: Any, y: Any) -> None:
    """Build branches that merge again, flat maps, and a loop through a repartition topic."""
    several = x.flat_map_values(lambda value: [] if value is None else range(value % 4))
    odd, even = several.filter(lambda value: value % 2 == 1), several.filter_not(lambda value: value % 2 == 1)
    again = odd.map_values(lambda value: value + 100).merge(even).merge(y)
    again.merge(again.map_values(lambda value: None if value is None else -value)).to("out")
    again.select_key(lambda key, value: str(value)[:1]).repartition().merge(again).to("out")


def self_joins(x: Any, y: Any) -> None:
    """Join tables and streams with streams and tables derived from them."""
    table = x.to_table(store="t")
    table.join(table, joined).to_stream().to("out")
    table.left_join(table.filter(lambda value: value % 2 == 0), joined).to_stream().to("out")
    x.outer_join(x.map_values(lambda value: None if value == 3 else value), joined, window=within(5, grace=3)).to("out")
    x.left_join(x.group_by_key().count(), joined).to("out")


def tables(x: Any, y: Any) -> None:
    """Send changes through filters, joins, groups and suppression."""
    left, right = x.to_table(store="l"), y.group_by_key().reduce(add, store="r")
    both = left.outer_join(right, joined, store="both")
    both.filter(lambda value: value > 9).to_stream().to("out")
    groups = both.group_by(lambda key, value: (str(value % 3), value))
    groups.reduce(lambda total, value: total + value, lambda total, value: total - value, store="g").to_stream().to(
        "out"
    )
    both.suppress(Suppressed.until_time_limit(10)).to_stream().to("out")


def foreign_keys(x: Any, y: Any) -> None:
    """Build a foreign-key join whose results are counted by group."""
    for kind in ("join", "left_join"):
        left, right = x.to_table(store=f"l {kind}"), y.to_table(store=f"r {kind}")
        found = getattr(left, kind)(right, joined, foreign_key=lambda value: "abc"[value % 3] if value > 1 else None)
        found.to_stream().to("out")
        found.group_by(lambda key, value: (str(value), key), value="string").count(store=f"c {kind}").to_stream().to(
            "out"
        )


def versions(x: Any, y: Any) -> None:
    """Join streams and tables with one versioned table several times."""
    table = y.to_table(store="versions", versioned=20)
    x.join(table, joined).to("out")
    x.left_join(table, joined, grace=5).to("late")
    rows = x.to_table(store="rows")
    rows.outer_join(table, joined).to_stream().to("tables")
    rows.left_join(table, joined, foreign_key=lambda value: "abc"[value % 3]).to_stream().to("linked")


def windows(x: Any, y: Any) -> None:
    """Build all kinds of windows over two streams, with late records, finals and suppressed results."""
    for number, window in enumerate((tumbling(10, grace=4), hopping(10, advance=4), sliding(6, grace=9))):
        grouped = x.group_by_key().cogroup(lambda key, value, total: total + (value or 1))
        grouped = grouped.cogroup(y.group_by_key(), lambda key, value, total: total * 2)
        grouped.windowed_by(window).aggregate(lambda: 0, store=f"w{number}").to_stream().to(f"w{number}")
    table = x.group_by_key().windowed_by(tumbling(10, grace=4)).count(store="n")
    table.suppress(Suppressed.until_window_closes()).to_stream(lambda key, value: f"{key.key}{key.start}").to("out")
    late = x.group_by_key().windowed_by(sessions(5, grace=5))
    for number, window in enumerate((sliding(6, grace=5), hopping(10, advance=4, grace=5))):
        closing = x.group_by_key().windowed_by(window).emit_strategy("on_window_close")
        closing.count(store=f"f{number}").to_stream().to(f"f{number}")
    late.emit_strategy("on_window_close").count(store="s").to_stream(lambda key, value: f"{key}").to("out")
    late.aggregate(n=count(), top=max_("value"), store="a").to_stream().to("sessions")


def windowed_tables(x: Any, y: Any) -> None:
    """Join windowed tables with each other and with windowed streams, also after suppression."""
    window = tumbling(10, grace=30)
    counts = x.group_by_key().windowed_by(window).count(store="n")
    sums = y.group_by_key().windowed_by(window).reduce(add, store="s")
    counts.outer_join(sums, joined, store="both").to_stream().to("both")
    sums.to_stream().left_join(counts, joined).to("looked-up")
    slow = counts.suppress(Suppressed.until_time_limit(15))
    slow.join(sums.map_values(lambda value: None if value is None else value + 1), joined).to_stream().to("slow")
    late = x.group_by_key().windowed_by(sessions(4, grace=30)).count(store="sessions")
    late.left_join(late.filter(lambda number: number > 1), joined).to_stream().to("late")


def expiring_windows(x: Any, y: Any) -> None:
    """Look up rows of time and sliding windows, which other streams' records expire within a batch."""
    for number, window in enumerate((tumbling(10, grace=9), hopping(10, advance=4, grace=9), sliding(6, grace=5))):
        _look_up(x, y, window, f"{number}")
    grouped = x.group_by_key().cogroup(lambda key, value, total: total + (value or 1))
    grouped = grouped.cogroup(y.group_by_key(), lambda key, value, total: total * 2)
    both = grouped.windowed_by(tumbling(10, grace=9)).aggregate(lambda: 0, store="cogrouped")
    counts = x.group_by_key().windowed_by(tumbling(10, grace=9)).count(store="n")
    counts.to_stream().left_join(both, joined).to("cogrouped")


def expiring_sessions(x: Any, y: Any) -> None:
    """Look up sessions, which other streams' records expire within a batch."""
    _look_up(x, y, sessions(4, grace=9), "sessions")


def _look_up(x: Any, y: Any, window: Any, topic: str) -> None:
    counts = x.group_by_key().windowed_by(window).count(store=f"n-{topic}")
    others = y.group_by_key().windowed_by(window).count(store=f"o-{topic}")
    all_of_them = x.merge(y).group_by_key().windowed_by(window)
    totals = all_of_them.count(store=f"t-{topic}")
    named = all_of_them.aggregate(n=count(), top=max_("value"), store=f"a-{topic}")
    counts.to_stream().join(totals, joined).to(f"{topic}-inner")
    counts.to_stream().left_join(totals, joined).to(f"{topic}-left")
    counts.to_stream().left_join(named, lambda n, row: joined(n, row and row["n"])).to(f"{topic}-named")
    counts.left_join(totals, joined).to_stream().to(f"{topic}-tables")
    counts.join(totals.filter(lambda n: n > 1), joined).to_stream().to(f"{topic}-filtered")
    others.to_stream().left_join(counts, joined).to(f"{topic}-others")
    totals.suppress(Suppressed.until_time_limit(5)).to_stream().left_join(counts, joined).to(f"{topic}-suppressed")


def closing_windows(x: Any, y: Any) -> None:
    """Look up tables whose results wait until their windows close, in streams, in tables and in each other."""
    for number, window in enumerate((tumbling(10, grace=9), hopping(10, advance=4, grace=9), sliding(6, grace=5))):
        _look_up_closing(x, y, window, f"{number}")


def closing_sessions(x: Any, y: Any) -> None:
    """Look up sessions whose results wait until they close."""
    _look_up_closing(x, y, sessions(4, grace=9), "sessions")


def _look_up_closing(x: Any, y: Any, window: Any, topic: str) -> None:
    counts = x.group_by_key().windowed_by(window).count(store=f"n-{topic}")
    closing = x.merge(y).group_by_key().windowed_by(window).emit_strategy("on_window_close")
    totals = closing.count(store=f"t-{topic}")
    named = closing.aggregate(n=count(), mean=mean("value"), store=f"a-{topic}")
    own = y.group_by_key().windowed_by(window).emit_strategy("on_window_close").count(store=f"o-{topic}")
    counts.to_stream().left_join(totals, joined).to(f"{topic}-left")
    counts.to_stream().left_join(named, lambda n, row: joined(n, row and int(row["mean"] or 0))).to(f"{topic}-named")
    counts.outer_join(totals, joined, store=f"j-{topic}").to_stream().to(f"{topic}-tables")
    totals.join(own, joined).to_stream().to(f"{topic}-both")
    totals.left_join(totals, joined).to_stream().to(f"{topic}-itself")


def processors(x: Any, y: Any) -> None:
    """Build a processor behind a filter. The filtered records advance its stream time."""
    store = key_value_store("sums", **TYPES)
    ranked = x.merge(y).filter(lambda value: value is not None and value > 2).process(Ranking, stores=[store])
    ranked.merge(x).to("out")


def shared_store(x: Any, y: Any) -> None:
    """Build two processors that see each other's changes in one store, record by record."""
    store = key_value_store("sums", **TYPES)
    x.process(Ranking, stores=[store]).to("out")
    y.flat_map_values(lambda value: [value, 1]).process(Ranking, stores=[store]).to("out")
    y.group_by_key().count(store="n").to_stream().to("counts")


def expressions(x: Any, y: Any) -> None:
    """Mix steps in columns with steps in Python."""
    small = x.filter(col("value") < 5)
    counts = small.group_by(parity=col("value") % 2).count(store="n")
    counts.group_by(lambda key, value: (str(value), value), key="string").count(store="of counts").to_stream().to(
        "counts"
    )
    y.join(small.group_by_key().count(store="m"), joined).to("out")
    x.split().branch(col("value") > 6)
    small.merge(x.filter(col("value") >= 5)).to("out")


def closing_joins(x: Any, y: Any) -> None:
    left, right = (each.group_by_key().windowed_by(tumbling(10, grace=5)).count() for each in (x, y))
    closed = left.outer_join(right, joined).suppress(Suppressed.until_window_closes())
    closed.to_stream(lambda key, value: f"{key.key}{key.start}").to("out")


TOPOLOGIES: tuple[Callable[[Any, Any], None], ...] = (
    diamond,
    self_joins,
    tables,
    foreign_keys,
    versions,
    windows,
    windowed_tables,
    expiring_windows,
    expiring_sessions,
    closing_windows,
    closing_sessions,
    closing_joins,
    processors,
    shared_store,
    expressions,
)

records = st.builds(
    TestRecord,
    st.sampled_from(TOPICS),
    st.sampled_from(["a", "b", "c", None]),
    st.none() | st.integers(0, 9),
    st.integers(0, 60),
)


def run(build: Callable[[Any, Any], None], batches: list[list[TestRecord]]) -> dict[str, Any]:
    builder = StreamsBuilder()
    build(builder.stream("x", **TYPES), builder.stream("y", **TYPES))
    driver = TopologyTestDriver(builder.build())
    for batch in batches:
        driver.pipe_records(batch)
    topics = dict.fromkeys(getattr(sink, "topic", None) for sink in driver.plan.sinks)
    results: dict[str, Any] = {topic: driver.read_records(topic) for topic in topics if topic is not None}
    stores = [name for name in driver.plan.topology.stores if "JOIN" not in name and "SUPPRESS" not in name]
    return results | {f"store {name}": driver.entries(name) for name in stores} | {"dropped": driver.dropped_records}


@pytest.mark.parametrize("build", TOPOLOGIES, ids=lambda build: build.__name__)
@settings(max_examples=12)
@given(script=st.lists(records, min_size=2, max_size=25), cuts=st.sets(st.integers(1, 24), max_size=5))
def test_batches_of_any_size_agree(build: Callable[[Any, Any], None], script: list[TestRecord], cuts: set[int]) -> None:
    edges = sorted({0, len(script), *(cut for cut in cuts if cut < len(script))})
    batches = [script[start:end] for start, end in pairwise(edges)]
    assert run(build, batches) == run(build, [[record] for record in script])


def test_sessions_are_found_though_other_keys_move_time_on_in_the_same_batch() -> None:
    def counted(x: Any, y: Any) -> None:
        x.group_by_key().windowed_by(sessions(4, grace=20)).count(store="sessions").to_stream().to("out")

    first = [TestRecord("x", "a", 6, 24)]
    second = [TestRecord("x", "b", 3, 42), TestRecord("x", "a", 7, 24), TestRecord("x", "b", 2, 55)]
    assert run(counted, [first, second]) == run(counted, [[record] for record in first + second])


@pytest.mark.parametrize(
    ("build", "kinds"),
    [(expiring_windows, ("0", "1", "2")), (expiring_sessions, ("sessions",))],
    ids=("windows", "sessions"),
)
def test_a_join_finds_a_row_until_its_window_expires_within_the_batch(
    build: Callable[[Any, Any], None], kinds: tuple[str, ...]
) -> None:
    first, late = TestRecord("x", "a", 1, 4), TestRecord("x", "a", 1, 4)
    reader, newer = TestRecord("y", "a", 1, 4), TestRecord("y", "b", 1, 60)
    expired_by_x = [TestRecord("x", "b", 1, 60), reader]
    scripts = {"in one batch": [[first, newer, late]], "in the next batch": [[first], [newer, late]]}
    for name, batches in scripts.items():
        results = run(build, batches)
        for topic in (f"{kind}-{join}" for kind in kinds for join in ("left", "named")):
            assert {found.value for found in results[topic]} == {10, 20}, (name, topic)
        assert not any(results[f"{kind}-inner"] for kind in kinds)
        assert results == run(build, [[first], [newer], [late]])
    for kind in kinds:
        before = run(build, [[first], [reader, expired_by_x[0]]])[f"{kind}-others"]
        assert {found.value for found in before} == {11}
        after = run(build, [[first], expired_by_x])[f"{kind}-others"]
        assert {found.value for found in after} == {10}


def test_a_join_of_tables_finds_no_row_that_a_record_without_a_row_has_expired_in_the_batch() -> None:
    # The deletion of a missing row moves the table's time on to 60, so that the window of 20 expires.
    script = [TestRecord("y", "b", 0, 21), TestRecord("y", "a", None, 60), TestRecord("x", "b", None, 20)]
    results = run(windowed_tables, [script])
    assert [found.timestamp for found in results["both"]] == [21, 20]
    assert results == run(windowed_tables, [[record] for record in script])


def test_a_join_finds_the_running_aggregate_of_a_window_that_is_still_open() -> None:
    """The results are those of Kafka Streams 4.3.1, with the same topology and records."""

    def closing(x: Any, y: Any) -> None:
        window = tumbling(10, grace=9)
        counts = x.group_by_key().windowed_by(window).count(store="n")
        totals = x.merge(y).group_by_key().windowed_by(window).emit_strategy("on_window_close").count(store="t")
        own = y.group_by_key().windowed_by(window).emit_strategy("on_window_close").count(store="o")
        counts.outer_join(totals, joined).to_stream().to("tables")
        totals.join(own, joined).to_stream().to("both")
        totals.left_join(totals, joined).to_stream().to("itself")

    script = [("x", "a", 1), ("y", "a", 2), ("x", "a", 3), ("x", "b", 12), ("y", "a", 4), ("x", "b", 19)]
    results = run(closing, [[TestRecord(topic, key, 1, time_ms) for topic, key, time_ms in script]])
    topics = ("tables", "both", "itself")
    assert {topic: [(each.key.key, each.value, each.timestamp) for each in results[topic]] for topic in topics} == {
        "tables": [("a", 10, 1), ("a", 22, 3), ("b", 10, 12), ("b", 21, 19), ("a", 24, 4)],
        "both": [("a", 42, 4)],
        "itself": [("a", 44, 4), ("a", 44, 4)],
    }
