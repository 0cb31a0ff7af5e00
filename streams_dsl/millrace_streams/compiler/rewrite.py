"""Second stage of the compiler: the checked graph becomes one that reads and carries less and gives the same.

``prune_columns`` goes from the sinks up and asks each node what it needs of its input; sources then read only that, and
expressions that nobody uses are not computed. Keys are always carried.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from millrace_streams.compiler.check import CheckedTopology, check, has_function
from millrace_streams.expressions import Expression
from millrace_streams.graph import (
    AggregateNode,
    FilterNode,
    MapValuesNode,
    Node,
    SelectKeyNode,
    SourceNode,
    Topology,
)
from millrace_streams.layout import Layout, TopicShape


def rewrite(checked: CheckedTopology) -> CheckedTopology:
    """Apply all rewritings; the result is checked anew."""
    return prune_columns(checked)


def prune_columns(checked: CheckedTopology) -> CheckedTopology:
    """Leave out columns that no sink, function, key or expression needs."""
    needed = _needed_columns(checked)
    nodes = tuple(_prune(node, checked, needed[node.name]) for node in checked.topology.nodes)
    shapes = {
        node.topic: TopicShape(
            schema=node.schema, key_columns=checked.layouts[node.name].key, scalar=checked.layouts[node.name].scalar
        )
        for node in nodes
        if isinstance(node, SourceNode)
    }
    return check(Topology(nodes), shapes)


def _needed_columns(checked: CheckedTopology) -> dict[str, set[str]]:
    """Of each node's output, the columns that somebody needs."""
    needed: dict[str, set[str]] = {}
    for node in reversed(checked.topology.nodes):
        own = needed.setdefault(node.name, set())
        own.update(checked.layouts[node.name].key)
        if node.parents:
            wanted = _needed_of_input(node, checked.input_of(node), own)
            needed.setdefault(node.parents[0], set()).update(wanted)
    return needed


def _needed_of_input(node: Node, given: Layout, wanted: set[str]) -> set[str]:
    if has_function(node):
        return set(given.names)
    if isinstance(node, FilterNode):
        predicate = node.predicate.columns() if isinstance(node.predicate, Expression) else frozenset(given.names)
        return wanted | predicate
    if isinstance(node, MapValuesNode | SelectKeyNode):
        computed = {name for name, _ in node.columns}
        passed = wanted - computed
        return passed.union(*(value.columns() for name, value in node.columns if name in wanted))
    if isinstance(node, AggregateNode):
        arguments = set[str]().union(*(aggregate.columns() for _, aggregate in node.aggregates))
        value = set(given.names) if given.scalar else set[str]()
        return arguments | set(given.key) | value
    return set(given.names)


def _prune(node: Node, checked: CheckedTopology, needed: set[str]) -> Node:
    layout = checked.layouts[node.name]
    if isinstance(node, SourceNode):
        columns = needed | ({node.timestamp} if node.timestamp is not None else set())
        schema = pa.schema([field for field in layout.schema if field.name in columns])
        return replace(node, schema=schema, key_columns=layout.key)
    if isinstance(node, MapValuesNode):
        return replace(node, columns=tuple(pair for pair in node.columns if pair[0] in needed))
    return node
