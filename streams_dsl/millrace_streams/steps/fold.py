"""Folds of Python functions and named aggregates, for all windows.

Records of different keys depend on each other only through stream time, which is known in advance as the largest time
so far. Therefore records of one input are folded by group, a key (and window). The store is read once, a tight loop
calls the user's function, and the results are sorted by record at the end. Several inputs (a cogroup) have separate
stream times, and sliding windows depend on each other; these are folded record by record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl

from millrace_streams.frames.cells import ValueConversion, exact_type
from millrace_streams.frames.codec import window_columns
from millrace_streams.graph import Fold, FoldNode
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import NO_ROWS, TIMESTAMP, Batch, Rows
from millrace_streams.steps.expiry import Expiry
from millrace_streams.steps.flow import Emitted, Inputs, Output, Place
from millrace_streams.steps.groups import Groups, fold_groups, group, rows_that_count
from millrace_streams.steps.named_folds import NamedFold
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, checked, typed
from millrace_streams.steps.results import result_conversion
from millrace_streams.stores import StoreSpec
from millrace_streams.stores.base import Stored, StoreKind
from millrace_streams.windows import length_of


class Conversion(NamedTuple):
    """Conversion of results by key, as ``result_conversion`` returns it.

    Values of the type ``exact`` need no conversion.
    """

    of: ValueConversion
    exact: type | None


@dataclass(slots=True)
class Folding:
    """State of a batch that is folded record by record.

    ``keys``, ``values``, ``times`` and ``sides`` are by turn. ``turns`` are the relevant turns. ``stream_times`` has
    the largest time of the input so far for each relevant turn. ``starts`` has the starts of the open time windows of a
    turn. ``conversion`` is that of ``FoldStep``, and ``out`` and ``changes`` are those of ``FoldStep.run``.
    """

    node: FoldNode
    folds: Sequence[Fold]
    conversion: Conversion
    store: Any
    keys: list[Any]
    values: list[Any]
    times: list[int]
    sides: Sequence[int]
    turns: list[int]
    stream_times: Rows
    place: Place
    out: Emitted
    changes: Emitted | None
    starts: dict[int, list[int]] = field(default_factory=dict)

    def add(self, key: Any, turn: int, stored: Stored | None, result_key: Any) -> tuple[Any, int]:
        """Add the value of a turn to the stored aggregate; returns the new aggregate and its time.

        ``result_key`` is the key of the changed row.
        """
        self.place.turn = turn
        fold, time_ms = self.folds[self.sides[turn]], self.times[turn]
        before = stored.value if stored is not None else begin(fold)
        newest_ms = time_ms if stored is None else max(time_ms, stored.timestamp)
        result = self.conversion.of(key, go_on(fold, key, self.values[turn], before))
        if self.changes is not None:
            old = before if stored is not None else self.conversion.of(key, before)
            self.changes.add(turn, result_key, result, newest_ms, old if self.node.sends_old else None)
        return result, newest_ms


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows to fold, once for each of their windows.

    ``starts`` has the windows' starts, if there are windows. ``counted`` are the relevant rows. ``closed`` has the time
    up to which windows are closed at each of them.
    """

    rows: Rows
    starts: Rows | None
    counted: Rows
    closed: Rows


