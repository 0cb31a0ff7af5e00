"""Join of the rows of two tables with the same key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from millrace_streams.graph import JoinKind, TableTableJoinNode
from millrace_streams.steps.batch import Batch
from millrace_streams.steps.flow import Inputs, Output
from millrace_streams.steps.joins import Joining, TableView, WindowsView, keys_of_side, view_of
from millrace_streams.steps.operator import AnyStoreSpec, Operator, State, typed
from millrace_streams.stores import KeyValueStore

_SIDES: Final = 2
"""Number of tables. Further inputs are unsent changes of one."""


@dataclass(frozen=True)
class TableTableJoinStep:
    """Step of a ``TableTableJoinNode``; its inputs are the changes of both tables.

    A change of either side is joined with the other side's row, with the larger of both timestamps. A deletion is
    emitted whenever the other side's row made a result possible, whether or not there was one.
    """

    operator: Operator

    @property
    def stores(self) -> tuple[AnyStoreSpec, ...]:
        """The store of the joined rows, if they are stored."""
        return self.operator.store_of_rows(self._node.store)

    def run(self, inputs: Inputs, state: State) -> Output:
        """Find the other side's row of each change in order, then join all."""
        node, found = self._node, self._find(inputs, state)
        results = self._joined(inputs, found, found.news)
        befores = self._joined(inputs, found, found.olds) if node.sends_old else None
        keys = [found.keys[turn] for turn in found.turns]
        store = state.stores[node.store] if node.store is not None else None
        if isinstance(store, KeyValueStore):
            store.put_all(keys, results, found.newest_times)
        batch = Batch.of_lists(self.operator.result, keys, results, found.newest_times, olds=befores)
        return typed(node, Output(batch, found.turns, found.dropped), inputs)

    def _find(self, inputs: Inputs, state: State) -> _Found:
        """Return the changes that give a result, each with the row of the other side."""
        found = _Found(*inputs.by_turn(), inputs.olds_by_turn(), inputs.sides.tolist())
        views = self._views(inputs, state)
        tables: list[dict[Any, Any]] = [view.rows for view in views]
        expired = _expired(views, found)
        alone = (self._answers_alone(0), self._answers_alone(1))
        outdated = self._outdated(inputs)
        found.dropped = len(outdated)
        records = zip(found.sides, found.keys, found.news, found.times, strict=True)
        for turn, (side, key, value, time_ms) in enumerate(records):
            if turn in outdated:
                continue
            is_sent = side < _SIDES
            own = side if is_sent else inputs.unsent[side - _SIDES]
            if value is None:
                tables[own].pop(key, None)
            else:
                tables[own][key] = (value, time_ms)
            if not is_sent:
                continue
            other = tables[1 - side].get(key) if turn not in expired else None
            if other is not None:
                found.add(turn, other[0], time_ms if time_ms > other[1] else other[1])
            elif alone[side] and (value is not None or found.olds[turn] is not None):
                found.add(turn, None, time_ms)
        return found

    def _outdated(self, inputs: Inputs) -> set[int]:
        """Return the turns of changes of versioned tables that are not the newest of their key."""
        pairs = zip(inputs.batches[:_SIDES], self.operator.versioned, strict=True)
        latest = [batch.latest if is_versioned else None for batch, is_versioned in pairs]
        if latest[0] is latest[1] is None:
            return set()
        outdated = set()
        for turn, side, row in inputs.turns():
            newest = latest[side]
            if newest is not None and not newest[row]:
                outdated.add(turn)
        return outdated

    def _views(self, inputs: Inputs, state: State) -> list[TableView]:
        reads = self.operator.reads
        keys = keys_of_side(inputs, 0) | keys_of_side(inputs, 1)
        views = [view_of(state, store, keys, inputs) for store in reads if store is not None]
        # A table joined with itself: its row has changed before either side is read.
        return [views[0], views[0]] if reads[0] == reads[1] else views

    def _answers_alone(self, side: int) -> bool:
        """Return whether a change gives a result without a row of the other side."""
        return self._node.kind == "outer" or (self._node.kind == "left" and side == 0)

    def _joined(self, inputs: Inputs, found: _Found, own: list[Any]) -> list[Any]:
        """Return the joined value of each change's own and opposite value; None if they give none."""
        node, turns = self._node, found.turns
        sides = [
            (own[turn], opposite) if found.sides[turn] == 0 else (opposite, own[turn])
            for turn, opposite in zip(turns, found.opposites, strict=True)
        ]
        rows = [row for row, (left, right) in enumerate(sides) if _joins(node.kind, left, right)]
        left, right = self.operator.inputs
        joined = Joining(node.name, node.joiner, right, self.operator.result).join_lists(
            inputs,
            [turns[row] for row in rows],
            left,
            [found.keys[turns[row]] for row in rows],
            [sides[row][0] for row in rows],
            [sides[row][1] for row in rows],
        )
        if len(rows) == len(sides):
            return joined
        results: list[Any] = [None] * len(sides)
        for row, result in zip(rows, joined, strict=True):
            results[row] = result
        return results

    @property
    def _node(self) -> TableTableJoinNode:
        node = self.operator.node
        assert isinstance(node, TableTableJoinNode)
        return node


@dataclass(slots=True)
class _Found:
    """Changes of both tables, and the turns that have a result.

    ``keys``, ``news``, ``times``, ``olds`` and ``sides`` are by turn and have all changes. ``turns`` are the turns with
    a result. ``opposites`` has the other side's value for each of them, and ``newest_times`` the time of the result.
    """

    keys: list[Any]
    news: list[Any]
    times: list[int]
    olds: list[Any]
    sides: Sequence[int]
    turns: list[int] = field(default_factory=list)
    opposites: list[Any] = field(default_factory=list)
    newest_times: list[int] = field(default_factory=list)
    dropped: int = 0

    def add(self, turn: int, opposite: Any, time_ms: int) -> None:
        self.turns.append(turn)
        self.opposites.append(opposite)
        self.newest_times.append(time_ms)


def _expired(views: Sequence[TableView], found: _Found) -> set[int]:
    """Return the turns at which the other side's row has expired."""
    expired: set[int] = set()
    for side, view in enumerate(views):
        if isinstance(view, WindowsView):
            turns = zip(found.sides, found.keys, strict=True)
            expired.update(turn for turn, (own, key) in enumerate(turns) if own != side and view.expired(key, turn))
    return expired


def _joins(kind: JoinKind, left: Any, right: Any) -> bool:
    """Return whether two values give a joined one."""
    if kind == "outer":
        return left is not None or right is not None
    return left is not None and (kind == "left" or right is not None)
