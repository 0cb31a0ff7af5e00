"""Join of stream records with a table's rows at that moment.

The table may be a global table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from millrace_streams.expressions import Expression
from millrace_streams.frames.codec import key_cells, keys_of
from millrace_streams.frames.evaluation import to_polars
from millrace_streams.graph import StreamTableJoinNode
from millrace_streams.steps.batch import Batch, Rows
from millrace_streams.steps.flow import Inputs, Output
from millrace_streams.steps.groups import rows_that_count, rows_with_value
from millrace_streams.steps.joins import Joining, Partners, TableView, VersionsView, WindowsView, keys_of_side, view_of
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, keys_as_columns, typed
from millrace_streams.stores import KeyValueStore, StoreSpec, TimeBuffer, VersionedStore
from millrace_streams.stores.entries import WaitingForTable

_STREAM: Final = 0
_KEY: Final = "__key"
_NUMBER: Final = "__number"
_TURN: Final = "__turn"


@dataclass(frozen=True)
class StreamTableJoinStep:
    """Step of a ``StreamTableJoinNode``.

    The inputs are the stream and the table's changes. Only the stream's records give results, with their own timestamp.
    A record without a value is dropped. A record without a key is dropped too, but a left join joins it with None. If a
    global table's selector returns None for a record with a key, the record is dropped, as in Kafka Streams 3.9. A
    versioned table is read as of the record's time. With a grace a record waits until stream time reaches its time plus
    the grace, and records leave in time order.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """Buffer of the waiting records."""
        node = self._node
        if node.buffer is None:
            return ()
        stream, table = self.operator.inputs
        return (StoreSpec(name=node.buffer, kind="buffer", layout=stream, form="waiting_for_table", other=table),)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Find the table's row of each record in order, then join all."""
        node = self._node
        joining = Joining(node.name, node.joiner, self.operator.inputs[1], self.operator.result)
        if node.buffer is not None:
            released = _Released()
            pairs = self._pairs_in_turn(inputs, state, released)
            output = joining.join_released(
                node, inputs, pairs.turns, pairs.records, pairs.partners.values, released.waited
            )
            return replace(output, dropped=pairs.dropped)
        if self._may_look_up_by_key(inputs, state):
            pairs = self._pairs_by_key(inputs, state)
        else:
            pairs = self._pairs_in_turn(inputs, state, _Released())
        batch = joining.join(inputs, pairs.turns, pairs.records, pairs.partners)
        # If each record is joined, rows equal turns.
        is_row_by_row = len(pairs.turns) == len(inputs.rows)
        return typed(node, Output(batch, None if is_row_by_row else pairs.turns, pairs.dropped), inputs)

    def _pairs_in_turn(self, inputs: Inputs, state: State, released: _Released) -> _Pairs:
        """Look up record by record; records whose wait has ended are added to ``released``."""
        node, found = self._node, _Found()
        if node.buffer is None:
            mapped = self._table_keys(inputs)
            self._find(inputs, mapped, self._view(inputs, state, mapped), found)
            records = inputs.batches[_STREAM].take(found.rows)
        else:
            mapped = self._table_keys(inputs)
            buffer = state.stores[node.buffer]
            assert isinstance(buffer, TimeBuffer)
            view = self._view(inputs, state, [*mapped, *(waiting.table_key for _, waiting in buffer.entries())])
            records = self._find_in_time(inputs, mapped, buffer, view, found, released)
        return _Pairs(found.turns, records, Partners(found.values), found.dropped)

    def _may_look_up_by_key(self, inputs: Inputs, state: State) -> bool:
        """Return whether each record needs the newest row of its own key, and the keys are in columns."""
        node, stream = self._node, inputs.batches[_STREAM]
        if node.buffer is not None or node.selector is not None or inputs.unsent:
            return False
        is_table_of_versions = isinstance(state.stores[self._store_name], VersionedStore)
        return bool(stream.layout.key) and stream.in_columns and not is_table_of_versions

    def _pairs_by_key(self, inputs: Inputs, state: State) -> _Pairs:
        """Look up each key of a batch once; a record sees the newest change before it, or else the stored row."""
        (stream, table), is_left = inputs.batches, self._node.kind == "left"
        counted = rows_with_value(stream) if is_left else rows_that_count(stream, needs_value=True)
        keys = stream.frame.select(stream.layout.key_columns)
        if len(counted) < stream.height:
            keys = keys[counted]
        distinct = keys.unique(maintain_order=True)
        wanted = keys_of(stream.layout, distinct)
        view = self._view(inputs, state, wanted)
        stored = map(view.rows.get, wanted)
        values = [each.value if each is not None else None for each in stored]
        numbers = _numbered(keys, distinct)
        turns = np.arange(stream.height)
        if table.height:
            is_stream = inputs.sides == _STREAM
            turns = np.flatnonzero(is_stream)
            changed_keys = _numbered(table.frame.select(table.layout.key_columns), distinct)
            changed = _newest_before(numbers, turns[counted], changed_keys, np.flatnonzero(~is_stream))
            numbers = np.where(changed >= 0, changed + len(values), numbers)
            values += table.values
        if isinstance(view, WindowsView):
            numbers = np.where(view.expired_rows(keys, turns[counted]), len(values), numbers)
            values.append(None)
        there = np.asarray([is_left or value is not None for value in values], dtype=np.bool_)[numbers]
        rows = counted[there]
        records = stream if len(rows) == stream.height else stream.take(rows)
        return _Pairs(turns[rows], records, Partners(values, numbers[there]), stream.height - len(counted))

    def _find(self, inputs: Inputs, mapped: list[Any], view: TableView, found: _Found) -> None:
        """Look up records in order."""
        stream, *changes = inputs.batches
        if type(view) is TableView and not any(each.height for each in changes):
            self._find_at_once(stream, mapped, view, found)
            return
        keys, values, times = stream.keys, stream.values, stream.times
        is_left = self._node.kind == "left"
        for turn, side, row in inputs.turns():
            if side != _STREAM:
                _roll(view, inputs.batches[side], row)
                continue
            table_key = mapped[row]
            if values[row] is None or (table_key is None and not (is_left and keys[row] is None)):
                found.dropped += 1
                continue
            stored = view.get(table_key, times[row], turn) if table_key is not None else None
            if stored is not None:
                found.add(turn, row, stored.value)
            elif is_left:
                found.add(turn, row, None)

    def _find_at_once(self, stream: Batch, mapped: list[Any], view: TableView, found: _Found) -> None:
        """Look up the records of a batch without changes of the table."""
        keys, rows = stream.keys, list(map(view.rows.get, mapped))
        is_left = self._node.kind == "left"
        lookups = zip(stream.present, mapped, rows, strict=True)
        for row, (is_there, table_key, stored) in enumerate(lookups):
            if not is_there or (table_key is None and not (is_left and keys[row] is None)):
                found.dropped += 1
            elif stored is not None or is_left:
                found.rows.append(row)
                found.values.append(stored[0] if stored is not None else None)
        found.turns = found.rows

    def _find_in_time(
        self,
        inputs: Inputs,
        mapped: list[Any],
        buffer: TimeBuffer,
        view: TableView,
        found: _Found,
        released: _Released,
    ) -> Batch:
        """Buffer records, and look up those whose wait has ended; returns these."""
        stream = inputs.batches[_STREAM]
        grace_ms = self._node.grace_ms or 0
        for turn, side, row in inputs.turns():
            if side != _STREAM:
                _roll(view, inputs.batches[side], row)
                continue
            key, value, time_ms = stream.keys[row], stream.values[row], stream.times[row]
            if value is None or (mapped[row] is None and not (self._node.kind == "left" and key is None)):
                found.dropped += 1
                continue
            stream_time_ms = max(buffer.number("stream_time"), time_ms)
            buffer.numbers["stream_time"] = stream_time_ms
            number = buffer.number("held") + 1
            record = WaitingForTable(number, key, value, time_ms, mapped[row])
            if time_ms + grace_ms < stream_time_ms:
                self._release(record, turn, view, found, released)
                continue
            buffer.numbers["held"] = number
            buffer.put(number, record)
            while (oldest_ms := buffer.oldest_ms()) is not None and oldest_ms <= stream_time_ms - grace_ms:
                before, (_, due) = len(released.keys), buffer.pop_oldest()
                self._release(due, turn, view, found, released)
                if due is not record:  # The record of the turn itself did not wait.
                    released.waited += range(before, len(released.keys))
        return Batch.of_lists(self.operator.inputs[_STREAM], released.keys, released.values, released.times)

    def _release(self, record: WaitingForTable, turn: int, view: TableView, found: _Found, released: _Released) -> None:
        stored = view.get(record.table_key, record.timestamp, turn) if record.table_key is not None else None
        if stored is None and self._node.kind == "inner":
            return
        found.add(turn, len(released.keys), stored.value if stored is not None else None)
        released.keys.append(record.key)
        released.values.append(record.value)
        released.times.append(record.timestamp)

    def _table_keys(self, inputs: Inputs) -> list[Any]:
        """Return the table key of each stream record."""
        node, batch, table = self._node, inputs.batches[_STREAM], self.operator.inputs[1]
        if node.selector is None:
            return batch.keys
        if isinstance(node.selector, Expression):
            return key_cells(table.schema.field(table.key[0]), batch.frame.select(to_polars(node.selector)).to_series())
        turns = [turn for turn, side, _ in inputs.turns() if side == _STREAM]
        keys = inputs.call_present(node.name, node.selector, batch.keys, batch.values, turns)
        return keys_as_columns(inputs, node.name, table, keys, turns)

    def _view(self, inputs: Inputs, state: State, keys: Sequence[Any]) -> TableView:
        store_name = self._store_name
        store, table = state.stores[store_name], inputs.batches[1]
        wanted = {*keys, *keys_of_side(inputs, 1)} - {None}
        if isinstance(store, KeyValueStore) and not table.height and not inputs.unsent:
            store.want(wanted)
            return TableView(store.rows)
        if isinstance(store, VersionedStore):
            return VersionsView.of_store(store, wanted)
        return view_of(state, store_name, wanted, inputs)

    @property
    def _store_name(self) -> str:
        """Store of the table."""
        name = self.operator.reads[1]
        assert name is not None
        return name

    @property
    def _node(self) -> StreamTableJoinNode:
        node = self.operator.node
        assert isinstance(node, StreamTableJoinNode)
        return node


