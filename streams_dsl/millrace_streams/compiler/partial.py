"""Partial aggregation at the source, before rows enter the JVM.

The compiler uses a partial aggregation only if the result stays the same. The results of a batch must be the last
ones of each key. Records must not be repartitioned before the aggregation. There must be one source, and folds that
can run in any order without an error. No user function may follow. If such a function failed on a row, all records of
that row would become dead letters instead of the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from millrace_streams.compiler.check import CheckedTopology, has_function
from millrace_streams.compiler.repartitions import with_parents
from millrace_streams.graph import AggregateNode, Node, PartialAggregateNode, ProcessNode, SourceNode, Topology
from millrace_streams.steps import STATELESS
from millrace_streams.steps.lifting import Lifting


def split_aggregates(checked: CheckedTopology) -> Topology:
    """Insert a ``PartialAggregateNode`` before each aggregation that can be split."""
    nodes: list[Node] = []
    for node in checked.topology.nodes:
        if not isinstance(node, AggregateNode) or not _may_be_split(node, checked):
            nodes.append(node)
            continue
        [given] = checked.inputs_of(node)
        part = PartialAggregateNode(
            name=f"{node.name}-partial", parents=node.parents, aggregates=node.aggregates, window=node.window
        )
        nodes += [part, with_parents(replace(node, records=given.schema), (part.name,))]
    return Topology(tuple(nodes))


def _may_be_split(node: AggregateNode, checked: CheckedTopology) -> bool:
    topology = checked.topology
    [given] = checked.inputs_of(node)
    if node.emit != "last" or given.windowed or len(topology.sources) > 1:
        return False
    if any(isinstance(each, ProcessNode) for each in topology.nodes) or not _is_read_alone(node, topology):
        return False
    if any(has_function(each) for each in _after(node, topology)):
        return False
    return Lifting(node.name, node.aggregates, node.window, given.schema, given.key).is_splittable


def _is_read_alone(node: Node, topology: Topology) -> bool:
    """Return whether all nodes before this one can run at the source and have no other children."""
    while not isinstance(node, SourceNode):
        node = topology.node(node.parents[0])
        if len(list(topology.children(node.name))) != 1 or not isinstance(node, (*STATELESS, SourceNode)):
            return False
    return True


def _after(node: Node, topology: Topology) -> Iterator[Node]:
    for child in topology.children(node.name):
        yield child
        yield from _after(child, topology)
