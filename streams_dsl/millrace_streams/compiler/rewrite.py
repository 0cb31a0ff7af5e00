"""Second stage of the compiler: rewriting of the checked graph for execution.

The rewritings run in this order:

* ``address_children``: a processor that forwards to children by name gets a node for each of several children;
* ``insert_repartitions``: records whose key no longer determines their bucket go through a topic before they are
  grouped or joined. Branches that need the same topic share it (``compiler.repartitions``);
* ``old_values``: tables whose changes must carry the old values, and ``materialize``: tables whose rows are looked up
  (``compiler.tables``);
* ``split_aggregates``: aggregations that can be split start where records are read (``compiler.partial``);
* ``prune_columns``: sources read only needed columns, and unused expressions are not computed.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from millrace_streams.compiler.check import CheckedTopology, check, has_function
from millrace_streams.compiler.partial import split_aggregates
from millrace_streams.compiler.repartitions import insert_repartitions, with_parents
from millrace_streams.compiler.tables import choose_emit, final_waits, materialize, old_values
from millrace_streams.expressions import LEFT, RIGHT, Expression
from millrace_streams.graph import (
    AggregateNode,
    ChildNode,
    FilterNode,
    FoldNode,
    JoinColumns,
    MapValuesNode,
    Node,
    PartialAggregateNode,
    ProcessNode,
    RepartitionNode,
    SelectKeyNode,
    SourceNode,
    StreamStreamJoinNode,
    StreamTableJoinNode,
    Topology,
)
from millrace_streams.layout import Layout, TopicShape
from millrace_streams.windows import SlidingWindows


def rewrite(checked: CheckedTopology) -> CheckedTopology:
    """Apply all rewritings; the result is checked again after each."""
    for change in (
        address_children,
        insert_repartitions,
        final_waits,
        old_values,
        materialize,
        choose_emit,
        split_aggregates,
        prune_columns,
    ):
        checked = recheck(change(checked), checked)
    return checked


def address_children(checked: CheckedTopology) -> Topology:
    """Tell each processor its children, and insert a ``ChildNode`` before each of several children.

    The node takes the records for the child. It is inserted before any other node between the two.
    """
    nodes: list[Node] = []
    children: dict[str, tuple[str, ...]] = {}
    for node in checked.topology.nodes:
        parents = list(node.parents)
        for place, parent in enumerate(parents):
            if len(children.get(parent, ())) > 1:
                parents[place] = f"{parent}-to-{node.name}"
                if parent not in node.parents[:place]:
                    nodes.append(ChildNode(name=parents[place], parents=(parent,), child=node.name))
        if isinstance(node, ProcessNode):
            children[node.name] = tuple(child.name for child in checked.topology.children(node.name))
            node = replace(node, children=children[node.name])
        nodes.append(with_parents(node, tuple(parents)))
    return Topology(tuple(nodes)) if children else checked.topology


def recheck(topology: Topology, before: CheckedTopology) -> CheckedTopology:
    """Check a rewritten topology, whose sources declare their content themselves."""
    if topology is before.topology:
        return before
    shapes = {
        source.topic: TopicShape(schema=layout.schema, key_columns=layout.key, scalar=layout.scalar)
        for source in topology.sources
        if (layout := before.layouts[source.name])
    }
    return check(topology, shapes)


def prune_columns(checked: CheckedTopology) -> Topology:
    """Drop columns that no sink, function, key or expression needs."""
    needed: dict[str, set[str]] = {}
    for node in reversed(checked.topology.nodes):
        own = needed.setdefault(node.name, set())
        own.update(checked.layouts[node.name].key)
        for place, (parent, given) in enumerate(zip(node.parents, checked.inputs_of(node), strict=True)):
            needed.setdefault(parent, set()).update(_needed_of_input(node, place, given, own))
    return Topology(tuple(_prune(node, checked, needed[node.name]) for node in checked.topology.nodes))


def _needed_of_input(node: Node, place: int, given: Layout, wanted: set[str]) -> set[str]:
    """Return the columns of input number ``place`` that a node needs to compute the ``wanted`` output columns."""
    if has_function(node):
        return set(given.names)
    if isinstance(node, StreamTableJoinNode | StreamStreamJoinNode) and isinstance(node.joiner, JoinColumns):
        return _needed_of_side(node, node.joiner, place, given, wanted)
    if isinstance(node, RepartitionNode) and not node.visible:
        return wanted
    if isinstance(node, FilterNode):
        predicate = node.predicate.columns() if isinstance(node.predicate, Expression) else frozenset(given.names)
        return wanted | predicate
    if isinstance(node, MapValuesNode | SelectKeyNode):
        computed = {name for name, _ in node.columns}
        passed = wanted - computed
        return passed.union(*(value.columns() for name, value in node.columns if name in wanted))
    if isinstance(node, FoldNode | AggregateNode | PartialAggregateNode) and _aggregates_columns(node):
        arguments = set[str]().union(*(aggregate.columns() for _, aggregate in node.aggregates))
        # A record without a value is not counted, except in windows that are not sliding.
        needs_value = node.window is None or isinstance(node.window, SlidingWindows)
        value = set(given.names) if given.scalar and needs_value else set[str]()
        return arguments | set(given.key) | value
    return set(given.names)


def _aggregates_columns(node: FoldNode | AggregateNode | PartialAggregateNode) -> bool:
    """Return whether a node reads only the columns that its named aggregates use."""
    return bool(node.aggregates) and not (isinstance(node, AggregateNode) and node.records is not None)


def _needed_of_side(
    node: StreamTableJoinNode | StreamStreamJoinNode, joiner: JoinColumns, place: int, given: Layout, wanted: set[str]
) -> set[str]:
    prefix = (LEFT, RIGHT)[place]
    read = set[str]().union(*(value.columns() for _, value in joiner.columns))
    found = {name.removeprefix(prefix) for name in read if name.startswith(prefix)} | set(given.key)
    if place == 0 and joiner.keep:
        found |= wanted - {name for name, _ in joiner.columns}
    if place == 0 and isinstance(node, StreamTableJoinNode) and isinstance(node.selector, Expression):
        found |= node.selector.columns()
    # A bare value that is null means that there is no value.
    return found | ({given.value} if given.value is not None else set())


def _prune(node: Node, checked: CheckedTopology, needed: set[str]) -> Node:
    layout = checked.layouts[node.name]
    if isinstance(node, SourceNode):
        if layout.scalar or node.serdes is not None:
            # Such a topic has only these columns, so they stay even if unused.
            return replace(node, unread=frozenset(layout.names) - needed)
        columns = needed | ({node.timestamp} if node.timestamp is not None else set())
        if node.extractor is not None:
            columns = set(layout.names)
        schema = pa.schema([field for field in layout.schema if field.name in columns])
        return replace(node, schema=schema, key_columns=layout.key)
    if isinstance(node, MapValuesNode):
        return replace(node, columns=tuple(pair for pair in node.columns if pair[0] in needed))
    return node
