"""Copies of windowed tables on a later stage.

The rows of a copy expire as those of the table itself. The table sends its changes. A join also finds rows that the
table does not send, because their windows are open, and it does not find rows that have expired. The copy gets both as
unsent changes (``State.unsent``). They change its rows, but no join has a result because of them. An expired row is a
deletion among them. A copy cannot tell from its own rows that one has expired. It has rows of many buckets of the
table, and each bucket has its own stream time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace_streams.frames.codec import keys_of, window_columns
from millrace_streams.graph import UnsentNode, WindowCopyNode
from millrace_streams.steps.batch import Batch, Rows, concatenate, empty_batch
from millrace_streams.steps.expiry import Expiry
from millrace_streams.steps.flow import FIXED, LAST, Emitted, Flow, Inputs, Marks, Output, in_order, interleave
from millrace_streams.steps.operator import AnyStore, AnyStoreSpec, Operator, State, StatelessStep
from millrace_streams.steps.store import Store
from millrace_streams.steps.window_assignment import WINDOW
from millrace_streams.stores import KeyValueStore, SessionStore, WindowStore
from millrace_streams.windows import Windowed, window_end, windowed


@dataclass(frozen=True)
class UnsentStep(StatelessStep):
    """Step of an ``UnsentNode``, on the table's stage."""

    def run(self, inputs: Inputs, state: State) -> Output:
        """Return the changes of open windows and the deletions of expired rows, in order."""
        [name] = self.operator.reads
        assert name is not None
        result = self.operator.result
        unsent = state.unsent.get(name, Flow(empty_batch(result), inputs.marks[:0]))
        changed = [Flow(inputs.batch, inputs.marks), unsent]
        expired = self._expired(changed, state.expiries.get(name), state.stores[name])
        marks, sides, rows = interleave([unsent, expired])
        whole = concatenate(result, [unsent.batch, expired.batch])
        return Output(whole.take(np.asarray([0, unsent.batch.height])[sides] + rows), marks=marks)

    def _expired(self, changed: list[Flow], expiry: Expiry | None, store: AnyStore) -> Flow:
        """Return deletions of the rows that expire in the batch, each at the turn that expires it.

        A row that changes when its window is no longer readable expires at once.
        """
        marks = np.concatenate([flow.marks for flow in changed])
        if expiry is None:
            return Flow(empty_batch(self.operator.result), marks[:0])
        moves = marks[:0] if expiry.marks is None else expiry.marks
        limit_ms = int(expiry.oldest_ms[-1]) if len(moves) else expiry.before_ms
        last = {key: place for place, key in enumerate(key for flow in changed for key in flow.batch.keys)}
        bounds = {key: bound for key in last if (bound := _bound(key, expiry)) < limit_ms}
        if len(moves):
            bounds.update({key: _bound(key, expiry) for key in self._stored(store, expiry.before_ms, limit_ms)})
        keys = sorted(bounds, key=bounds.__getitem__)
        own: Rows = np.asarray([last.get(key, -1) for key in keys], dtype=np.int64)
        places = np.searchsorted(expiry.oldest_ms, np.asarray([bounds[key] for key in keys]), side="right")
        times = [bounds[key] for key in keys]
        found = self._marks(moves, places, marks, own)
        order = in_order(found)
        batch = Batch.of_lists(self.operator.result, keys, [None] * len(keys), times, olds=[None] * len(keys))
        return Flow(batch.take(order), found[order])

    def _marks(self, moves: Marks, places: Rows, changes: Marks, own: Rows) -> Marks:
        """Return the marks of deletions: of the move that expires a row, or of the row's own later change."""
        node = self.operator.node
        assert isinstance(node, UnsentNode)
        ranks = np.empty(len(moves) + len(changes), dtype=np.int64)
        ranks[in_order(np.concatenate([moves, changes]))] = np.arange(len(ranks))
        found = np.empty((len(places), changes.shape[1]), dtype=np.int64)
        for row, (place, change) in enumerate(zip(places.tolist(), own.tolist(), strict=True)):
            is_late = change >= 0 and (place >= len(moves) or ranks[place] < ranks[len(moves) + change])
            found[row] = changes[change] if is_late else moves[place]
            if node.fork is not None:
                # A record's expiry comes before its results, but after the change that it undoes.
                found[row, FIXED + node.fork] = LAST if is_late else -1
        return found

    def _stored(self, store: AnyStore, first_ms: int, limit_ms: int) -> list[Windowed]:
        """Return the keys of the table's rows that start (sessions: end) from one time to before another."""
        node, result = self.operator.node, self.operator.result
        assert isinstance(node, UnsentNode)
        if isinstance(store, SessionStore):
            return store.expiring(first_ms, limit_ms)
        if isinstance(store, WindowStore):
            found = store.started(first_ms, limit_ms - 1)
            return [windowed(key, start, window_end(start, node.length_ms)) for key, start, _ in found]
        assert isinstance(store, Store)
        rows = store.started(first_ms, limit_ms)
        columns: list[Any] = window_columns(rows[WINDOW].to_numpy(), node.length_ms)
        return keys_of(result, rows.select(result.key).with_columns(columns))


@dataclass(frozen=True)
class WindowCopyStep:
    """Step of a ``WindowCopyNode``.

    The inputs are the table's changes and the unsent changes.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The store of the rows."""
        return self.operator.store_of_rows(self._node.store)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Store all changes, and forward those that the table sends."""
        name = self._node.store
        assert name is not None
        store = state.stores[name]
        assert isinstance(store, KeyValueStore)
        keys, values, times = inputs.by_turn()
        is_unsent = inputs.sides == 1
        turns = np.flatnonzero(is_unsent)
        if self._node.on_close:
            stored = turns.tolist()
            store.put_all(*([column[turn] for turn in stored] for column in (keys, values, times)))
        else:
            store.put_all(keys, values, times)
        sent, unsent = inputs.batches
        if unsent.height:
            deletions = Emitted()
            for turn in _undone(inputs.sides, keys, values):
                deletions.add(turn, keys[turn], None, times[turn])
            whole = concatenate(unsent.layout, [unsent, deletions.output(unsent.layout).batch])
            rows = np.append(inputs.rows[is_unsent], unsent.height + np.arange(len(deletions.causes)))
            causes = np.append(turns, np.asarray(deletions.causes, dtype=np.int64))
            order = np.argsort(causes, kind="stable")
            state.unsent[name] = Flow(whole.take(rows[order]), inputs.marks[causes[order]])
        return Output(sent.take(inputs.rows[~is_unsent]), np.flatnonzero(~is_unsent))

    @property
    def _node(self) -> WindowCopyNode:
        node = self.operator.node
        assert isinstance(node, WindowCopyNode)
        return node


def _undone(sides: Rows, keys: list[Any], values: list[Any]) -> Iterator[int]:
    """Yield the turns at which the table sends the final result of a window that has just expired."""
    gone: set[Any] = set()
    for turn, (side, key, value) in enumerate(zip(sides.tolist(), keys, values, strict=True)):
        if side == 0 and key in gone:
            yield turn
        elif side == 1 and value is None:
            gone.add(key)
        elif side == 1:
            gone.discard(key)


def _bound(key: Windowed, expiry: Expiry) -> int:
    return key.end if expiry.by_end else key.start