@dataclass(frozen=True)
class FoldStep:
    """Step of a ``FoldNode`` without a window.

    The class is also the base of the steps with a window. Records without a key are dropped, and with ``needs_value``
    also records without a value. A result of None deletes the row, and the next record starts again.
    """

    operator: Operator
    kind: ClassVar[StoreKind] = "key_value"
    needs_value: ClassVar[bool] = True

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The store of the aggregates, by key and window."""
        retention_ms = self.node.window.retention_ms if self.node.window is not None else 0
        return (StoreSpec(name=self.node.store, kind=self.kind, layout=self.kept, retention_ms=retention_ms),)

    @cached_property
    def named(self) -> NamedFold | None:
        """The named aggregates, if the node has them."""
        return NamedFold.of(self.operator)

    @property
    def kept(self) -> Layout:
        """Layout of the stored values."""
        return self.operator.result if self.named is None else self.named.layout

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        """The fold of each input."""
        return self.node.folds if self.named is None else (self.named.fold,)

    @cached_property
    def conversion(self) -> Conversion:
        """Conversion of a result to the aggregate that the next call gets, as if it had been stored in between."""
        if self.named is not None:
            return Conversion(_unchanged, None)
        [spec] = self.stores
        assert isinstance(spec, StoreSpec)
        return Conversion(result_conversion(spec.entry_layout), exact_type(spec.entry_layout))

    def values_of(self, batch: Batch) -> list[Any]:
        """Return the values to fold."""
        return batch.values if self.named is None else self.named.lifted(batch)

    @property
    def in_groups(self) -> bool:
        """True if the records of a single input can be folded key by key."""
        return True

    @property
    def node(self) -> FoldNode:
        """The node."""
        node = self.operator.node
        assert isinstance(node, FoldNode)
        return node

    def run(self, inputs: Inputs, state: State) -> Output:
        """Fold a batch.

        Without results on close, changes of the store are the results. Otherwise joins read them, if there are any.
        """
        store, expiry = state.stores[self.node.store], state.expiries.get(self.node.store)
        out = Emitted()
        changes = out if not self.node.on_close else Emitted() if expiry is not None else None
        with inputs.blaming(self.node.name, "aggregator") as place:
            if self.in_groups and len(inputs.batches) == 1:
                counted = rows_that_count(inputs.batch, needs_value=self.needs_value)
                if expiry is not None:
                    self._move(expiry, inputs, counted, store)
                output = self._fold_groups(inputs.batch, counted, store, place, out, changes)
            else:
                output = self._fold_records(inputs, store, place, out, changes, expiry)
        if self.node.on_close and changes is not None:
            state.unsent[self.node.store] = self._results(changes.output(self.kept), inputs).flow(inputs)
        if self.node.emit == "last":
            output = output.last_of_keys()
        results = self._results(output, inputs)
        return inputs.released(results, range(results.batch.height)) if self.node.on_close else results

    def _results(self, output: Output, inputs: Inputs) -> Output:
        """Return rows of the table, in order, from those of the store."""
        if self.named is None:
            # Bare values are converted already. A row from a window store gets the columns of its window.
            fit = checked if self.kept.scalar else typed
            return fit(self.node, output, inputs).in_order()
        return replace(output, batch=self.named.results(output.batch)).in_order()

    def place(self, batch: Batch, counted: Rows, store: Any, out: Emitted) -> Placed:
        """Return the placement of the relevant rows in windows."""
        return Placed(counted, None, counted, NO_ROWS)

    def stored(self, store: Any, key: Any, start: int) -> Stored | None:
        """Return the stored aggregate of a group."""
        found: Stored | None = store.get(key)
        return found

    def newest(self, times: Rows) -> Rows:
        """Return the newest window's start (the newest session's end) by the largest time so far."""
        return times

    def want(self, store: Any, groups: Groups) -> None:
        """Prefetch the groups."""
        store.want_entries(groups.keys)

    def want_records(self, work: Folding) -> None:
        """Prefetch the entries for the records of a batch."""
        work.store.want({work.keys[turn] for turn in work.turns})

    def put(self, store: Any, key: Any, start: int, value: Any, time_ms: int) -> None:
        """Store the aggregate of a group."""
        store.put(key, value, time_ms)

    def finish(self, placed: Placed, store: Any, out: Emitted) -> None:
        """End a batch of groups: emit final results, expire windows."""

    def fold_record(self, work: Folding, turn: int, stream_time_ms: int) -> None:
        """Fold one record."""
        key = work.keys[turn]
        work.store.put(key, *work.add(key, turn, work.store.get(key), key))

    def end_records(self, work: Folding) -> None:
        """End a batch that was folded record by record."""

    def _move(self, expiry: Expiry, inputs: Inputs, counted: Rows, store: Any) -> None:
        """Record for joins the oldest readable time after each turn. A record with the largest time is never late."""
        times = np.maximum.accumulate(inputs.batch.frame[TIMESTAMP].to_numpy()[counted])
        expiry.move(inputs.marks[counted], self.newest(times) - store.spec.retention_ms + 1)

    def _fold_records(
        self, inputs: Inputs, store: Any, place: Place, out: Emitted, changes: Emitted | None, expiry: Expiry | None
    ) -> Output:
        keys, values, times = inputs.by_turn()
        sides = inputs.sides.tolist()
        turns = [
            turn
            for turn, (key, value) in enumerate(zip(keys, values, strict=True))
            if key is not None and not (value is None and self.needs_value)
        ]
        if self.named is not None:
            values = self.named.lifted(inputs.batch)
        stream_times = np.zeros(len(turns), dtype=np.int64)
        if self.node.window is not None:
            stream_times = _stream_times(store, sides, times, turns)
        out.dropped = len(keys) - len(turns)
        work = Folding(
            self.node,
            self.folds,
            self.conversion,
            store,
            keys,
            values,
            times,
            sides,
            turns,
            stream_times,
            place,
            out,
            changes,
        )
        self.want_records(work)
        oldest: list[int] = []
        for turn, stream_time_ms in zip(turns, stream_times.tolist(), strict=True):
            self.fold_record(work, turn, stream_time_ms)
            if expiry is not None:
                oldest.append(store.oldest_ms)
        if expiry is not None:
            expiry.move(inputs.marks[turns], np.asarray(oldest, dtype=np.int64))
        self.end_records(work)
        return out.output(self.kept)

    def _fold_groups(
        self, batch: Batch, counted: Rows, store: Any, place: Place, out: Emitted, changes: Emitted | None
    ) -> Output:
        out.dropped = batch.height - len(counted)
        placed = self.place(batch, counted, store, out)
        groups = group(batch, placed.rows, placed.starts)
        self.want(store, groups)
        taken = batch.take(groups.rows)
        [fold], values = self.folds, self.values_of(taken)
        convert, exact = self.conversion
        add_all = _combine_all if self.named is not None else partial(_add_all, exact=exact, convert=convert)
        folded = fold_groups(
            groups,
            taken.times,
            place,
            load=lambda key, start: self.stored(store, key, start),
            add=lambda key, first, end, value, results: add_all(fold, key, values[first:end], value, results),
            save=lambda key, start, value, time_ms: self.put(store, key, start, value, time_ms),
        )
        self.finish(placed, store, out)
        if changes is None:
            return out.output(self.kept)
        keyed = self._keyed(groups, taken, folded.times)
        if self.node.on_close:
            for turn, key, value, time_ms in zip(groups.rows, keyed.keys, folded.results, folded.times, strict=True):
                changes.add(turn, key, value, time_ms)
            return out.output(self.kept)
        olds = None
        if self.node.sends_old:
            # Only rows depend on the key, and are converted as a whole batch.
            first = convert if self.kept.scalar else _unchanged
            olds = [first(None, begin(fold)) if each is None else each for each in folded.befores]
        changed = keyed.with_values(folded.results).with_changes(self.kept, olds, None)
        return Output(changed, groups.rows, out.dropped)

    def _keyed(self, groups: Groups, taken: Batch, times: list[int]) -> Batch:
        """Return the keys of the results, with their windows, and the results' times."""
        columns = [pl.Series(TIMESTAMP, times, dtype=pl.Int64)]
        window = self.node.window
        if window is not None:
            starts = np.repeat(np.asarray(groups.starts, dtype=np.int64), np.diff([0, *groups.ends]))
            columns += window_columns(starts, length_of(window))
        names = [name for name in self.kept.key_columns if name in taken.layout.names]
        return Batch.of_frame(self.kept, taken.frame.select(names).with_columns(columns))


