"""Random topologies of operators over two topics and a global table.

``choose`` picks one of some options. It is hypothesis' ``draw`` or a seeded ``random.Random``. Keys are strings and
values are integers, or None, so that any operator can follow any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace_streams import (
    StreamsBuilder,
    Suppressed,
    Windowed,
    coalesce,
    col,
    count,
    hopping,
    key_value_store,
    left,
    right,
    sessions,
    sliding,
    tumbling,
    unlimited,
    window_store,
    within,
)
from millrace_streams import max as max_
from millrace_streams import sum as sum_

TYPES = {"key": "string", "value": "long"}
TOPICS = ("x", "y", "global")
KEYS = ("a", "b", "c", None)
VALUES = (None, *range(8))

Choose = Callable[[Sequence[Any]], Any]


def even(value: int | None) -> bool:
    return value is not None and value % 2 == 0


def more(value: int | None) -> int | None:
    return None if value is None else value + 1


def some(value: int | None) -> list[int | None]:
    return [] if value == 3 else [value, more(value)] if even(value) else [value]


def digit(key: str | None, value: int | None) -> str:
    return f"{(value or 0) % 3}"


def by_digit(key: str | None, value: int | None) -> tuple[str, int | None]:
    return digit(key, value), value


def both(one: int | None, other: int | None) -> int:
    return ((one or 0) * 3 + (other or 0)) % 1009


JOINERS = (both, (coalesce(left(), 0) * 3 + coalesce(right(), 0)) % 1009)


def add(one: int, other: int | None) -> int:
    return (one + (other or 0)) % 1009


def take_away(one: int, other: int | None) -> int:
    return (one - (other or 0)) % 1009


def without_window(key: Windowed, value: int | None) -> str:
    return f"{key.key}{key.start % 7}"


def named(value: int) -> str:
    return "abc"[value % 3]


class Distinct:
    """A processor that forwards a key's value when it changes."""

    def __init__(self, store: str) -> None:
        self._store = store

    def init(self, context: Any) -> None:
        self.context, self.last = context, context.store(self._store)

    def process(self, record: Any) -> None:
        if record.key is not None and self.last.get(record.key) != record.value:
            self.last.put(record.key, record.value)
            self.context.forward(record)


class Ticking:
    """A processor that counts a key's records by ten time units.

    Every 15 ms it emits the number of counts.
    """

    def __init__(self, store: str) -> None:
        self._store = store

    def init(self, context: Any) -> None:
        self.context, self.counts = context, context.store(self._store)
        context.schedule(15, "stream_time", self.tick)

    def process(self, record: Any) -> None:
        if record.key is not None:
            start = record.timestamp // 10 * 10
            self.counts.put(record.key, (self.counts.fetch(record.key, start) or 0) + 1, start)
            self.context.forward(record.with_value(sum(value for _, value in self.counts.fetch(record.key, 0, start))))

    def tick(self, time_ms: int) -> None:
        self.context.forward("tick", len(list(self.counts.all())), time_ms)


class Changed:
    """A processor that forwards doubled values."""

    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        self.context.forward_value(None if record.value is None else record.value * 2)


@dataclass
class Pool:
    """The streams and tables that further operators can use."""

    streams: list[Any]
    tables: list[Any] = field(default_factory=list)
    kept: set[str] = field(default_factory=set)
    timeless: bool = False


def windowed(windows: Any) -> Callable[[Any], Any]:
    def count(stream: Any) -> Any:
        counts = stream.group_by_key().windowed_by(windows).count(column="value")
        return counts.to_stream(without_window, key="string")

    return count


def rows(stream: Any) -> Any:
    """Return expressions that turn a value into rows of several columns and back."""
    twice = stream.with_columns(twice=coalesce(col("value"), 0) * 2).filter(col("twice") != 4)
    return twice.select("twice").map_values(lambda row: row["twice"], value="long")


def parts(stream: Any) -> Any:
    split = stream.split()
    small, others = split.branch(col("value") < 4), split.default_branch()
    return others.map_values(more).merge(small)


def zero() -> int:
    return 0


def folded(key: str, value: int | None, aggregate: int) -> int:
    return add(aggregate * 2, value)


def closing(windows: Any) -> Callable[[Any], Any]:
    def count_at_last(stream: Any) -> Any:
        counts = stream.group_by_key().windowed_by(windows).emit_strategy("on_window_close").count(column="value")
        return counts.to_stream(without_window, key="string")

    return count_at_last


