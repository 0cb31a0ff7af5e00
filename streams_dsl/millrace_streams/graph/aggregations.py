"""Aggregating nodes, for named aggregates and for Python functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from millrace_streams.aggregates import Aggregate
from millrace_streams.graph.nodes import Node
from millrace_streams.graph.tables import TableNode
from millrace_streams.serdes import RowSerde, Serde
from millrace_streams.windows import TimeWindows, Windows

Aggregator: TypeAlias = Callable[[Any, Any, Any], Any]
"""A function of key, value and aggregate that returns the aggregate after adding or subtracting the value."""
Emit: TypeAlias = Literal["every", "last"]
"""``every``: a result per record, as Kafka Streams without cache; ``last``: the last one of a key per batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialAggregateNode(Node):
    """Partial ``aggregates`` by key and window of records read together.

    The node is stateless; the ``AggregateNode`` after it combines its rows. The compiler adds this node.
    """

    prefix = "KSTREAM-PARTIAL-AGGREGATE"
    aggregates: tuple[tuple[str, Aggregate], ...]
    window: TimeWindows | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregateNode(TableNode):
    """Table of named ``aggregates`` by key and, optionally, by window.

    A window is tumbling or hopping. Each aggregate has a column. With ``bare`` the column of the only aggregate is the
    value itself, as for ``count()``. Without ``emit`` the compiler chooses ``last`` if only Delta tables read the
    result, because their content is the same, and otherwise ``every``. ``records`` are the records' columns if the
    input consists of partial aggregates, otherwise None.
    """

    prefix = "KSTREAM-AGGREGATE"
    aggregates: tuple[tuple[str, Aggregate], ...]
    window: TimeWindows | None
    store: str
    emit: Emit | None = None
    bare: bool = False
    records: pa.Schema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """An aggregation by Python functions.

    ``initializer()`` starts, ``aggregator(key, value, aggregate)`` continues, and ``merger(key, one, other)`` merges
    two sessions. A reduction has no initializer: its first value is the first aggregate. ``reducer(aggregate, value)``
    is its aggregator without the key.
    """

    initializer: Callable[[], Any] | None
    aggregator: Aggregator
    merger: Aggregator | None = None
    reducer: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldNode(TableNode):
    """A table that is folded record by record, by key and window.

    It has either Python functions, one fold per parent (several for a cogroup), or named ``aggregates`` of one parent.
    ``bare`` is as in ``AggregateNode``. With ``on_close`` a window emits only its final result, when it closes.
    """

    prefix = "KSTREAM-AGGREGATE"
    window: Windows | None
    store: str
    folds: tuple[Fold, ...] = ()
    serde: Serde | RowSerde | None = None
    emit: Emit = "every"
    on_close: bool = False
    aggregates: tuple[tuple[str, Aggregate], ...] = ()
    bare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFoldNode(TableNode):
    """Table of aggregates over the regrouped rows of another table.

    The aggregates add the new rows of a group and subtract its old rows. The node has either Python functions or named
    ``aggregates``; ``bare`` is as in ``AggregateNode``.
    """

    prefix = "KTABLE-AGGREGATE"
    store: str
    initializer: Callable[[], Any] | None = None
    adder: Aggregator | None = None
    subtractor: Aggregator | None = None
    serde: Serde | RowSerde | None = None
    emit: Emit = "every"
    aggregates: tuple[tuple[str, Aggregate], ...] = ()
    bare: bool = False
