"""The language: ``StreamsBuilder`` and the streams and tables that it gives, as in Kafka Streams.

Every method adds a node and gives a new handle; nothing is computed. ``build`` freezes the nodes into a ``Topology``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from millrace_streams.aggregates import Aggregate, Count
from millrace_streams.errors import TopologyError
from millrace_streams.expressions import Alias, Expression, col, expression_of
from millrace_streams.functions import Batchwise, PythonFunction, python_function
from millrace_streams.graph import (
    AggregateNode,
    DeltaSinkNode,
    Emit,
    FilterNode,
    MapFunctionNode,
    MapValuesNode,
    Node,
    SelectKeyNode,
    SourceNode,
    TopicSinkNode,
    Topology,
    ToStreamNode,
)
from millrace_streams.windows import TimeWindows

NodeT = TypeVar("NodeT", bound=Node)


class StreamsBuilder:
    """Collects the nodes of one topology.

    >>> builder = StreamsBuilder()
    >>> flights = builder.stream("flights").filter(col("dep_delay").is_not_null())
    >>> flights.group_by("origin").count().to_delta("departures")
    >>> topology = builder.build()
    """

    def __init__(self) -> None:
        """Start with an empty topology."""
        self._nodes: list[Node] = []
        self._index = 0

    def stream(
        self,
        topic: str,
        *,
        schema: Any = None,
        key_columns: Sequence[str] | None = None,
        timestamp: str | None = None,
        name: str | None = None,
    ) -> KStream:
        """Read a topic. Its columns and key are the topic's own, found when the topology is run.

        ``schema`` (an Arrow schema, or whatever ``millrace.schemas.parse_schema`` reads) and ``key_columns`` declare
        them beforehand: mistakes are then found without a cluster. ``timestamp`` is the column of event time; without
        it the record's own timestamp is used.
        """
        node = self._add(
            SourceNode,
            name,
            (),
            topic=topic,
            schema=_schema(schema) if schema is not None else None,
            key_columns=tuple(key_columns) if key_columns is not None else None,
            timestamp=timestamp,
        )
        return KStream(self, node)

    def build(self) -> Topology:
        """Freeze what was built. Raises ``TopologyError`` when it is no topology."""
        return Topology(tuple(self._nodes))

    def _new_name(self, prefix: str) -> str:
        self._index += 1
        return f"{prefix}-{self._index - 1:010d}"

    def _add(self, kind: type[NodeT], name: str | None, parents: tuple[str, ...], **fields: Any) -> NodeT:
        _check_name(name)
        node = kind(name=name or self._new_name(kind.prefix), parents=parents, **fields)
        self._nodes.append(node)
        return node


class _Handle:
    """What a stream, a table and a group have in common: the builder and the node they stand for."""

    def __init__(self, builder: StreamsBuilder, node: Node) -> None:
        self._builder = builder
        self._node = node

    @property
    def name(self) -> str:
        """Name of the node."""
        return self._node.name

    def _then(self, kind: type[NodeT], name: str | None, **fields: Any) -> NodeT:
        return self._builder._add(kind, name, (self._node.name,), **fields)

    def _pairs(
        self, what: str, name: str | None, columns: Sequence[str | Alias], expressions: dict[str, Any]
    ) -> tuple[tuple[str, Expression], ...]:
        _check_name(name)
        where = f"{what} after {self._node.name}"
        pairs = [_pair(column, where) for column in columns]
        pairs += [(column, expression_of(value)) for column, value in expressions.items()]
        names = [column for column, _ in pairs]
        if not names:
            raise TopologyError(f"{where}: name at least one column")
        if len(names) != len(set(names)):
            raise TopologyError(f"{where}: a column is named twice in {', '.join(names)}")
        return tuple(pairs)

    def _function(self, what: str, function: Callable[..., Any] | Batchwise, name: str | None) -> PythonFunction:
        return python_function(function, name or f"{what} after {self._node.name}")


class KStream(_Handle):
    """A stream: each record stands for itself."""

    def filter(
        self, predicate: Expression | Callable[..., Any] | Batchwise, *, name: str | None = None, negate: bool = False
    ) -> KStream:
        """Keep the records for which ``predicate`` is true."""
        if not isinstance(predicate, Expression):
            predicate = self._function("filter", predicate, name)  # type: ignore[assignment]
        return KStream(self._builder, self._then(FilterNode, name, predicate=predicate, negate=negate))

    def filter_not(self, predicate: Expression | Callable[..., Any] | Batchwise, *, name: str | None = None) -> KStream:
        """Keep the records for which ``predicate`` is not true."""
        return self.filter(predicate, name=name, negate=True)

    def select(self, *columns: str | Alias, name: str | None = None, **expressions: Any) -> KStream:
        """Keep these columns and compute those; the key's columns stay in any case."""
        pairs = self._pairs("select", name, columns, expressions)
        return KStream(self._builder, self._then(MapValuesNode, name, columns=pairs))

    def with_columns(self, *columns: Alias, name: str | None = None, **expressions: Any) -> KStream:
        """Keep all columns and add or replace those."""
        pairs = self._pairs("with_columns", name, columns, expressions)
        return KStream(self._builder, self._then(MapValuesNode, name, columns=pairs, keep=True))

    def map_values(
        self,
        function: Callable[..., Any] | Batchwise | None = None,
        *,
        schema: Any = None,
        name: str | None = None,
        **expressions: Any,
    ) -> KStream:
        """New values: from expressions (as ``select``), or from a Python function.

        A function needs ``schema``, the Arrow schema of what it gives: it gives a dict of these columns, or, when it
        is one column named ``value``, the bare value. The key's columns stay as they are and need not be given.
        """
        if function is None:
            return self.select(name=name, **expressions)
        if expressions or schema is None:
            raise TopologyError(
                f"map_values after {self._node.name}: give a function with schema=..., or column=expression, not both"
            )
        python = self._function("map_values", function, name)
        return KStream(self._builder, self._then(MapFunctionNode, name, function=python, schema=_schema(schema)))

    def select_key(self, *columns: str | Alias, name: str | None = None, **expressions: Any) -> KStream:
        """Give the records another key: existing columns, or expressions that become columns."""
        pairs = self._pairs("select_key", name, columns, expressions)
        return KStream(self._builder, self._then(SelectKeyNode, name, columns=pairs))

    def group_by(self, *columns: str | Alias, name: str | None = None, **expressions: Any) -> KGroupedStream:
        """Group by columns or expressions; records move only where these columns do not decide the bucket."""
        return self.select_key(*columns, name=name, **expressions).group_by_key()

    def group_by_key(self) -> KGroupedStream:
        """Group by the key that the records have."""
        return KGroupedStream(self._builder, self._node)

    def to(self, topic: str, *, name: str | None = None) -> None:
        """Write the records to a topic."""
        self._then(TopicSinkNode, name, topic=topic)

    def to_delta(self, table: str, *, name: str | None = None) -> None:
        """Append the records to a Delta table. ``table`` is a name; the runner is told where it lies."""
        self._then(DeltaSinkNode, name, table=table)


