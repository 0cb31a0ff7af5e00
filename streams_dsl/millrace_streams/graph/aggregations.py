"""The nodes that aggregate: named aggregates in columns, and Python functions, by key and window."""

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
"""A function of key, value and aggregate that gives the aggregate with the value, or without it."""
Emit: TypeAlias = Literal["every", "last"]
"""``every``: a result for each record, as Kafka Streams without cache; ``last``: the last one of a key per batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartialAggregateNode(Node):
    """What some records of a topic, read together, add to ``aggregates`` by key and window; put in by the compiler.

    It keeps nothing: the ``AggregateNode`` after it adds its rows up.
    """

    prefix = "KSTREAM-PARTIAL-AGGREGATE"
    aggregates: tuple[tuple[str, Aggregate], ...]
    window: TimeWindows | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AggregateNode(TableNode):
    """A table of named ``aggregates`` by key, and by tumbling or hopping window if there is one; in columns.

    ``bare`` says that the one aggregate's column is the value itself, as of ``count()``. Without ``emit`` the compiler
    chooses: ``last`` where only Delta tables read the result, which come to the same, else ``every``. ``records`` are
    the records' columns where what comes in are partial aggregates of them, else None.
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
    """How Python functions aggregate.

    ``initializer()`` begins, ``aggregator(key, value, aggregate)`` goes on, ``merger(key, one, other)`` joins two
    sessions. A reduction has no initializer: its first value is the first aggregate; ``reducer(aggregate, value)`` is
    its aggregator without the key.
    """

    initializer: Callable[[], Any] | None
    aggregator: Aggregator
    merger: Aggregator | None = None
    reducer: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoldNode(TableNode):
    """A table of what is folded record by record, by key and window.

    Either Python functions, one fold per parent (of a cogroup several), or named ``aggregates`` of the one parent.
    ``bare`` is as in ``AggregateNode``. ``on_close`` says that a window gives its final result alone, when it closes.
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
    """A table of what is added up and taken away again, of a table's rows grouped anew.

    Either by Python functions, or as named ``aggregates``; ``bare`` is as in ``AggregateNode``.
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