def _stream_times(store: Any, sides: Sequence[int], times: Sequence[int], turns: Sequence[int]) -> Rows:
    """Return the largest time of each turn's input so far; the last ones are kept in the store."""
    newest: dict[int, int] = {}
    found = np.empty(len(turns), dtype=np.int64)
    for place, turn in enumerate(turns):
        side = sides[turn]
        if side not in newest:
            newest[side] = store.number(f"stream_time_{side}")
        newest[side] = found[place] = max(newest[side], times[turn])
    store.numbers.update({f"stream_time_{side}": time_ms for side, time_ms in newest.items()})
    return found


def begin(fold: Fold) -> Any:
    """Return the initial aggregate; None if the first value becomes the first aggregate."""
    return fold.initializer() if fold.initializer is not None else None


def go_on(fold: Fold, key: Any, value: Any, aggregate: Any) -> Any:
    """Return the aggregate after one more value."""
    if fold.initializer is None and aggregate is None:
        return value
    return fold.aggregator(key, value, aggregate)


def _unchanged(key: Any, value: Any) -> Any:
    return value


def _combine_all(fold: Fold, key: Any, values: list[Any], aggregate: Any, results: list[Any]) -> None:
    """Append the aggregate after each value to ``results``, by the reducer of named aggregates."""
    append, reducer = results.append, fold.reducer
    assert reducer is not None
    for value in values:
        aggregate = value if aggregate is None else reducer(aggregate, value)
        append(aggregate)


def _add_all(
    fold: Fold,
    key: Any,
    values: list[Any],
    aggregate: Any,
    results: list[Any],
    *,
    exact: type | None,
    convert: ValueConversion,
) -> None:
    """Append the converted aggregate after each value to ``results``: ``go_on`` in a loop with minimal overhead."""
    append = results.append
    if fold.reducer is not None:
        reducer = fold.reducer
        for value in values:
            aggregate = value if aggregate is None else reducer(aggregate, value)
            if type(aggregate) is not exact:
                aggregate = convert(key, aggregate)
            append(aggregate)
        return
    call = fold.aggregator
    for value in values:
        aggregate = call(key, value, begin(fold) if aggregate is None else aggregate)
        if type(aggregate) is not exact:
            aggregate = convert(key, aggregate)
        append(aggregate)