class KGroupedStream(_Handle):
    """Records grouped by key, to be aggregated."""

    def windowed_by(self, window: TimeWindows) -> TimeWindowedKStream:
        """Aggregate per window of time."""
        return TimeWindowedKStream(self._builder, self._node, window)

    def aggregate(
        self, *, store: str | None = None, emit: Emit = "last", name: str | None = None, **aggregates: Aggregate
    ) -> KTable:
        """A table of named aggregates per key, such as ``departures=count()``."""
        return _aggregate(self, None, aggregates, store, emit, name)

    def count(
        self, *, column: str = "count", store: str | None = None, emit: Emit = "last", name: str | None = None
    ) -> KTable:
        """A table of the number of records per key, in ``column``."""
        return _aggregate(self, None, {column: Count()}, store, emit, name)


class TimeWindowedKStream(_Handle):
    """Records grouped by key and window, to be aggregated."""

    def __init__(self, builder: StreamsBuilder, node: Node, window: TimeWindows) -> None:
        """Group what ``node`` gives by ``window``."""
        super().__init__(builder, node)
        self._window = window

    def aggregate(
        self, *, store: str | None = None, emit: Emit = "last", name: str | None = None, **aggregates: Aggregate
    ) -> KTable:
        """A table of named aggregates per key and window, such as ``departures=count()``."""
        return _aggregate(self, self._window, aggregates, store, emit, name)

    def count(
        self, *, column: str = "count", store: str | None = None, emit: Emit = "last", name: str | None = None
    ) -> KTable:
        """A table of the number of records per key and window, in ``column``."""
        return _aggregate(self, self._window, {column: Count()}, store, emit, name)


class KTable(_Handle):
    """A table: the newest row of each key (and window) counts."""

    def to_stream(self, *, name: str | None = None) -> KStream:
        """The table's updates as a stream."""
        return KStream(self._builder, self._then(ToStreamNode, name))

    def to_delta(self, table: str, *, name: str | None = None) -> None:
        """Keep a Delta table equal to this one: rows are upserted by key and window start.

        ``table`` is a name; the runner is told where it lies. Windows come as the columns ``window_start`` and
        ``window_end``.
        """
        self._then(DeltaSinkNode, name, table=table)


def _aggregate(
    handle: _Handle,
    window: TimeWindows | None,
    aggregates: dict[str, Aggregate],
    store: str | None,
    emit: Emit,
    name: str | None,
) -> KTable:
    where = name or f"aggregate after {handle.name}"
    if not aggregates:
        raise TopologyError(f"{where}: give at least one aggregate, such as departures=count()")
    for column, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise TopologyError(
                f"{where}: {column}={aggregate!r} is not an aggregate, such as count() or mean('delay')"
            )
    if emit not in ("every", "last"):
        raise TopologyError(f"{where}: emit={emit!r}: must be 'every' or 'last'")
    store = store or handle._builder._new_name(f"{AggregateNode.prefix}-STATE-STORE")
    fields = {"aggregates": tuple(aggregates.items()), "window": window, "store": store, "emit": emit}
    return KTable(handle._builder, handle._then(AggregateNode, name, **fields))


def _check_name(name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise TopologyError(f"name={name!r} names the node; for a column of that name write expression.alias('name')")


def _pair(column: str | Alias, where: str) -> tuple[str, Expression]:
    if isinstance(column, str):
        return column, col(column)
    if isinstance(column, Alias):
        return column.name, column.expression
    raise TopologyError(f"{where}: {column!r} has no name: write name=expression, or expression.alias(name)")


def _schema(source: Any) -> pa.Schema:
    if isinstance(source, pa.Schema):
        return source
    from millrace.schemas import parse_schema

    return parse_schema(source)
