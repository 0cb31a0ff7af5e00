"""Random topologies as programs for millrace and Kafka Streams.

A program builds the same topology here and in Kafka Streams (``GeneratedTopology.java``). A line of a program is the
name of an operator, the numbers of its inputs, and its other numbers. It adds a stream, a table, or a table of windows.
The results of each are written to a topic such as ``table-0``. Keys are strings and values are whole numbers, so that
any operator can follow any other.

No program has what differs by design (docs/streams/semantics.md) or by chance:

* results that came through two repartition topics, or of two that did, are in no defined order, and are not compared;
* Kafka Streams computes rows that are not stored: of a suppressed table those that are held back, of windows also
  those of which ours would not expire, and of a table that is derived from the other side's those from after a change;
* Kafka Streams loses results on close if stream time jumps past the retention, so that these windows have a long one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from millrace_streams import (
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    hopping,
    key_value_store,
    sessions,
    sliding,
    tumbling,
    within,
)
from millrace_streams.suppressed import BufferConfig

from .topologies import KEPT_MS

Kind: TypeAlias = Literal["stream", "table", "windows"]
Program: TypeAlias = Sequence[str]
TYPES: Final = {"key": "string", "value": "long"}
WINDOWS: Final = (
    tumbling(10, grace=4),
    hopping(10, advance=4, grace=6),
    sliding(6, grace=5),
    sliding(6),
    sessions(5, grace=6),
    tumbling(8, grace=30),
    sessions(4, grace=30),
    hopping(10, advance=4, grace=30),
    sliding(6, grace=30),
)
_JOINED: Final = (5, 6)
"""Windows whose tables are joined, because they are kept for long."""
_ALL: Final = tuple((number,) for number in range(len(WINDOWS)))
_JOIN_WINDOWS: Final = ((5, 5, 4), (2, 9, 20), (3, 3, 0), (0, 6, 3), (6, 0, 3), (0, 0, 0), (0, 0, 5))


def number(value: int | None) -> int:
    return value or 0


def joined(left: int | None, right: int | None) -> int:
    return (number(left) * 10 + (7 if right is None else right)) % 1000


def tripled(value: int) -> int:
    return (value * 3 + 1) % 1000


def abc(value: int) -> str:
    return "abc"[value % 3]


def link(value: int) -> str | None:
    return None if value % 7 == 6 else abc(value)


def fold(key: str, value: int | None, total: int) -> int | None:
    result = (total * 3 + number(value)) % 1000
    return None if result > 800 else result


def merged(key: str, one: int | None, other: int | None) -> int:
    return (number(one) + 100 * number(other)) % 1000


def reduced(total: int | None, value: int | None) -> int:
    return (number(total) * 2 + number(value)) % 1000


class Summing:
    """A processor that adds up values and forwards sums.

    At each tick of stream time it forwards all sums, and deletes the large ones.
    """

    def __init__(self, store: str) -> None:
        self._store = store

    def init(self, context: Any) -> None:
        self._context, self._sums = context, context.store(self._store)
        context.schedule(7, "stream_time", self._tick)

    def process(self, record: Any) -> None:
        if record.key is None:
            return
        total = (number(self._sums.get(record.key)) + 1 + number(record.value)) % 1000
        self._sums.put(record.key, total)
        if total % 3:
            self._context.forward(record.with_value(total))

    def _tick(self, now_ms: int) -> None:
        for key, total in self._sums.all():
            self._context.forward(key, (total + now_ms % 100) % 1000, now_ms)
            if total > 30:
                self._sums.delete(key)


def repeated(value: int | None) -> list[int]:
    return [] if value is None else [value] if value % 3 else [value, value + 1]


def spread(key: str, value: int | None) -> list[tuple[str, int]]:
    return [] if value is None else [(key, value), (abc(value), value + 1)]


def cogrouped(x: Any, y: Any) -> Any:
    both = x.group_by_key().cogroup(lambda key, value, total: (total + number(value)) % 1000)
    return both.cogroup(y.group_by_key(), lambda key, value, total: (total * 2 - number(value)) % 1000)


def cogrouped_windows(x: Any, y: Any, kind: int) -> Any:
    both = cogrouped(x, y).windowed_by(WINDOWS[kind])
    return both.aggregate(lambda: 1, merged) if isinstance(WINDOWS[kind], SessionWindows) else both.aggregate(lambda: 1)


def aggregated_windows(x: Any, kind: int) -> Any:
    each, merger = x.group_by_key().windowed_by(WINDOWS[kind]), [merged]
    return each.aggregate(lambda: 1, fold, *(merger if isinstance(WINDOWS[kind], SessionWindows) else []))


def closed_windows(x: Any, kind: int) -> Any:
    return x.group_by_key().windowed_by(WINDOWS[kind].retain(KEPT_MS)).emit_strategy("on_window_close").count()


def processed(x: Any, store: str) -> Any:
    return x.process(partial(Summing, store), stores=[key_value_store(store, **TYPES)])


def of_streams(method: str) -> Callable[..., Any]:
    return lambda x, y, before, after, grace: getattr(x, method)(
        y, joined, window=within(0, grace=grace).before(before).after(after)
    )


def of_rows(method: str) -> Callable[..., Any]:
    return lambda rows, others, is_stored, store: getattr(rows, method)(others, joined, **_stored(is_stored, store))


def by_link(method: str) -> Callable[..., Any]:
    return lambda rows, others, store: getattr(rows, method)(others, joined, foreign_key=link, store=store)


def by_value(rows: Any) -> Any:
    return rows.group_by(lambda key, value: (abc(value), value))


def added(grouped: Any) -> Any:
    return grouped.reduce(lambda total, value: total + value, lambda total, value: total - value)


def narrow(changes: Any) -> Any:
    return changes.select_key(lambda key, value: f"{key.key}{key.start % 7}")


def held_in_two(rows: Any, limit_ms: int) -> Any:
    config = BufferConfig.max_records(2).emit_early_when_full()
    return rows.suppress(Suppressed.until_time_limit(limit_ms, config))


def _stored(is_stored: int, store: str) -> dict[str, str]:
    return {"store": store} if is_stored else {}


@dataclass(frozen=True)
class Operator:
    """An operator with the kinds of its inputs and its result.

    An operator also has a method, and the possible numbers after the inputs. ``store`` tells whether the method takes a
    store's name. ``looks_up`` are the inputs whose rows are looked up. ``moves`` is the number of repartitions apart
    from those of streams with new keys.
    """

    inputs: tuple[Kind, ...]
    result: Kind
    build: Callable[..., Any]
    numbers: tuple[tuple[int, ...], ...] = ((),)
    store: bool = False
    looks_up: tuple[int, ...] = ()
    moves: int = 0


_S: Final[Kind] = "stream"
_T: Final[Kind] = "table"
_W: Final[Kind] = "windows"
_LIMITS: Final = ((0,), (5,), (12,))

OPERATORS: Final[dict[str, Operator]] = {
    "filter": Operator(
        (_S,), _S, lambda x, limit: x.filter(lambda value: value is not None and value > limit), ((2,), (5,), (50,))
    ),
    "map-values": Operator((_S,), _S, lambda x: x.map_values(lambda value: None if value is None else tripled(value))),
    "flat-map-values": Operator((_S,), _S, lambda x: x.flat_map_values(repeated)),
    "flat-map": Operator((_S,), _S, lambda x: x.flat_map(spread)),
    "select-key": Operator((_S,), _S, lambda x: x.select_key(lambda key, value: key if value is None else abc(value))),
    "without-key": Operator(
        (_S,), _S, lambda x: x.select_key(lambda key, value: None if value is not None and value % 5 == 0 else key)
    ),
    "merge": Operator((_S, _S), _S, lambda x, y: x.merge(y)),
    "repartition": Operator((_S,), _S, lambda x: x.repartition(), moves=1),
    "process": Operator((_S,), _S, processed, store=True),
    "join": Operator((_S, _S), _S, of_streams("join"), _JOIN_WINDOWS),
    "left-join": Operator((_S, _S), _S, of_streams("left_join"), _JOIN_WINDOWS),
    "outer-join": Operator((_S, _S), _S, of_streams("outer_join"), _JOIN_WINDOWS),
    "join-table": Operator((_S, _T), _S, lambda x, rows: x.join(rows, joined), looks_up=(1,)),
    "left-join-table": Operator((_S, _T), _S, lambda x, rows: x.left_join(rows, joined), looks_up=(1,)),
    "join-versions": Operator(
        (_S, _T), _S, lambda x, rows, grace: x.join(rows, joined, grace=grace), ((0,), (3,), (5,))
    ),
    "left-join-versions": Operator(
        (_S, _T), _S, lambda x, rows, grace: x.left_join(rows, joined, grace=grace), ((0,), (3,), (5,))
    ),
    "table": Operator((_S,), _T, lambda x, store: x.to_table(store=store), store=True),
    "versions": Operator(
        (_S,), _T, lambda x, ms, store: x.to_table(store=store, versioned=ms), ((5,), (20,), (60,)), store=True
    ),
    "count": Operator((_S,), _T, lambda x: x.group_by_key().count()),
    "count-by-value": Operator(
        (_S,),
        _T,
        lambda x: x.filter(lambda value: value is not None).group_by(lambda key, value: abc(value)).count(),
        moves=1,
    ),
    "reduce": Operator((_S,), _T, lambda x: x.group_by_key().reduce(reduced)),
    "aggregate": Operator((_S,), _T, lambda x: x.group_by_key().aggregate(lambda: 5, fold)),
    "cogroup": Operator((_S, _S), _T, lambda x, y: cogrouped(x, y).aggregate(lambda: 1)),
    "changes": Operator((_T,), _S, lambda rows: rows.to_stream()),
    "filter-rows": Operator(
        (_T,),
        _T,
        lambda rows, limit, is_stored, store: rows.filter(lambda value: value > limit, **_stored(is_stored, store)),
        ((2, 0), (4, 1), (50, 0), (50, 1)),
        store=True,
    ),
    "map-rows": Operator(
        (_T,),
        _T,
        lambda rows, is_stored, store: rows.map_values(tripled, **_stored(is_stored, store)),
        ((0,), (1,)),
        store=True,
    ),
    "join-rows": Operator((_T, _T), _T, of_rows("join"), ((0,), (1,)), store=True, looks_up=(0, 1)),
    "left-join-rows": Operator((_T, _T), _T, of_rows("left_join"), ((0,), (1,)), store=True, looks_up=(0, 1)),
    "outer-join-rows": Operator((_T, _T), _T, of_rows("outer_join"), ((0,), (1,)), store=True, looks_up=(0, 1)),
    "foreign-key": Operator((_T, _T), _T, by_link("join"), store=True, looks_up=(0, 1), moves=1),
    "left-foreign-key": Operator((_T, _T), _T, by_link("left_join"), store=True, looks_up=(0, 1), moves=1),
    "count-rows": Operator((_T,), _T, lambda rows: by_value(rows).count(), moves=1),
    "add-rows": Operator((_T,), _T, lambda rows: added(by_value(rows)), moves=1),
    "aggregate-rows": Operator(
        (_T,),
        _T,
        lambda rows: rows.group_by(lambda key, value: (key, value)).aggregate(
            lambda: 0,
            lambda key, value, total: (total + value * 2) % 1000,
            lambda key, value, total: (total - value) % 1000,
        ),
        moves=1,
    ),
    "hold": Operator((_T,), _T, lambda rows, ms: rows.suppress(Suppressed.until_time_limit(ms)), _LIMITS),
    "hold-two": Operator((_T,), _T, held_in_two, _LIMITS),
    "count-windows": Operator((_S,), _W, lambda x, kind: x.group_by_key().windowed_by(WINDOWS[kind]).count(), _ALL),
    "reduce-windows": Operator(
        (_S,), _W, lambda x, kind: x.group_by_key().windowed_by(WINDOWS[kind]).reduce(reduced), _ALL
    ),
    "aggregate-windows": Operator((_S,), _W, aggregated_windows, _ALL),
    "cogroup-windows": Operator((_S, _S), _W, cogrouped_windows, _ALL),
    "close-windows": Operator((_S,), _W, closed_windows, _ALL),
    "filter-windows": Operator(
        (_W,), _W, lambda rows, limit: rows.filter(lambda value: value > limit), ((1,), (3,), (50,))
    ),
    "map-windows": Operator((_W,), _W, lambda rows: rows.map_values(tripled)),
    "join-windows": Operator((_W, _W), _W, lambda rows, others: rows.join(others, joined), looks_up=(0, 1)),
    "left-join-windows": Operator((_W, _W), _W, lambda rows, others: rows.left_join(others, joined), looks_up=(0, 1)),
    "outer-join-windows": Operator((_W, _W), _W, lambda rows, others: rows.outer_join(others, joined), looks_up=(0, 1)),
    "hold-windows": Operator((_W,), _W, lambda rows, ms: rows.suppress(Suppressed.until_time_limit(ms)), _LIMITS),
    "suppress-windows": Operator((_W,), _W, lambda rows: rows.suppress(Suppressed.until_window_closes())),
    "changes-of-windows": Operator((_W,), _S, lambda rows: narrow(rows.to_stream())),
    "join-table-of-windows": Operator(
        (_W, _W), _S, lambda rows, others: narrow(rows.to_stream().join(others, joined)), looks_up=(1,)
    ),
    "left-join-table-of-windows": Operator(
        (_W, _W), _S, lambda rows, others: narrow(rows.to_stream().left_join(others, joined)), looks_up=(1,)
    ),
    "add-windows": Operator(
        (_W,), _T, lambda rows: added(rows.group_by(lambda key, value: (key.key, value), key="string")), moves=1
    ),
}


def build(builder: StreamsBuilder, program: Program) -> None:
    """Build the topology of a program."""
    made: dict[Kind, list[Any]] = {_S: [builder.stream(topic, **TYPES) for topic in "xy"], _T: [], _W: []}
    for place, line in enumerate(program):
        name, *texts = line.split(" ")
        operator, numbers = OPERATORS[name], [int(text) for text in texts]
        count = len(operator.inputs)
        inputs = [made[kind][at] for kind, at in zip(operator.inputs, numbers[:count], strict=True)]
        stores = [f"store-{place}"] if operator.store else []
        made[operator.result].append(operator.build(*inputs, *numbers[count:], *stores))
    for kind, handles in made.items():
        for at, handle in enumerate(handles):
            if kind == "windows":
                stream = handle.to_stream().select_key(lambda key, value: f"{key.key}|{key.start}|{key.end}")
            else:
                stream = handle if kind == "stream" else handle.to_stream()
            if kind != "stream" or at > 1:
                stream.to(f"{kind}-{at}")


@dataclass(frozen=True)
class Made:
    """The result of a program's line, with its origin.

    ``moves`` counts repartitions on the longest way. With ``has_new_key`` the next operator that needs the key
    repartitions. ``tables`` are those from which the result is derived, itself included. ``is_computed`` tells that
    Kafka Streams does not store its rows, and ``is_held`` that those which it computes are others than ours. The
    windows of such a table may not be those of one aggregation.
    """

    kind: Kind
    at: int
    moves: int = 0
    has_new_key: bool = False
    has_null_keys: bool = False
    is_unordered: bool = False
    tables: frozenset[tuple[Kind, int]] = frozenset()
    is_computed: bool = False
    is_held: bool = False
    has_versions: bool = False
    window: int = -1


@dataclass
class Generator:
    """Choice of a program's lines."""

    chance: random.Random
    program: list[str] = field(default_factory=list)
    made: dict[Kind, list[Made]] = field(default_factory=lambda: {_S: [Made(_S, 0), Made(_S, 1)], _T: [], _W: []})

    def grow(self) -> None:
        """Add a line, unless the chosen operator cannot follow the chosen inputs."""
        name = self.chance.choice([*OPERATORS, *3 * ["join", "left-join", "outer-join", "close-windows"]])
        operator = OPERATORS[name]
        if not all(self.made[kind] for kind in operator.inputs):
            return
        inputs = [self.chance.choice(self.made[kind]) for kind in operator.inputs]
        numbers = self.chance.choice(operator.numbers)
        if not self._may_follow(name, operator, inputs):
            return
        self.program.append(" ".join(map(str, (name, *(each.at for each in inputs), *numbers))))
        self.made[operator.result].append(self._result(name, operator, inputs, numbers))

    def _may_follow(self, name: str, operator: Operator, inputs: list[Made]) -> bool:
        one, other = inputs[0], inputs[-1]
        found = [inputs[place] for place in operator.looks_up]
        if name in ("merge", "cogroup", "cogroup-windows") and (
            one == other or (one.has_new_key and other.has_new_key)
        ):
            return False
        if name == "process":
            # The driver of Kafka Streams has one stream time for all sub-topologies.
            return self.program[:1] == ["merge 0 1"] and not one.moves and not one.has_new_key
        if "versions" in name and "join" in name:
            return other.has_versions and not other.is_computed and not one.has_null_keys
        if name == "suppress-windows":
            return not one.is_held
        if name.startswith("hold"):
            return not one.has_versions
        if "windows" in name and "join" in name:
            is_kept = all(each.window in _JOINED and not each.is_computed for each in found)
            return is_kept and one.window == other.window and (len(found) == 1 or self._are_apart(found))
        return not any(each.is_held for each in found) and (len(found) < 2 or self._are_apart(found))

    def _are_apart(self, found: list[Made]) -> bool:
        """Return whether no table is derived from the other."""
        one, other = found
        return one == other or not one.tables & other.tables

    def _result(self, name: str, operator: Operator, inputs: list[Made], numbers: tuple[int, ...]) -> Made:
        needs_key = operator.result != _S or "join" in name
        moves = [each.moves + (needs_key and each.has_new_key) for each in inputs]
        is_unordered = any(each.is_unordered for each in inputs) or (len(moves) == 2 and min(moves) > 0)
        is_unordered |= "foreign" in name and max(moves) > 0
        total = max(moves) + operator.moves
        at = len(self.made[operator.result])
        tables = frozenset[tuple[Kind, int]]().union(*(each.tables for each in inputs))
        computed = name in ("hold", "hold-two") or (operator.result == _W and _W in operator.inputs)
        computed |= name == "cogroup-windows"  # a join of Kafka Streams cannot read its store
        computed |= name in ("filter-rows", "map-rows", *_JOINS_OF_ROWS) and numbers[-1] == 0
        is_join_of_tables = computed and len(inputs) == 2
        changes_key = name in ("select-key", "without-key", "flat-map", "process") or "of-windows" in name
        keeps_key = operator.result == _S and not needs_key and name != "repartition"
        return Made(
            operator.result,
            at,
            moves=total,
            has_new_key=changes_key or (keeps_key and any(each.has_new_key for each in inputs)),
            has_null_keys=name == "without-key" or any(each.has_null_keys for each in inputs),
            is_unordered=is_unordered or total > 1,
            tables=tables if operator.result == _S else tables | {(operator.result, at)},
            is_computed=computed,
            is_held=name.startswith(("hold", "suppress"))
            or (computed and any(each.is_held for each in inputs))
            or (is_join_of_tables and (inputs[0] == inputs[1] or operator.result == _W)),
            has_versions=name == "versions" or (computed and len(inputs) == 1 and inputs[0].has_versions),
            window=numbers[-1] if operator.result == _W and _W not in operator.inputs else inputs[0].window,
        )


_JOINS_OF_ROWS: Final = ("join-rows", "left-join-rows", "outer-join-rows")


def generate(chance: random.Random) -> tuple[Program, frozenset[str]]:
    """Return a random program, and the topics whose results are in no defined order."""
    generator = Generator(chance)
    if chance.random() < 0.5:
        generator.program.append("merge 0 1")
        generator.made[_S].append(Made(_S, 2))
    length = chance.randint(2, 14)
    while len(generator.program) < length:
        generator.grow()
    unordered = [each for handles in generator.made.values() for each in handles if each.is_unordered]
    return generator.program, frozenset(f"{each.kind}-{each.at}" for each in unordered)
