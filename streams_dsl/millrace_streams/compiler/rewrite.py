"""Second stage of the compiler: the checked graph becomes one that says all that must happen, and does no more.

In this order:

* ``address_children``: a processor that forwards to children by name gets a node for each of several;
* ``insert_repartitions``: records whose key no longer decides their bucket go through a topic before they are grouped
  or joined; ways that need the same topic share it (``compiler.repartitions``);
* ``old_values``: who needs to know what a change replaces, and ``materialize``: whose rows are looked up
  (``compiler.tables``);
* ``split_aggregates``: what may be aggregated in parts is begun where it is read (``compiler.partial``);
* ``prune_columns``: sources read only what somebody needs, expressions that nobody uses are not computed.
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
    """Apply all rewritings; the result is checked anew after each."""
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
    """Tell each processor its children, and put a ``ChildNode`` before each of several.

    The node takes what is addressed to the child, before anything else is put between the two.
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
    """Check a rewritten topology, whose sources say what they read themselves."""
    if topology is before.topology:
        return before
    shapes = {
        source.topic: TopicShape(schema=layout.schema, key_columns=layout.key, scalar=layout.scalar)
        for source in topology.sources
        if (layout := before.layouts[source.name])
    }
    return check(topology, shapes)


def prune_columns(checked: CheckedTopology) -> Topology:
    """Leave out columns that no sink, function, key or expression needs."""
    needed = _needed_columns(checked)
    return Topology(tuple(_prune(node, checked, needed[node.name]) for node in checked.topology.nodes))


def _needed_columns(checked: CheckedTopology) -> dict[str, set[str]]:
    """Of each node's output, the columns that somebody needs."""
    needed: dict[str, set[str]] = {}
    for node in reversed(checked.topology.nodes):
        own = needed.setdefault(node.name, set())
        own.update(checked.layouts[node.name].key)
        for place, (parent, given) in enumerate(zip(node.parents, checked.inputs_of(node), strict=True)):
            needed.setdefault(parent, set()).update(_needed_of_input(node, place, given, own))
    return needed


def _needed_of_input(node: Node, place: int, given: Layout, wanted: set[str]) -> set[str]:
    """The columns of input number ``place`` that a node needs where ``wanted`` ones of what it gives are needed."""
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
        # Of a record without a value nothing is counted, but in windows that are not sliding it is.
        needs_value = node.window is None or isinstance(node.window, SlidingWindows)
        value = set(given.names) if given.scalar and needs_value else set[str]()
        return arguments | set(given.key) | value
    return set(given.names)


def _aggregates_columns(node: FoldNode | AggregateNode | PartialAggregateNode) -> bool:
    """Whether a node reads what its named aggregates name, and no more."""
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
    # A bare value says by being null that there is none.
    return found | ({given.value} if given.value is not None else set())


def _prune(node: Node, checked: CheckedTopology, needed: set[str]) -> Node:
    layout = checked.layouts[node.name]
    if isinstance(node, SourceNode):
        if layout.scalar or node.serdes is not None:
            # Such a topic has no other columns than these, so they stay where nobody looks at them.
            return replace(node, unread=frozenset(layout.names) - needed)
        columns = needed | ({node.timestamp} if node.timestamp is not None else set())
        if node.extractor is not None:
            columns = set(layout.names)
        schema = pa.schema([field for field in layout.schema if field.name in columns])
        return replace(node, schema=schema, key_columns=layout.key)
    if isinstance(node, MapValuesNode):
        return replace(node, columns=tuple(pair for pair in node.columns if pair[0] in needed))
    return node