def _roll(view: TableView, changes: Batch, row: int) -> None:
    """Apply a change of the table, sent or unsent."""
    view.roll(changes.keys[row], changes.values[row], changes.times[row])


def _numbered(keys: pl.DataFrame, distinct: pl.DataFrame) -> Rows:
    """Return the index of each key among the distinct keys, -1 for others. A null is equal to a null."""
    numbers = distinct.with_row_index(_NUMBER)
    found = keys.join(
        numbers, left_on=keys.columns, right_on=distinct.columns, how="left", nulls_equal=True, maintain_order="left"
    )
    return found[_NUMBER].cast(pl.Int64).fill_null(-1).to_numpy()


def _newest_before(numbers: Rows, turns: Rows, changed: Rows, change_turns: Rows) -> Rows:
    """Return the index of the last change of each record's key before its turn, -1 if there is none.

    Keys are numbers, and turns must ascend.
    """
    # Numbers instead of columns, because an asof join matches no nulls.
    asking = pl.DataFrame({_KEY: numbers, _TURN: turns})
    asked = pl.DataFrame({_KEY: changed, _TURN: change_turns}).with_row_index(_NUMBER)
    found = asking.join_asof(asked, on=_TURN, by=_KEY, strategy="backward", check_sortedness=False)
    return found[_NUMBER].cast(pl.Int64).fill_null(-1).to_numpy()


class _Pairs(NamedTuple):
    """Records to join, their turns, and their partners."""

    turns: Rows | list[int]
    records: Batch
    partners: Partners
    dropped: int


@dataclass(slots=True)
class _Found:
    """Records of a batch that are to be joined.

    ``turns`` are their turns, ``rows`` their rows in the stream's batch, and ``values`` the table's values.
    """

    turns: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    dropped: int = 0

    def add(self, turn: int, row: int, value: Any) -> None:
        self.turns.append(turn)
        self.rows.append(row)
        self.values.append(value)


@dataclass(slots=True)
class _Released:
    """Records whose wait has ended.

    ``waited`` has the places of those that an earlier turn brought.
    """

    keys: list[Any] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
