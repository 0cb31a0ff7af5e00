"""First stage of the compiler: a topology and the shapes of its topics become a checked graph with types.

What cannot be right is refused here, with the node's name: unknown columns, predicates that are not boolean, changes
of the key where the key must stay, aggregates of what cannot be aggregated, tables where a stream is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import singledispatch

import polars as pl
import pyarrow as pa

from millrace_streams.errors import TopologyError
from millrace_streams.expressions import Column, Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import (
    AggregateNode,
    DeltaSinkNode,
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
from millrace_streams.layout import (
    KEY,
    RESERVED_PREFIX,
    VALUE,
    WINDOW_END,
    WINDOW_START,
    WINDOW_TYPE,
    Layout,
    TopicShape,
)
from millrace_streams.steps.accumulators import result_fields
from millrace_streams.steps.evaluation import arrow_type, polars_schema, result_types, to_polars


@dataclass(frozen=True)
class CheckedTopology:
    """A topology whose edges have layouts: ``layouts`` says what each node gives."""

    topology: Topology
    layouts: Mapping[str, Layout]

    def input_of(self, node: Node) -> Layout:
        """What a node other than a source reads."""
        return self.layouts[node.parents[0]]


def check(topology: Topology, shapes: Mapping[str, TopicShape]) -> CheckedTopology:
    """Give every node its layout. ``shapes``: of each topic that does not declare its schema itself.

    Raises ``TopologyError`` (``UnknownColumnError`` among them) naming the node.
    """
    layouts: dict[str, Layout] = {}
    for node in topology.nodes:
        if isinstance(node, SourceNode):
            layouts[node.name] = _source_layout(node, shapes.get(node.topic))
        else:
            layouts[node.name] = _layout(node, layouts[node.parents[0]])
    return CheckedTopology(topology, layouts)


def _source_layout(node: SourceNode, shape: TopicShape | None) -> Layout:
    if shape is None and node.schema is None:
        raise TopologyError(f"{node.name}: the schema of topic {node.topic} is not known: declare it with schema=...")
    schema = node.schema if node.schema is not None else shape.schema if shape is not None else pa.schema([])
    key = node.key_columns if node.key_columns is not None else shape.key_columns if shape is not None else ()
    for name in schema.names:
        if name.startswith(RESERVED_PREFIX):
            raise TopologyError(f"{node.name}: the column {name} of topic {node.topic} has a reserved name")
    scalar = shape.scalar if shape is not None else set(schema.names) == {KEY, VALUE}
    layout = Layout(schema=schema, key=key, bucket_columns=key or None, scalar=scalar)
    layout.require(key, node.name)
    if node.timestamp is not None:
        layout.require([node.timestamp], node.name)
        time_type = schema.field(node.timestamp).type
        if not (pa.types.is_timestamp(time_type) or pa.types.is_integer(time_type)):
            raise TopologyError(
                f"{node.name}: event time from {node.timestamp}: needs a timestamp or ms since 1970, not {time_type}"
            )
    return layout


@singledispatch
def _layout(node: Node, given: Layout) -> Layout:
    raise TopologyError(f"{node.name}: {type(node).__name__} is not a node that the compiler knows")


@_layout.register
def _(node: FilterNode, given: Layout) -> Layout:
    _needs_stream(node, given, "filter")
    if isinstance(node.predicate, Expression):
        [field] = _fields(node, given, (("predicate", node.predicate),))
        if not pa.types.is_boolean(field.type):
            raise TopologyError(f"{node.name}: the predicate {node.predicate!r} is {field.type}, not boolean")
    return given


@_layout.register
def _(node: MapValuesNode, given: Layout) -> Layout:
    _needs_stream(node, given, "map_values")
    for name, expression in node.columns:
        if name in given.key and not (isinstance(expression, Column) and expression.name == name):
            raise TopologyError(f"{node.name}: {name} is part of the key: change it with group_by or select_key")
    computed = {field.name: field for field in _fields(node, given, node.columns)}
    kept = [field for field in given.schema if node.keep or (field.name in given.key and field.name not in computed)]
    fields = [computed.pop(field.name, field) for field in kept] + list(computed.values())
    moved = {name for name, value in node.columns if not (isinstance(value, Column) and value.name == name)}
    layout = _with_schema(given, pa.schema(fields), moved)
    return replace(layout, scalar=given.scalar and set(layout.names) <= {*given.key, VALUE})


@_layout.register
def _(node: MapFunctionNode, given: Layout) -> Layout:
    _needs_stream(node, given, "map_values")
    result = [field for field in node.schema if field.name not in given.key]
    if not result:
        raise TopologyError(f"{node.name}: the schema has no column beside the key's ({', '.join(given.key)})")
    scalar = [field.name for field in result] == [VALUE]
    layout = _with_schema(given, pa.schema([given.schema.field(name) for name in given.key] + result), set())
    return replace(layout, scalar=scalar)


@_layout.register
def _(node: SelectKeyNode, given: Layout) -> Layout:
    _needs_stream(node, given, "select_key")
    computed = {field.name: field for field in _fields(node, given, node.columns)}
    fields = [computed.pop(field.name, field) for field in given.schema] + list(computed.values())
    moved = {name for name, value in node.columns if not (isinstance(value, Column) and value.name == name)}
    layout = _with_schema(given, pa.schema(fields), moved)
    return replace(layout, key=tuple(name for name, _ in node.columns))


@_layout.register
def _(node: AggregateNode, given: Layout) -> Layout:
    _needs_stream(node, given, "aggregate")
    if not given.key:
        raise TopologyError(
            f"{node.name}: the records have no key: group_by(column) first, or give the topic key columns"
        )
    windows = [WINDOW_START, WINDOW_END] if node.window is not None else []
    names = [*given.key, *windows, *(name for name, _ in node.aggregates)]
    for name in names:
        if names.count(name) > 1 or name.startswith(RESERVED_PREFIX):
            raise TopologyError(f"{node.name}: the column name {name} is taken or reserved: choose another")
    for _, aggregate in node.aggregates:
        given.require(aggregate.columns(), node.name)
    fields = [given.schema.field(name) for name in given.key] + [pa.field(name, WINDOW_TYPE) for name in windows]
    fields += result_fields(node.aggregates, polars_schema(given.schema), node.name)
    return Layout(
        schema=pa.schema(fields),
        key=given.key,
        bucket_columns=given.bucket_columns,
        table=True,
        windowed=node.window is not None,
    )


@_layout.register
def _(node: ToStreamNode, given: Layout) -> Layout:
    if not given.table:
        raise TopologyError(f"{node.name}: to_stream of what is a stream already")
    key = (*given.key, WINDOW_START, WINDOW_END) if given.windowed else given.key
    return Layout(schema=given.schema, key=key, bucket_columns=given.bucket_columns)


@_layout.register(TopicSinkNode)
@_layout.register(DeltaSinkNode)
def _(node: TopicSinkNode | DeltaSinkNode, given: Layout) -> Layout:
    if isinstance(node, TopicSinkNode):
        _needs_stream(node, given, "to")
    return given


def _needs_stream(node: Node, given: Layout, what: str) -> None:
    if given.table:
        raise TopologyError(f"{node.name}: {what} needs a stream, but {node.parents[0]} is a table: to_stream() first")


def _fields(node: Node, given: Layout, columns: tuple[tuple[str, Expression], ...]) -> list[pa.Field]:
    for name, expression in columns:
        given.require(expression.columns(), node.name)
        if name.startswith(RESERVED_PREFIX):
            raise TopologyError(f"{node.name}: the column name {name} is reserved: choose another")
    types = result_types([to_polars(expression) for _, expression in columns], polars_schema(given.schema), node.name)
    fields = []
    for (name, expression), data_type in zip(columns, types, strict=True):
        if isinstance(expression, Column):
            fields.append(given.schema.field(expression.name).with_name(name))
        elif data_type == pl.Null():
            raise TopologyError(f"{node.name}: {name} is always null and has no type: cast it, lit(None).cast('int')")
        else:
            fields.append(pa.field(name, arrow_type(data_type)))
    return fields


def _with_schema(given: Layout, schema: pa.Schema, changed: set[str]) -> Layout:
    """The layout after a change of columns; ``changed`` ones no longer say anything about the bucket."""
    buckets = given.bucket_columns
    if buckets is not None and any(name in changed or name not in schema.names for name in buckets):
        buckets = None
    return replace(given, schema=schema, bucket_columns=buckets)


def has_function(node: Node) -> bool:
    """Whether the node calls Python code of the user's, which needs all columns and can do anything."""
    return isinstance(node, MapFunctionNode) or (
        isinstance(node, FilterNode) and isinstance(node.predicate, PythonFunction)
    )