def by_columns(stream: Any) -> Any:
    """Return named aggregates of expressions, grouped by a column."""
    grouped = stream.group_by(digit=(coalesce(col("value"), 0) % 3).cast("string"))
    table = grouped.aggregate(n=count(), total=sum_(coalesce(col("value"), 0)), most=max_("value"))
    return table.map_values(lambda row: row["n"] + row["total"] * 7 + (row["most"] or 0), value="long")


def null_columns(stream: Any) -> Any:
    """Return final counts by a key of two columns, one of which is null if the value is."""
    grouped = stream.group_by(digit=(coalesce(col("value"), 0) % 3).cast("string"), odd=col("value") % 2)
    closed = grouped.windowed_by(tumbling(8, grace=3)).emit_strategy("on_window_close").aggregate(n=count())
    counts = closed.to_stream(lambda key, row: f"{key.key}", key="string")
    return counts.map_values(lambda row: row["n"], value="long")


def finals(stream: Any) -> Any:
    counts = stream.group_by_key().windowed_by(tumbling(9, grace=4)).count(column="value")
    return counts.suppress(Suppressed.until_window_closes()).to_stream(without_window, key="string")


STREAMS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda stream: stream.filter(even),
    "filter_not": lambda stream: stream.filter_not(even),
    "map_values": lambda stream: stream.map_values(more),
    "flat_map_values": lambda stream: stream.flat_map_values(some),
    "select_key": lambda stream: stream.select_key(digit),
    "map": lambda stream: stream.map(by_digit),
    "repartition": lambda stream: stream.repartition(),
    "expressions": lambda stream: stream.filter((col("value") > 2) | (col("key") == "a")),
    "rows": rows,
    "parts": parts,
    "flat_map": lambda stream: stream.flat_map(lambda key, value: [(key, value), by_digit(key, value)]),
    "values": lambda stream: stream.process_values(Changed),
    "unlimited": windowed(unlimited()),
    "hopping": windowed(hopping(9, advance=4, grace=5)),
    "closing": closing(tumbling(8, grace=3)),
    "closing sessions": closing(sessions(3, grace=6)),
    "closing sliding": closing(sliding(5, grace=6)),
    "tumbling": windowed(tumbling(10, grace=5)),
    "sliding": windowed(sliding(6, grace=9)),
    "sessions": windowed(sessions(4, grace=20)),
    "finals": finals,
    "null columns": null_columns,
}
TABLES_OF_STREAMS: dict[str, Callable[[Any], Any]] = {
    "to_table": lambda stream: stream.to_table(),
    "count": lambda stream: stream.group_by_key().count(column="value"),
    "reduce": lambda stream: stream.group_by_key().reduce(add),
    "aggregate": lambda stream: stream.group_by_key().aggregate(zero, folded, value="long"),
    "by columns": by_columns,
    "versioned": lambda stream: stream.to_table(versioned=20),
    "group_by": lambda stream: stream.group_by(digit, key="string").count(column="value"),
}
TABLES: dict[str, Callable[[Any], Any]] = {
    "filter": lambda table: table.filter(even),
    "map_values": lambda table: table.map_values(more),
    "time limit": lambda table: table.suppress(Suppressed.until_time_limit(6)),
    "expressions": lambda table: table.filter(col("value") < 900),
    "count": lambda table: table.group_by(by_digit).count(),
    "reduce": lambda table: table.group_by(by_digit).reduce(add, take_away),
}
KINDS = ("join", "left_join", "outer_join")


LAST: dict[str, Callable[[Any], Any]] = {
    "count": lambda grouped: grouped.count(column="value", emit="last"),
    "reduce": lambda grouped: grouped.reduce(add, emit="last"),
    "unlimited": lambda grouped: grouped.windowed_by(unlimited()).reduce(both, emit="last"),
}
OF_TIME = {
    "tumbling",
    "hopping",
    "sliding",
    "sessions",
    "finals",
    "null columns",
    "closing",
    "closing sessions",
    "closing sliding",
    "versioned",
    "time limit",
}
"""Operators that depend on stream time, which is each task's own. Their results depend on the number of partitions."""


