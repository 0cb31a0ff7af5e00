"""Topologies made at random: operators put behind one another, over two topics and a global table, as chance has it.

``choose`` picks one of some options: hypothesis' ``draw``, or a seeded ``random.Random``. Keys are strings and values
whole numbers everywhere, None among both in what comes in, so that any operator fits behind any other.
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
    key_value_store,
    left,
    right,
    sessions,
    sliding,
    tumbling,
    within,
)

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
    """Forwards a key's value when it changes."""

    def __init__(self, store: str) -> None:
        self._store = store

    def init(self, context: Any) -> None:
        self.context, self.last = context, context.store(self._store)

    def process(self, record: Any) -> None:
        if record.key is not None and self.last.get(record.key) != record.value:
            self.last.put(record.key, record.value)
            self.context.forward(record)


@dataclass
class Pool:
    """What further operators may be put behind."""

    streams: list[Any]
    tables: list[Any] = field(default_factory=list)
    keeps_last: bool = False
    timeless: bool = False


def windowed(windows: Any) -> Callable[[Any], Any]:
    def count(stream: Any) -> Any:
        counts = stream.group_by_key().windowed_by(windows).count(column="value")
        return counts.to_stream(without_window, key="string")

    return count


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
    "tumbling": windowed(tumbling(10, grace=5)),
    "sliding": windowed(sliding(6, grace=9)),
    "sessions": windowed(sessions(4, grace=20)),
    "finals": finals,
}
TABLES_OF_STREAMS: dict[str, Callable[[Any], Any]] = {
    "to_table": lambda stream: stream.to_table(),
    "count": lambda stream: stream.group_by_key().count(column="value"),
    "reduce": lambda stream: stream.group_by_key().reduce(add),
    "group_by": lambda stream: stream.group_by(digit, key="string").count(column="value"),
}
TABLES: dict[str, Callable[[Any], Any]] = {
    "filter": lambda table: table.filter(even),
    "map_values": lambda table: table.map_values(more),
    "count": lambda table: table.group_by(by_digit).count(),
    "reduce": lambda table: table.group_by(by_digit).reduce(add, take_away),
}
KINDS = ("join", "left_join", "outer_join")


OF_TIME = ("tumbling", "sliding", "sessions", "finals")
"""What depends on stream time, which is that of a task: with several partitions another than with one."""


def topology_at_random(builder: StreamsBuilder, choose: Choose, prefix: str = "", *, timeless: bool = False) -> None:
    """Add a topology of some operators to ``builder``; ``prefix`` begins the names of its topics and stores.

    With ``timeless`` nothing depends on stream time.
    """
    streams = [builder.stream(f"{prefix}{topic}", **TYPES) for topic in TOPICS[:2]]
    everywhere = builder.global_table(f"{prefix}{TOPICS[2]}", **TYPES)
    pool = Pool(streams, timeless=timeless)
    for _ in range(choose(range(2, 7))):
        _grow(pool, everywhere, choose, prefix)
    ends = [*pool.streams[2:], *(table.to_stream() for table in pool.tables)]
    for number, stream in enumerate(ends):
        stream.to(f"{prefix}out{number}")


def _grow(pool: Pool, everywhere: Any, choose: Choose, prefix: str) -> None:
    what = choose(["stream", "stream", "to table", "table", "pairs", "look up", "tables", "merge", "globally", "keep"])
    stream, other = choose(pool.streams), choose(pool.streams)
    if what in ("table", "tables", "look up") and not pool.tables:
        what = "to table"
    match what:
        case "stream":
            pool.streams.append(STREAMS[choose(sorted(set(STREAMS) - set(OF_TIME if pool.timeless else ())))](stream))
        case "to table":
            pool.tables.append(TABLES_OF_STREAMS[choose(sorted(TABLES_OF_STREAMS))](stream))
        case "table":
            pool.tables.append(TABLES[choose(sorted(TABLES))](choose(pool.tables)))
        case "pairs":
            join = getattr(stream, choose(KINDS))
            pool.streams.append(
                join(other, choose(JOINERS), window=within(1000 if pool.timeless else choose([0, 3, 8]), grace=3))
            )
        case "look up":
            pool.streams.append(getattr(stream, choose(KINDS[:2]))(choose(pool.tables), choose(JOINERS)))
        case "tables":
            pool.tables.append(_tables_joined(choose(pool.tables), choose(pool.tables), choose))
        case "merge":
            pool.streams.append(stream.merge(other))
        case "globally":
            pool.streams.append(stream.left_join(everywhere, choose(JOINERS), selector=lambda key, value: key))
        case "keep" if not pool.keeps_last:
            pool.keeps_last = True
            # A processor takes records where they are, also under another key than the one that brought them there.
            at_home = stream.repartition() if pool.timeless else stream
            pool.streams.append(_distinct(at_home, f"{prefix}last"))


def _tables_joined(one: Any, other: Any, choose: Choose) -> Any:
    if choose([False, True]):
        return getattr(one, choose(KINDS[:2]))(other, choose(JOINERS), foreign_key=named, foreign_key_type="string")
    return getattr(one, choose(KINDS))(other, choose(JOINERS))


def _distinct(stream: Any, store: str) -> Any:
    return stream.process(lambda: Distinct(store), stores=[key_value_store(store, **TYPES)])
