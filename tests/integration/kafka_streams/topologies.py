"""Topologies whose results must equal those of Kafka Streams for any records. ``RandomTopologies.java`` has the same.

Output topics have equal names. Rows of windows have a key such as ``a|10|20``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    hopping,
    key_value_store,
    sessions,
    sliding,
    tumbling,
    versioned_store,
    window_store,
    within,
)
from millrace_streams.suppressed import BufferConfig

TYPES: Final = {"key": "string", "value": "long"}
CLOSED: Final = Suppressed.until_window_closes()
KEPT_MS: Final = 60_000
"""Retention with which Kafka Streams loses no result on close (docs/streams/semantics.md)."""
TWO: Final = Suppressed.until_time_limit(8, BufferConfig.max_records(2).emit_early_when_full())


def joined(left: int | None, right: int | None) -> int:
    return (left or 0) * 10 + (7 if right is None else right)


def abc(value: int) -> str:
    return "abc"[value % 3]


def abc_or_none(value: int) -> str | None:
    return None if value == 9 else abc(value)


def added(total: int, value: int) -> int:
    return total + value


def removed(total: int, value: int) -> int:
    return total - value


def add_to(key: Any, value: int, total: int) -> int:
    return total + value


def remove_from(key: Any, value: int, total: int) -> int:
    return total - value


def folded(total: int | None, value: int | None) -> int:
    return ((total or 0) * 2 + (value or 0)) % 1000


def folded_into(key: Any, value: int | None, total: int) -> int:
    return (total * 3 + (value or 0)) % 1000


def merged(key: Any, one: int, other: int) -> int:
    return (one + 100 * other) % 1000


def table(b: StreamsBuilder, topic: str) -> Any:
    return b.table(topic, **TYPES, store=f"{topic}-rows")  # with a store, as filters then know what they passed before


def by_rest(rows: Any, divisor: int) -> Any:
    return rows.group_by(lambda key, value: (f"rest{value % divisor}", value))


def limit(ms: int) -> Suppressed:
    return Suppressed.until_time_limit(ms)


def send(results: Any, topic: str) -> None:
    results.to(topic.replace(" ", "-"))


def rows(results: Any, topic: str) -> None:
    send(results.to_stream(), topic)


def windowed(results: Any, topic: str) -> None:
    stream = results.to_stream() if hasattr(results, "to_stream") else results
    send(stream.select_key(lambda key, value: f"{key.key}|{key.start}|{key.end}"), topic)


def tables(b: StreamsBuilder) -> None:
    x, y = table(b, "x"), table(b, "y")
    rows(x.join(y, joined), "inner")
    rows(x.left_join(y, joined), "left")
    rows(x.outer_join(y, joined), "outer")
    rows(x.filter(lambda value: value > 3).join(y, joined), "filtered inner")
    even = y.filter(lambda value: value % 2 == 0)
    rows(x.map_values(lambda value: value + 1).outer_join(even, joined), "filtered outer")
    rows(x.outer_join(y, joined, store="both").filter(lambda value: value % 3 != 0), "filtered join")


def groups(b: StreamsBuilder) -> None:
    x, y = table(b, "x"), table(b, "y")
    rows(x.group_by(lambda key, value: ("odd" if value % 2 else "even", value)).count(), "count")
    rows(by_rest(x, 3).reduce(added, removed), "reduce")
    rows(by_rest(x.left_join(y, joined), 3).aggregate(lambda: 100, add_to, remove_from), "aggregate")
    rows(by_rest(x.filter(lambda value: value > 4), 2).count(), "filtered")


def foreign_keys(b: StreamsBuilder) -> None:
    x, y = table(b, "x"), table(b, "y")
    rows(x.join(y, joined, foreign_key=abc_or_none, store="inner"), "inner")
    rows(x.left_join(y, joined, foreign_key=abc_or_none, store="left"), "left")
    rows(x.join(x, joined, foreign_key=abc, store="self"), "self")
    linked = x.left_join(y, joined, foreign_key=lambda value: None if value > 7 else abc(value), store="linked")
    rows(linked.join(x, joined, foreign_key=abc, store="twice"), "twice")
    rows(linked.group_by(lambda key, value: (abc(value), value)).reduce(added, removed), "grouped")
    rows(linked.outer_join(y, joined), "outer")
    rows(linked.filter(lambda value: value % 2 == 0), "filtered")
    large, small = x.filter(lambda value: value > 2), y.filter(lambda value: value < 8)
    rows(large.left_join(small, joined, foreign_key=abc, store="filtered"), "both filtered")


def stream_joins(b: StreamsBuilder) -> None:
    x, y = b.stream("x", **TYPES), b.stream("y", **TYPES)
    windows = (
        within(5, grace=4),
        within(5, grace=20).before(2).after(9),
        within(3),
        within(0, grace=3).after(6),
        within(0, grace=5),
    )
    for number, window in enumerate(windows):
        send(x.join(y, joined, window=window), f"inner {number}")
        send(x.left_join(y, joined, window=window), f"left {number}")
        send(x.outer_join(y, joined, window=window), f"outer {number}")
    send(x.join(x, joined, window=within(5, grace=4)), "self")


def stream_table_joins(b: StreamsBuilder) -> None:
    x, y, z = b.stream("x", **TYPES), b.table("y", **TYPES, versioned=30), table(b, "z")
    send(x.join(y, joined, grace=6), "inner with grace")
    send(x.left_join(y, joined, grace=6), "left with grace")
    send(x.left_join(y, joined, grace=0), "left with no grace")
    send(x.join(y, joined), "inner versioned")
    send(x.left_join(y, joined), "left versioned")
    send(x.join(z, joined), "inner")
    send(x.left_join(z, joined), "left")


def versions(b: StreamsBuilder) -> None:
    x, y, z = b.table("x", **TYPES, versioned=20), b.table("y", **TYPES, versioned=25), table(b, "z")
    rows(x.join(y, joined), "inner")
    rows(x.left_join(y, joined), "left")
    rows(x.outer_join(y, joined), "outer")
    rows(x.left_join(z, joined), "with latest")
    rows(z.outer_join(y, joined), "latest with")
    rows(x.join(y, joined).join(z, joined), "chain")
    rows(x.outer_join(y.filter(lambda value: value > 3), joined), "with filtered")
    rows(x.map_values(lambda value: value + 1).left_join(y, joined), "of mapped")
    rows(x.filter(lambda value: value > 4), "filtered")
    rows(x.map_values(lambda value: value + 1), "mapped")
    rows(by_rest(x, 3).aggregate(lambda: 0, add_to, remove_from), "sum")
    rows(by_rest(x.filter(lambda value: value > 4), 2).count(), "filtered count")
    rows(y.to_stream().group_by_key().count(), "changes")
    rows(x.join(y, joined, foreign_key=abc), "by foreign key")
    rows(x.left_join(y, joined, foreign_key=abc_or_none), "left by foreign key")
    rows(z.join(y, joined, foreign_key=abc), "latest by foreign key")
    rows(x.left_join(z, joined, foreign_key=abc), "with latest by foreign key")


def all_windows(b: StreamsBuilder) -> None:
    x = b.stream("x", **TYPES).group_by_key()
    for number, window in enumerate((tumbling(10, grace=4), hopping(10, advance=4, grace=6), tumbling(7))):
        windowed(x.windowed_by(window).count(), f"count {number}")
        windowed(x.windowed_by(window).reduce(folded), f"reduce {number}")
        added_up = x.windowed_by(window).aggregate(lambda: 0, lambda key, value, total: total + (value or 0) + 1)
        windowed(added_up, f"aggregate {number}")
    for number, window in enumerate((sliding(6, grace=5), sliding(4))):
        windowed(x.windowed_by(window).count(), f"sliding count {number}")
        windowed(x.windowed_by(window).aggregate(lambda: 0, folded_into), f"sliding {number}")
    for number, gap in enumerate((sessions(5, grace=6), sessions(3))):
        windowed(x.windowed_by(gap).count(), f"session count {number}")
        windowed(x.windowed_by(gap).aggregate(lambda: 0, folded_into, merged), f"session {number}")


def windowed_tables(b: StreamsBuilder) -> None:
    x, y = b.stream("x", **TYPES).group_by_key(), b.stream("y", **TYPES).group_by_key()
    window, gap = tumbling(10, grace=30), sessions(4, grace=30)
    counts, sums = x.windowed_by(window).count(), y.windowed_by(window).reduce(folded)
    windowed(counts.join(sums, joined), "inner")
    windowed(counts.left_join(sums, joined), "left")
    windowed(counts.outer_join(sums, joined), "outer")
    windowed(counts.to_stream().join(sums, joined), "stream inner")
    windowed(sums.to_stream().left_join(counts, joined), "stream left")
    windowed(counts.filter(lambda value: value % 2 == 0), "filtered")
    windowed(counts.map_values(lambda value: value * 2).filter(lambda value: value > 2), "mapped")
    windowed(counts.suppress(limit(7)), "suppressed")
    rows(counts.group_by(lambda key, value: (key.key, value), key="string").reduce(added, removed), "grouped")
    found, others = x.windowed_by(gap).count(), y.windowed_by(gap).count()
    windowed(found.join(others, joined), "inner sessions")
    windowed(found.outer_join(others, joined), "outer sessions")
    windowed(found.filter(lambda value: value > 1), "filtered sessions")
    windowed(found.to_stream().left_join(others, joined), "stream of sessions")
    rows(found.group_by(lambda key, value: (key.key, value), key="string").reduce(added, removed), "grouped sessions")


def closing(b: StreamsBuilder) -> None:
    x, y = b.stream("x", **TYPES), b.stream("y", **TYPES)
    both, window = x.merge(y).group_by_key(), tumbling(10, grace=9).retain(KEPT_MS)
    counts = x.group_by_key().windowed_by(window).count()
    totals = both.windowed_by(window).emit_strategy("on_window_close").count()
    own = y.group_by_key().windowed_by(window).emit_strategy("on_window_close").count()
    windowed(counts.outer_join(totals, joined), "outer")
    windowed(totals.join(own, joined), "inner")
    windowed(totals.left_join(totals, joined), "self")
    windowed(counts.to_stream().left_join(totals, joined), "stream")
    for topic, other in {
        "hopping": hopping(10, advance=4, grace=6),
        "sliding": sliding(6, grace=5),
        "sliding 0": sliding(4),
        "sessions": sessions(5, grace=6),
        "sessions 0": sessions(3),
    }.items():
        windowed(both.windowed_by(other.retain(KEPT_MS)).emit_strategy("on_window_close").count(), topic)


def suppressed(b: StreamsBuilder) -> None:
    x, y, z = table(b, "x"), table(b, "y"), b.stream("z", **TYPES).group_by_key()
    windowed(z.windowed_by(tumbling(10, grace=4)).count().suppress(CLOSED), "windows")
    windowed(z.windowed_by(sessions(5, grace=6)).count().suppress(CLOSED), "sessions")
    windowed(z.windowed_by(sliding(6, grace=5)).count().suppress(CLOSED), "sliding")
    rows(x.suppress(limit(8)), "limit")
    rows(x.suppress(limit(0)), "no limit")
    rows(x.suppress(TWO), "two")
    rows(by_rest(x.suppress(TWO), 2).aggregate(lambda: 0, add_to, remove_from), "sum of two")
    rows(x.outer_join(y, joined).suppress(limit(5)), "joined")
    rows(x.filter(lambda value: value > 3).suppress(limit(5)), "filtered before")
    rows(x.suppress(limit(5)).filter(lambda value: value > 3), "filtered after")
    rows(by_rest(x, 2).count().suppress(limit(9)), "count")
    rows(x.suppress(limit(5)).suppress(limit(5)), "twice")


def cogrouped(b: StreamsBuilder) -> None:
    x, y = b.stream("x", **TYPES).group_by_key(), b.stream("y", **TYPES).group_by_key()
    both = x.cogroup(lambda key, value, total: total + (value or 0))
    both = both.cogroup(y, lambda key, value, total: (total * 2 - (value or 0) + 1000) % 1000)
    rows(both.aggregate(lambda: 1), "all")
    windowed(both.windowed_by(tumbling(10, grace=4)).aggregate(lambda: 1), "windows")
    windowed(both.windowed_by(sliding(6, grace=5)).aggregate(lambda: 1), "sliding")
    windowed(both.windowed_by(sessions(5, grace=6)).aggregate(lambda: 1, merged), "sessions")


def global_tables(b: StreamsBuilder) -> None:
    x, y = b.stream("x", **TYPES), b.global_table("y", **TYPES)
    key: Any = lambda key, value: None if value is None else abc_or_none(value)  # noqa: E731
    send(x.join(y, joined, selector=key), "inner")
    send(x.left_join(y, joined, selector=key), "left")
    send(x.left_join(y, joined, selector=lambda key, value: key), "own")


def diamonds(b: StreamsBuilder) -> None:
    x, y = b.stream("x", **TYPES), b.stream("y", **TYPES)
    counts, largest = x.group_by_key().count(), x.merge(y).group_by_key().reduce(max)
    send(x.left_join(counts, joined), "self")
    send(y.left_join(largest, joined), "largest")
    rows(counts.left_join(largest, joined), "tables")
    rows(counts.outer_join(largest.filter(lambda value: value > 4), joined), "filtered")
    rows(by_rest(largest, 2).count().left_join(largest, joined), "grouped")
    rows(counts.join(counts, joined), "counts")

    def repeated(value: int | None) -> list[int]:
        return [] if value is None else [value] if value % 3 else [value, value + 1, value + 2]

    several = x.flat_map_values(repeated)
    rows(several.merge(y).group_by_key().count(), "several")
    send(several.left_join(largest, joined), "several largest")
    rows(several.to_table(store="several").outer_join(largest, joined), "table of several")
    both = x.merge(y).group_by_key()

    def up_to_20(key: Any, value: int, total: int) -> int | None:
        return None if total + value > 20 else total + value

    rows(both.aggregate(lambda: 0, up_to_20), "aggregate with deletions")
    rows(both.reduce(lambda one, other: None if one + other > 15 else one + other), "reduction with deletions")


def repartitions(b: StreamsBuilder) -> None:
    x, y, z = b.stream("x", **TYPES), b.stream("y", **TYPES), table(b, "z")
    present = x.filter(lambda value: value is not None)
    keyed = present.select_key(lambda key, value: abc(value))
    windowed(keyed.group_by_key().windowed_by(tumbling(10, grace=5)).count(), "count")
    send(keyed.left_join(z, joined), "with table")
    send(keyed.join(y, joined, window=within(5, grace=9)), "with stream")
    rows(keyed.left_join(y, joined, window=within(5, grace=3)).group_by_key().count(), "count of joined")
    flat = y.flat_map(lambda key, value: [] if value is None else [("a", value), ("b", value + 1)])
    rows(flat.group_by_key().reduce(lambda total, value: (total * 3 + value) % 1000), "flat")
    rows(keyed.to_table(store="keyed").outer_join(z, joined), "table")
    rows(keyed.merge(y).group_by_key().count(), "merged")
    rows(present.group_by(lambda key, value: None if value % 2 else "even").reduce(added), "no key")
    outer = x.outer_join(y, joined, window=within(4, grace=3))
    windowed(outer.group_by_key().windowed_by(tumbling(10, grace=5)).count(), "windows of joined")


class Ticking:
    """A processor that adds up values and forwards each third sum.

    At each tick of stream time it forwards all sums, and deletes the large ones.
    """

    def init(self, context: Any) -> None:
        self._context, self._sums = context, context.store("sums")
        self._ticks = context.schedule(7, "stream_time", self._tick)

    def process(self, record: Any) -> None:
        total = (self._sums.get(record.key) or 0) + (record.value or 1)
        self._sums.put(record.key, total)
        if total % 3 == 0:
            self._context.forward(record.with_value(total))
        elif record.value == 8 and total > 20:
            self._ticks.cancel()

    def _tick(self, now_ms: int) -> None:
        for key, total in self._sums.all():
            self._context.forward(key, total * 100 + now_ms % 100, now_ms)
            if total > 12:
                self._sums.delete(key)


class Windowing:
    """A processor that keeps the last value of each time.

    For each record it forwards a weighted sum of the values around the record's time.
    """

    def init(self, context: Any) -> None:
        self._context, self._values = context, context.store("values")

    def process(self, record: Any) -> None:
        if record.value is None:
            self._values.put(record.key, None, record.timestamp)
            return
        self._values.put(record.key, record.value, record.timestamp)
        near = self._values.fetch(record.key, record.timestamp - 6, record.timestamp + 3)
        self._context.forward(record.key, sum(value * (place + 1) for place, (_, value) in enumerate(near)))


class Remembering:
    """A processor that keeps versions of values.

    For each record it forwards the value that the key had 5 ms earlier.
    """

    def init(self, context: Any) -> None:
        self._context, self._versions = context, context.store("versions")

    def process(self, record: Any) -> None:
        if record.value == 5:
            deleted = self._versions.delete(record.key, record.timestamp)
            self._context.forward_value(-1 if deleted is None else deleted.value)
            return
        self._versions.put(record.key, record.value, record.timestamp)
        before = self._versions.get(record.key, record.timestamp - 5)
        now = self._versions.get(record.key)
        self._context.forward_value(
            (0 if before is None else before.value * 1000 + before.timestamp) * 100 + (99 if now is None else now.value)
        )


def processors(b: StreamsBuilder) -> None:
    x, y = b.stream("x", **TYPES), b.stream("y", **TYPES)
    sums = key_value_store("sums", key="string", value="long")
    ticked = x.process(Ticking, stores=[sums])
    send(ticked, "ticking")
    rows(ticked.group_by_key().count(), "count of ticking")
    values = window_store("values", key="string", value="long", retention=60_000)
    send(x.merge(y).process(Windowing, stores=[values]), "windowing")
    versions_ = versioned_store("versions", key="string", value="long", history=20)
    send(y.process_values(Remembering, stores=[versions_]), "remembering")


TOPOLOGIES: Final[dict[str, Callable[[StreamsBuilder], None]]] = {
    "tables": tables,
    "groups": groups,
    "foreignKeys": foreign_keys,
    "streamJoins": stream_joins,
    "streamTableJoins": stream_table_joins,
    "versions": versions,
    "windows": all_windows,
    "windowedTables": windowed_tables,
    "closing": closing,
    "suppressed": suppressed,
    "cogrouped": cogrouped,
    "globalTables": global_tables,
    "diamonds": diamonds,
    "repartitions": repartitions,
    "processors": processors,
}
"""The topologies by their names in Java."""