def topology_at_random(
    builder: StreamsBuilder, choose: Choose, prefix: str = "", *, timeless: bool = False, with_global: bool = True
) -> None:
    """Add a topology of some operators to ``builder``. ``prefix`` begins the names of its topics and stores.

    With ``timeless`` no operator depends on stream time.
    """
    streams = [builder.stream(f"{prefix}{topic}", **TYPES) for topic in TOPICS[:2]]
    everywhere = builder.global_table(f"{prefix}{TOPICS[2]}", **TYPES) if with_global else None
    pool = Pool(streams, timeless=timeless)
    for _ in range(choose(range(2, 7))):
        _grow(pool, everywhere, choose, prefix)
    ends = [*pool.streams[2:], *(table.to_stream() for table in pool.tables)]
    for number, stream in enumerate(ends):
        stream.to(f"{prefix}out{number}")
    last = LAST[choose(sorted(LAST))](choose(pool.streams).group_by_key())
    last.to_stream(lambda key, value: getattr(key, "key", key), key="string").to(f"{prefix}last")


def settled(topic: str, records: Sequence[tuple[Any, ...]]) -> Any:
    """Return the results that do not depend on the batches.

    These are all records of a topic, or each key's last one with ``emit="last"``.
    """
    return {record[0]: record for record in records} if topic.endswith("last") else list(records)


def _grow(pool: Pool, everywhere: Any, choose: Choose, prefix: str) -> None:
    looks_globally = ["globally"] if everywhere is not None else []
    what = choose([*3 * ["stream"], "to table", *OF_TABLES, *OF_STREAMS, *looks_globally, *ONCE])
    stream, other = choose(pool.streams), choose(pool.streams)
    if what in ("table", "tables", "look up") and not pool.tables:
        what = "to table"
    if what == "to table" or what in OF_TABLES:
        pool.tables.append(_table(what, stream, other, pool, choose))
    elif what not in ONCE:
        pool.streams.append(_stream(what, stream, other, pool, everywhere, choose))
    elif what not in pool.kept and not (what == "tick" and pool.timeless):
        pool.kept.add(what)
        pool.streams.append(_once(what, stream, pool, prefix))


OF_TABLES = ("to table", "table", "tables", "together")
OF_STREAMS = ("pairs", "look up", "merge")
ONCE = ("through", "keep", "tick")
"""Parameters that name a topic or store."""


def _table(what: str, stream: Any, other: Any, pool: Pool, choose: Choose) -> Any:
    match what:
        case "to table":
            return _one(TABLES_OF_STREAMS, pool, choose)(stream)
        case "table":
            return _one(TABLES, pool, choose)(choose(pool.tables))
        case "tables":
            return _tables_joined(choose(pool.tables), choose(pool.tables), choose)
    cogrouped = stream.group_by_key().cogroup(folded).cogroup(other.group_by_key(), folded)
    return cogrouped.aggregate(zero, value="long")


def _stream(what: str, stream: Any, other: Any, pool: Pool, everywhere: Any, choose: Choose) -> Any:
    match what:
        case "pairs":
            window = within(1000 if pool.timeless else choose([0, 3, 8]), grace=3)
            return getattr(stream, choose(KINDS))(other, choose(JOINERS), window=window)
        case "look up":
            return getattr(stream, choose(KINDS[:2]))(choose(pool.tables), choose(JOINERS))
        case "merge":
            return stream.merge(other)
        case "globally":
            join = getattr(stream, choose(KINDS[:2]))
            return join(everywhere, choose(JOINERS), selector=lambda key, value: key)
    return _one(STREAMS, pool, choose)(stream)


def _once(what: str, stream: Any, pool: Pool, prefix: str) -> Any:
    match what:
        case "through":
            return stream.through(f"{prefix}between")
        case "keep":
            # A processor reads records without a repartition, also under a new key.
            return _distinct(stream.repartition() if pool.timeless else stream, f"{prefix}last")
    store = window_store(f"{prefix}ticks", **TYPES, retention=40)
    return stream.process(lambda: Ticking(store.name), stores=[store])


def _one(kinds: dict[str, Callable[[Any], Any]], pool: Pool, choose: Choose) -> Callable[[Any], Any]:
    return kinds[choose(sorted(set(kinds) - (OF_TIME if pool.timeless else set())))]


def _tables_joined(one: Any, other: Any, choose: Choose) -> Any:
    if choose([False, True]):
        return getattr(one, choose(KINDS[:2]))(other, choose(JOINERS), foreign_key=named, foreign_key_type="string")
    return getattr(one, choose(KINDS))(other, choose(JOINERS))


def _distinct(stream: Any, store: str) -> Any:
    return stream.process(lambda: Distinct(store), stores=[key_value_store(store, **TYPES)])
