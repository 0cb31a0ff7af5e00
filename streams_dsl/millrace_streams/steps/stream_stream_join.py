"""Join of two streams by key, within a window.

The rules and the order of results are those of Kafka Streams 3.9:

* a record is kept for the other side as long as ``time > newest kept time of its side - (before + after + grace)``; the
  grace itself drops nothing;
* a record of an outer side without a match waits until its window and grace have passed. Then it is joined with None by
  a record that advances the join's stream time, before that record's own results;
* a record whose window has already passed on arrival does not wait.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from millrace_streams.graph import StreamStreamJoinNode
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.flow import Emitted, Inputs, Output
from millrace_streams.steps.joins import Joining
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State
from millrace_streams.stores import RecordStore, StoreSpec, TimeBuffer
from millrace_streams.stores.entries import WaitingForPartner
from millrace_streams.windows import FOREVER_MS

_LEFT: Final = 0
_RIGHT: Final = 1
_STREAM_TIME: Final = "stream_time"
_OLDEST_WAITING: Final = "oldest_waiting"


@dataclass(frozen=True)
class StreamStreamJoinStep:
    """Step of a ``StreamStreamJoinNode``. Each side has a store of records by key and time."""

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """Stores of both sides' records, and of those that wait for a match."""
        node, (left, right) = self._node, self.operator.inputs
        kept: dict[str, Any] = {"kind": "records", "form": "records", "retention_ms": node.window.retention_ms}
        return (
            StoreSpec(name=node.left_store, layout=left, **kept),
            StoreSpec(name=node.right_store, layout=right, **kept),
            StoreSpec(name=node.waiting_store, kind="buffer", layout=left, form="waiting_for_partner", other=right),
        )

    def run(self, inputs: Inputs, state: State) -> Output:
        """Join the records in order."""
        node, out = self._node, Emitted()
        sides = [self._records(state, node.left_store), self._records(state, node.right_store)]
        waiting = state.stores[node.waiting_store]
        assert isinstance(waiting, TimeBuffer)
        keys, values, times = inputs.by_turn()
        join = _Join(node, sides, waiting, out)
        join.want(inputs.sides.tolist(), keys, times)
        for turn, side in enumerate(inputs.sides.tolist()):
            join.turn, join.side = turn, side
            join.handle(keys[turn], values[turn], times[turn])
        left, right = self.operator.inputs
        records = Batch.of_lists(left, out.keys, out.values, out.times)
        joining = Joining(node.name, node.joiner, right, self.operator.result)
        output = joining.join_released(node, inputs, out.causes, records, join.others, join.released)
        return replace(output, dropped=out.dropped)

    def _records(self, state: State, name: str) -> RecordStore:
        store = state.stores[name]
        assert isinstance(store, RecordStore)
        return store

    @property
    def _node(self) -> StreamStreamJoinNode:
        node = self.operator.node
        assert isinstance(node, StreamStreamJoinNode)
        return node


@dataclass(slots=True)
class _Join:
    """Join of the records of a batch, one after the other.

    ``turn`` and ``side`` are those of the current record. ``out`` collects the left values of all pairs and ``others``
    the right values; ``released`` are the numbers of those that had waited. All pairs are joined at the end.
    """

    node: StreamStreamJoinNode
    sides: list[RecordStore]
    waiting: TimeBuffer
    out: Emitted
    others: list[Any] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    order: _Order | None = None
    turn: int = 0
    side: int = _LEFT

    def want(self, sides: Sequence[int], keys: Sequence[Any], times: Sequence[int]) -> None:
        """Prefetch the records that the batch may find or change."""
        records = [record for record in zip(sides, keys, times, strict=True) if record[1] is not None]
        if not records:
            return
        wanted = {key for _, key, _ in records}
        first_ms, last_ms = min(time_ms for *_, time_ms in records), max(time_ms for *_, time_ms in records)
        back_ms, ahead_ms = (self.node.window.after_ms, self.node.window.before_ms)
        for side, store in enumerate(self.sides):
            own = [(key, time_ms) for number, key, time_ms in records if number == side]
            store.want_records(wanted, own, first_ms - back_ms, last_ms + ahead_ms)
            back_ms, ahead_ms = ahead_ms, back_ms

    def handle(self, key: Any, value: Any, time_ms: int) -> None:
        """Store the record, join it, and emit records whose wait has ended."""
        there = key is not None and value is not None
        if there:
            self.sides[self.side].put(key, time_ms, value)
        stream_time_ms = max(self.waiting.number(_STREAM_TIME), time_ms)
        self.waiting.numbers[_STREAM_TIME] = stream_time_ms
        if not there:
            if value is not None and self._outer(self.side):
                self._emit(key, self.side, value, None, time_ms)
            else:
                self.out.dropped += 1
            return
        if self.node.kind != "inner" and time_ms == stream_time_ms:
            self._release(stream_time_ms)
        found = self._join(key, value, time_ms)
        if self._outer(self.side) and not found:
            self._wait(key, value, time_ms, stream_time_ms)

    def _outer(self, side: int) -> bool:
        return self.node.kind == "outer" or (self.node.kind == "left" and side == _LEFT)

    def _reach(self, side: int) -> int:
        """Return how far a side's records look ahead for a match."""
        window = self.node.window
        return window.after_ms if side == _LEFT else window.before_ms

    def _join(self, key: Any, value: Any, time_ms: int) -> bool:
        """Join with the other side's records; returns whether there were any."""
        other = 1 - self.side
        store, window = self.sides[other], self.node.window
        before_ms, after_ms = window.before_ms, window.after_ms
        first_ms, last_ms = (time_ms - before_ms, time_ms + after_ms)
        if self.side == _RIGHT:
            first_ms, last_ms = time_ms - after_ms, time_ms + before_ms
        # As in Kafka Streams, a window that would end before the epoch ends there.
        records = store.between(key, first_ms, max(0, last_ms))
        other_waits = self._outer(other)
        for other_ms, other_value in records:
            if other_waits:
                self.waiting.remove((other, key, other_ms))
            self._emit(key, self.side, value, other_value, max(time_ms, other_ms))
        return bool(records)

    def _emit(self, key: Any, side: int, value: Any, other: Any, time_ms: int) -> None:
        left, right = (value, other) if side == _LEFT else (other, value)
        self.out.add(self.turn, key, left, time_ms)
        self.others.append(right)

    def _wait(self, key: Any, value: Any, time_ms: int, stream_time_ms: int) -> None:
        window = self.node.window
        # As in Kafka Streams, a window that would end before the epoch ends there.
        last_ms = max(0, time_ms + (window.after_ms if self.side == _LEFT else window.before_ms))
        if last_ms < stream_time_ms:
            self._emit(key, self.side, value, None, time_ms)
            return
        oldest = min(self.waiting.number(_OLDEST_WAITING, FOREVER_MS), time_ms)
        self.waiting.numbers[_OLDEST_WAITING] = oldest
        identity = (self.side, key, time_ms)
        waiting = self.waiting.entry(identity)
        values = (*(waiting.values if waiting is not None else ()), value)
        entry = WaitingForPartner(self.side == _LEFT, key, time_ms, values)
        self.waiting.put(identity, entry)
        if self.order is not None:
            self.order.add(identity, entry)

    def _release(self, stream_time_ms: int) -> None:
        """Join records with None that can no longer find a match; both sides wait in one order by time."""
        grace_ms = self.node.window.grace_ms
        oldest_ms = self.waiting.number(_OLDEST_WAITING, FOREVER_MS)
        if oldest_ms + self._reach(self.side) + grace_ms >= stream_time_ms:
            return
        if self.order is None:
            self.order = _Order(self.waiting)
        over = self.order.take([stream_time_ms - grace_ms - self._reach(side) for side in (_LEFT, _RIGHT)])
        self.waiting.numbers[_OLDEST_WAITING] = self.order.seen_ms(over)
        for _, (side, key, time_ms) in over:
            for value in self.waiting.remove((side, key, time_ms)).values:
                self.released.append(len(self.others))
                self._emit(key, side, value, None, time_ms)


