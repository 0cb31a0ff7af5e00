"""Common parts of joins: joined values, and views of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from millrace_streams.expressions import LEFT, RIGHT, Expression
from millrace_streams.frames.codec import key_cells, value_columns_of
from millrace_streams.frames.evaluation import to_polars
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import Joiner, Node
from millrace_streams.layout import WINDOW_END, WINDOW_START, Layout
from millrace_streams.steps.batch import TIMESTAMP, Batch, Rows
from millrace_streams.steps.expiry import Expiry
from millrace_streams.steps.flow import Inputs, Output
from millrace_streams.steps.operator import State, keys_as_columns, typed
from millrace_streams.stores import VersionedStore
from millrace_streams.stores.base import Stored
from millrace_streams.stores.versioned import Versions
from millrace_streams.windows import FOREVER_MS, Windowed


@dataclass(slots=True)
class TableView:
    """View of the rows of another operator's table.

    The view has the rows from before the batch, and applies the table's changes to them.
    """

    rows: dict[Any, Stored]

    def get(self, key: Any, as_of_ms: int, turn: int) -> Stored | None:
        """Return the row of a key at this turn of the batch."""
        return self.rows.get(key)

    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Apply a change."""
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = Stored(value, time_ms)


@dataclass(slots=True)
class VersionsView(TableView):
    """View of a versioned table, readable as of past times."""

    versions: dict[Any, Versions] = field(default_factory=dict)
    newest_ms: int = -1
    history_ms: int = 0

    @classmethod
    def of_store(cls, store: VersionedStore, keys: Iterable[Any]) -> VersionsView:
        """Fetch the versions of these keys at once."""
        wanted = list(keys)
        store.want(wanted)
        found = {key: store.before(key) for key in wanted}
        versions = {key: each for key, each in found.items() if each is not None}
        return cls({}, versions, store.number_before("newest_time"), store.spec.retention_ms)

    def get(self, key: Any, as_of_ms: int, turn: int) -> Stored | None:
        """Return the version of a key that was valid at a time."""
        versions = self.versions.get(key)
        return None if versions is None else versions.get(as_of_ms, self.newest_ms - self.history_ms)

    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Apply a change."""
        self.newest_ms = max(self.newest_ms, time_ms)
        versions = self.versions.setdefault(key, Versions())
        versions.put(time_ms, value)
        versions.prune(self.newest_ms - self.history_ms)


@dataclass(slots=True)
class WindowsView(TableView):
    """View of a windowed table, whose rows expire within a batch too.

    ``oldest_ms`` is the oldest readable time at each turn.
    """

    expiry: Expiry
    oldest_ms: Rows

    def get(self, key: Any, as_of_ms: int, turn: int) -> Stored | None:
        """Return the row of a key at this turn; None if it has expired."""
        return None if self.expired(key, turn) else self.rows.get(key)

    def expired(self, key: Windowed, turn: int) -> bool:
        """Return whether the window of a key has expired at a turn."""
        return (key.end if self.expiry.by_end else key.start) < int(self.oldest_ms[turn])

    def expired_rows(self, keys: pl.DataFrame, turns: Rows) -> npt.NDArray[np.bool_]:
        """Return for each of several keys, in columns, whether its window has expired at its turn."""
        bound = keys[WINDOW_END if self.expiry.by_end else WINDOW_START]
        times: Rows = bound.dt.timestamp("ms").fill_null(FOREVER_MS).to_numpy()
        return times < self.oldest_ms[turns]


def view_of(state: State, store: str, keys: Iterable[Any], inputs: Inputs) -> TableView:
    """Return the view of a table without versions, with the rows of these keys."""
    rows, expiry = state.rows_before(store, keys), state.expiries.get(store)
    return TableView(rows) if expiry is None else WindowsView(rows, expiry, expiry.at(inputs.marks))


def keys_of_side(inputs: Inputs, side: int) -> set[Any]:
    """Return the keys of one input."""
    return {key for key in inputs.batches[side].keys if key is not None}


@dataclass(frozen=True, slots=True)
class Partners:
    """Values with which records are joined.

    ``numbers`` has the index of each record's value in ``values``. None means one value per record, in order. A value
    of None means that the record has no partner.
    """

    values: list[Any]
    numbers: Rows | None = None

    def each(self) -> list[Any]:
        """Return the value of each record."""
        return self.values if self.numbers is None else list(map(self.values.__getitem__, self.numbers.tolist()))

    def columns(self, layout: Layout) -> list[pl.Series]:
        """Return the partners as columns."""
        columns = value_columns_of(layout, self.values)
        return columns if self.numbers is None else [column.gather(self.numbers) for column in columns]


@dataclass(frozen=True, slots=True)
class Joining:
    """Computation of joined values by a node's joiner.

    ``right`` is the layout of the partners.
    """

    node: str
    joiner: Joiner
    right: Layout
    result: Layout

    def join(self, inputs: Inputs, turns: Sequence[int] | Rows, records: Batch, others: Partners) -> Batch:
        """Join left records, whose turns are given, with ``others``.

        A record without a value must not be passed to a joiner. Raises ``UserFunctionError``.
        """
        joiner = self.joiner
        if isinstance(joiner, PythonFunction):
            keys = records.keys if joiner.takes_key else ()
            values = inputs.call(self.node, joiner, turns, keys, records.values, others.each())
            return records.with_values(values, self.result)
        frame, left = records.frame, records.layout
        sides = [frame[name].alias(f"{LEFT}{name}") for name in left.names]
        sides += [column.alias(f"{RIGHT}{column.name}") for column in others.columns(self.right)]
        computed = {name: to_polars(expression).alias(name) for name, expression in joiner.columns}
        kept = [
            pl.col(f"{LEFT}{name}").alias(name) for name in left.value_columns if joiner.keep and name not in computed
        ]
        whole = frame.select(*left.key_columns, TIMESTAMP).with_columns(sides)
        joined = whole.select(*left.key_columns, TIMESTAMP, *kept, *computed.values())
        return Batch.of_frame(self.result, joined)

    def join_released(
        self,
        node: Node,
        inputs: Inputs,
        causes: Sequence[int] | Rows,
        records: Batch,
        others: list[Any],
        released: Sequence[int],
    ) -> Output:
        """Join records, given with the turns that caused them, of which those in ``released`` had waited.

        Raises ``UserFunctionError``.
        """
        marks = inputs.marks[np.asarray(causes, dtype=np.int64)]
        waited = None
        if inputs.releases.aside:  # A record of the right side of an outer join has no left value.
            waited = [other if value is None else value for value, other in zip(records.values, others, strict=True)]
        rest, kept = inputs.release(records, marks, released, waited)
        if len(kept) < len(others):
            others = [others[row] for row in kept.tolist()]
        joined = self.join(rest, rest.rows, rest.batch, Partners(others))
        return replace(typed(node, Output(joined), rest), marks=rest.marks)

    def join_lists(
        self, inputs: Inputs, turns: Sequence[int], left: Layout, keys: list[Any], values: list[Any], others: list[Any]
    ) -> list[Any]:
        """Join keys and values given as lists; returns the joined values."""
        return self.join(inputs, turns, Batch.of_lists(left, keys, values, [0] * len(keys)), Partners(others)).values


def key_of_values(
    inputs: Inputs,
    node: str,
    wanted: Expression | PythonFunction,
    batch: Batch,
    values: list[Any],
    layout: Layout,
) -> list[Any]:
    """Return the key that an expression or function computes for each value, None without a value.

    The keys are as those of ``layout``.
    """
    if isinstance(wanted, PythonFunction):
        keys = inputs.call_present(node, wanted, batch.keys, values)
        return keys_as_columns(inputs, node, layout, keys, range(batch.height))
    column = batch.with_values(values).frame.select(to_polars(wanted)).to_series()
    keys = key_cells(layout.schema.field(layout.key[0]), column)
    return [None if value is None else key for key, value in zip(keys, values, strict=True)]
