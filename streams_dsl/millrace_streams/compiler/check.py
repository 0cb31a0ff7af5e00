"""First stage of the compiler: checks and layouts of all nodes.

The checks refuse unknown columns, predicates that are not boolean, and aggregates of unsuitable types. They also
refuse changes of a key that must stay, tables in place of streams, and joins of keys with different types. A join must
not wait longer than its table keeps versions. Each error names the node. The layouts of each kind of node are in
``layouts`` (streams) and ``table_layouts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from millrace_streams.compiler import table_layouts  # noqa: F401 - registers its nodes
from millrace_streams.compiler.layouts import layout_of
from millrace_streams.errors import TopologyError
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import (
    MaterializeNode,
    Node,
    SourceNode,
    StreamTableJoinNode,
    TableFilterNode,
    TableMapNode,
    TableSelectNode,
    Topology,
    ToTableNode,
)
from millrace_streams.layout import KEY, RESERVED_PREFIX, VALUE, Layout, TopicShape
from millrace_streams.serdes import RowSerde


@dataclass(frozen=True)
class CheckedTopology:
    """A topology with the layout of each node's output in ``layouts``."""

    topology: Topology
    layouts: Mapping[str, Layout]

    def inputs_of(self, node: Node) -> tuple[Layout, ...]:
        """Return the input layouts of a node that is no source."""
        return tuple(self.layouts[parent] for parent in node.parents)


def check(topology: Topology, shapes: Mapping[str, TopicShape]) -> CheckedTopology:
    """Determine the layout of every node. ``shapes`` has the topics that do not declare their schema themselves.

    Raises ``TopologyError`` (including ``UnknownColumnError``) naming the node.
    """
    layouts: dict[str, Layout] = {}
    nodes = {node.name: node for node in topology.nodes}
    for node in topology.nodes:
        if isinstance(node, SourceNode):
            layouts[node.name] = _source_layout(node, shapes.get(node.topic))
        else:
            layouts[node.name] = layout_of(node, tuple(layouts[parent] for parent in node.parents))
        if isinstance(node, StreamTableJoinNode):
            _check_wait(node, history_of(node.parents[1], nodes))
    return CheckedTopology(topology, layouts)


def history_of(name: str, nodes: dict[str, Node]) -> int | None:
    """Return the history time of a table, or of the table whose rows it passes on; None without versions."""
    node = nodes[name]
    if isinstance(node, ToTableNode | MaterializeNode):
        return node.history_ms
    if isinstance(node, TableFilterNode | TableMapNode | TableSelectNode) and node.store is None:
        return history_of(node.parents[0], nodes)
    return None


def _check_wait(node: StreamTableJoinNode, history_ms: int | None) -> None:
    """Refuse a join whose records wait for older changes of a table that does not keep its versions as long."""
    if node.grace_ms is None:
        return
    if history_ms is None:
        raise TopologyError(f"{node.name}: grace=... is for joins with a versioned table: give the table versioned=...")
    if node.grace_ms > history_ms:
        raise TopologyError(
            f"{node.name}: records wait {node.grace_ms} ms, but the table keeps its versions for {history_ms} ms: give "
            "it a longer history, versioned=..."
        )


def _source_layout(node: SourceNode, shape: TopicShape | None) -> Layout:
    if node.serdes is not None:
        layout = _layout_of_serdes(node)
    else:
        layout = _layout_of_topic(node, shape)
    for name in layout.names:
        if name.startswith(RESERVED_PREFIX):
            raise TopologyError(f"{node.name}: the column {name} of topic {node.topic} has a reserved name")
    layout.require(layout.key, node.name)
    if node.timestamp is not None:
        layout.require([node.timestamp], node.name)
        time_type = layout.schema.field(node.timestamp).type
        if not (pa.types.is_timestamp(time_type) or pa.types.is_integer(time_type)):
            raise TopologyError(
                f"{node.name}: event time from {node.timestamp}: needs a timestamp or ms since 1970, not {time_type}"
            )
    return layout


def _layout_of_serdes(node: SourceNode) -> Layout:
    assert node.serdes is not None
    key, value = node.serdes
    if isinstance(value, RowSerde):
        columns = [column for column in value.schema if column.name != KEY]
        schema = pa.schema([key.field(KEY), *columns])
        return Layout(schema=schema, key=(KEY,), bucket_columns=(KEY,), spreads_nulls=True)
    schema = pa.schema([key.field(KEY), value.field(VALUE)])
    return Layout(schema=schema, key=(KEY,), bucket_columns=(KEY,), value=VALUE, spreads_nulls=True)


def _layout_of_topic(node: SourceNode, shape: TopicShape | None) -> Layout:
    if shape is None and node.schema is None:
        raise TopologyError(
            f"{node.name}: the schema of topic {node.topic} is not known: declare it with schema=..., or key=... and "
            "value=... for a topic of bytes"
        )
    schema = node.schema if node.schema is not None else shape.schema if shape is not None else pa.schema([])
    key = node.key_columns if node.key_columns is not None else shape.key_columns if shape is not None else ()
    scalar = shape.scalar if shape is not None else set(schema.names) == {KEY, VALUE}
    spreads_nulls = all(field.nullable for field in schema if field.name in key)
    value = VALUE if scalar else None
    return Layout(schema=schema, key=key, bucket_columns=key or None, value=value, spreads_nulls=spreads_nulls)


def has_function(node: Node) -> bool:
    """Return whether the node calls a Python function of the user, which needs all columns."""
    return any(isinstance(part, PythonFunction) for name in node.__dataclass_fields__ for part in [getattr(node, name)])
