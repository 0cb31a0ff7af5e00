"""What joins have in common: joined values, and a table's rows as they were at each record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from millrace_streams.expressions import LEFT, RIGHT, Expression
from millrace_streams.frames.codec import value_columns_of
from millrace_streams.frames.evaluation import to_polars
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import Joiner
from millrace_streams.layout import Layout
from millrace_streams.steps.batch import TIMESTAMP, Batch, Rows
from millrace_streams.steps.flow import Inputs
from millrace_streams.steps.operator import State
from millrace_streams.stores import VersionedStore
from millrace_streams.stores.base import Stored
from millrace_streams.stores.versioned import Versions


@dataclass(slots=True)
class TableView:
    """The rows of another operator's table: those before the batch, rolled forward with its changes."""

    rows: dict[Any, Stored]

    @classmethod
    def of(cls, state: State, store: str, keys: Iterable[Any]) -> TableView:
        """Fetch the rows of these keys at once."""
        return cls(state.rows_before(store, keys))

    def get(self, key: Any, as_of_ms: int) -> Stored | None:
        """The row of a key at this point of the batch."""
        return self.rows.get(key)

    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Take over a change."""
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = Stored(value, time_ms)


@dataclass(slots=True)
class VersionsView(TableView):
    """The same of a table of versions, which can be asked for the past."""

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

    def get(self, key: Any, as_of_ms: int) -> Stored | None:
        """The version of a key that was valid at a time."""
        versions = self.versions.get(key)
        return None if versions is None else versions.get(as_of_ms, self.newest_ms - self.history_ms)

    def roll(self, key: Any, value: Any, time_ms: int) -> None:
        """Take over a change."""
        self.newest_ms = max(self.newest_ms, time_ms)
        versions = self.versions.setdefault(key, Versions())
        versions.put(time_ms, value)
        versions.prune(self.newest_ms - self.history_ms)


def keys_of_side(inputs: Inputs, side: int) -> set[Any]:
    """The keys of one input."""
    return {key for key in inputs.batches[side].keys if key is not None}


@dataclass(frozen=True, slots=True)
class Partners:
    """What records are joined with: values, of which ``numbers`` has that of each record; None: one for each in order.

    None among the values is no partner.
    """

    values: list[Any]
    numbers: Rows | None = None

    def each(self) -> list[Any]:
        """The value of each record."""
        return self.values if self.numbers is None else list(map(self.values.__getitem__, self.numbers.tolist()))

    def columns(self, layout: Layout) -> list[pl.Series]:
        """The same as columns."""
        columns = value_columns_of(layout, self.values)
        return columns if self.numbers is None else [column.gather(self.numbers) for column in columns]


@dataclass(frozen=True, slots=True)
class Joining:
    """How a node makes joined values, by its joiner; ``right`` is the layout of what records are joined with."""

    node: str
    joiner: Joiner
    right: Layout
    result: Layout

    def join(self, inputs: Inputs, turns: Sequence[int] | Rows, records: Batch, others: Partners) -> Batch:
        """Records of the left side, whose turns are given, with the values that they make with ``others``.

        A record without a value has none to give to a joiner. Raises ``UserFunctionError``.
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

    def join_lists(
        self, inputs: Inputs, turns: Sequence[int], left: Layout, keys: list[Any], values: list[Any], others: list[Any]
    ) -> list[Any]:
        """The same of keys and values as lists; gives the joined values."""
        return self.join(inputs, turns, Batch.of_lists(left, keys, values, [0] * len(keys)), Partners(others)).values


def key_of_values(
    inputs: Inputs,
    node: str,
    wanted: Expression | PythonFunction,
    batch: Batch,
    values: list[Any],
) -> list[Any]:
    """The key that an expression or function gives of each value, None where there is no value."""
    if isinstance(wanted, PythonFunction):
        return inputs.call_present(node, wanted, batch.keys, values)
    keys = batch.with_values(values).frame.select(to_polars(wanted)).to_series().to_list()
    return [None if value is None else key for key, value in zip(keys, values, strict=True)]
