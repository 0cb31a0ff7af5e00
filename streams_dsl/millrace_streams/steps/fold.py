"""What Python functions fold together: the template of all kinds of windows, and folds by key alone.

Records of different keys have nothing to do with each other but stream time, and that is known before: the largest time
so far. So what belongs to one key (and window) is folded together, in a tight loop over its records, and the results
are put into the order of the records at the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from millrace_streams.graph import Fold, FoldNode
from millrace_streams.steps.flow import Emitted, Inputs, Output, Place
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, typed
from millrace_streams.stores import StoreSpec
from millrace_streams.stores.base import Stored, StoreKind

Groups = Iterable[tuple[Any, Sequence[int]]]
"""Turns by what their records are added to."""


@dataclass(slots=True)
class Folding:
    """A batch at work: keys, values, times and sides of its records by turn, the turns that count, what comes out."""

    node: FoldNode
    store: Any
    keys: list[Any]
    values: list[Any]
    times: list[int]
    sides: list[int]
    turns: list[int]
    place: Place
    out: Emitted = field(default_factory=Emitted)

    def stream_times(self) -> list[int]:
        """Of each turn that counts the stream time of its input: the largest time that it has brought so far."""
        names = [f"stream_time_{side}" for side in range(len(self.node.folds))]
        newest = [self.store.number(name) for name in names]
        times = []
        for turn in self.turns:
            side, time_ms = self.sides[turn], self.times[turn]
            if time_ms > newest[side]:
                newest[side] = time_ms
            times.append(newest[side])
        self.store.numbers.update(zip(names, newest, strict=True))
        return times

    def grouped(self, placed: Iterable[tuple[Hashable, int]]) -> Groups:
        """Turns by what their records are added to, each in order.

        Of several inputs each turn is by itself: they do not agree on stream time, so the order counts.
        """
        if len(self.node.folds) > 1:
            return [(slot, (turn,)) for slot, turn in placed]
        groups: dict[Hashable, list[int]] = {}
        for slot, turn in placed:
            if slot in groups:
                groups[slot].append(turn)
            else:
                groups[slot] = [turn]
        return groups.items()

    def grow(self, key: Any, turns: Sequence[int], stored: Stored | None, result_key: Any) -> tuple[Any, int]:
        """Add the values of these turns, all of one key, to what is stored; gives what is to be stored, and its time.

        Unless results wait for the window to close, each goes out under ``result_key``.
        """
        node, values, times, sides, place = self.node, self.values, self.times, self.sides, self.place
        befores: list[Any] = []
        results: list[Any] = []
        newest_times: list[int] = []
        aggregate, newest_ms = stored if stored is not None else (None, -1)
        for turn in turns:
            place.turn = turn
            fold, time_ms = node.folds[sides[turn]], times[turn]
            if aggregate is None:
                aggregate, newest_ms = begin(fold), time_ms
            elif time_ms > newest_ms:
                newest_ms = time_ms
            befores.append(aggregate)
            aggregate = go_on(fold, key, values[turn], aggregate)
            results.append(aggregate)
            newest_times.append(newest_ms)
        if not node.on_close:
            self.out.extend(turns, result_key, results, newest_times, befores if node.sends_old else None)
        return aggregate, newest_ms


@dataclass(frozen=True)
class FoldStep:
    """The step of a ``FoldNode`` without a window; base of those with one.

    Records without a key are dropped, and those without a value where ``needs_value``. A result of None deletes the
    row, and the next record begins anew.
    """

    operator: Operator
    kind: ClassVar[StoreKind] = "key_value"
    needs_value: ClassVar[bool] = True

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The aggregates, by key and window."""
        node, layout = self.node, self.operator.result
        retention_ms = node.window.retention_ms if node.window is not None else 0
        return (StoreSpec(name=node.store, kind=self.kind, layout=layout, retention_ms=retention_ms),)

    @property
    def node(self) -> FoldNode:
        """The node."""
        node = self.operator.node
        assert isinstance(node, FoldNode)
        return node

    def run(self, inputs: Inputs, state: State) -> Output:
        """Fold a batch."""
        keys, values, times = inputs.by_turn()
        needs_value = self.needs_value
        turns = [
            turn
            for turn, (key, value) in enumerate(zip(keys, values, strict=True))
            if key is not None and not (value is None and needs_value)
        ]
        with inputs.blaming(self.node.name, "aggregator") as place:
            store = state.stores[self.node.store]
            work = Folding(self.node, store, keys, values, times, inputs.sides, turns, place)
            work.out.dropped = len(keys) - len(turns)
            self.fold(work)
        return typed(self.node, work.out.output(self.operator.result), inputs).in_order()

    def fold(self, work: Folding) -> None:
        """Fold the records that count."""
        store = work.store
        for key, turns in work.grouped((work.keys[turn], turn) for turn in work.turns):
            store.put(key, *work.grow(key, turns, store.get(key), key))


def begin(fold: Fold) -> Any:
    """The aggregate of nothing; None where the first value is to be the first aggregate."""
    return fold.initializer() if fold.initializer is not None else None


def go_on(fold: Fold, key: Any, value: Any, aggregate: Any) -> Any:
    """The aggregate with one value more."""
    if fold.initializer is None and aggregate is None:
        return value
    return fold.aggregator(key, value, aggregate)