_Item: TypeAlias = tuple[tuple[Any, ...], tuple[int, Any, int]]
"""Place and identity of a record that waits."""


class _Order:
    """Waiting records of each side, in order.

    With this order, a release reads no record that waits behind others of its side. Records leave the buffer also when
    they find a match. Their items are dropped when the release meets them.
    """

    def __init__(self, waiting: TimeBuffer) -> None:
        self._waiting = waiting
        self._items: tuple[list[_Item], list[_Item]] = ([], [])
        self._first = [0, 0]
        self._known: set[Any] = set()
        for identity, entry in waiting.entries():
            self.add(identity, entry)

    def add(self, identity: tuple[int, Any, int], entry: WaitingForPartner) -> None:
        """Add a record, unless one with the same place is known."""
        if identity not in self._known:
            self._known.add(identity)
            side = identity[0]
            insort(self._items[side], (entry.place, identity), lo=self._first[side], key=_place)

    def take(self, limits_ms: Sequence[int]) -> list[_Item]:
        """Take the records before the limit of their side, in the order of both sides."""
        over: list[_Item] = []
        for side, limit_ms in enumerate(limits_ms):
            items, first = self._items[side], self._first[side]
            while first < len(items) and (items[first][0][0] < limit_ms or not self._waits(items[first])):
                if self._waits(items[first]):
                    over.append(items[first])
                self._known.discard(items[first][1])
                first += 1
            self._first[side] = first
        over.sort(key=_place)
        return over

    def seen_ms(self, over: Sequence[_Item]) -> int:
        """Return the time of the last record that Kafka Streams sees when it releases these.

        It goes over all records, value by value, until the one after it has seen an open one of each side.
        """
        fronts = [items[first] for items, first in zip(self._items, self._first, strict=True) if first < len(items)]
        if len(fronts) == len(self._items):
            last = max(fronts, key=_place)
            if len(self._waiting.entry(last[1]).values) > 1:
                return _time(last)
            following = [item for side in (_LEFT, _RIGHT) for item in self._following(side, last)]
            return min(map(_time, following), default=_time(last))
        return max(map(_time, [*over, *self._last()]), default=FOREVER_MS)

    def _following(self, side: int, last: _Item) -> list[_Item]:
        """Return the first record of a side after this one, if there is one."""
        items = self._items[side]
        begin = end = bisect_right(items, _place(last), lo=self._first[side], key=_place)
        while end < len(items) and not self._waits(items[end]):
            end += 1
        self._known.difference_update(identity for _, identity in items[begin:end])
        del items[begin:end]
        return items[begin : begin + 1]

    def _last(self) -> list[_Item]:
        """Return the last record of each side that has any."""
        for items, first in zip(self._items, self._first, strict=True):
            while len(items) > first and not self._waits(items[-1]):
                self._known.discard(items.pop()[1])
        return [items[-1] for items, first in zip(self._items, self._first, strict=True) if len(items) > first]

    def _waits(self, item: _Item) -> bool:
        return self._waiting.entry(item[1]) is not None


def _place(item: _Item) -> tuple[Any, ...]:
    return item[0]


def _time(item: _Item) -> int:
    time_ms: int = item[0][0]
    return time_ms
