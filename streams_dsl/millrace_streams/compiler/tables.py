"""Requirements on tables from other nodes: old values, stored rows, grace periods.

The rules of old values are those of Kafka Streams. A grouping, a suppression and the outer side of a join need them,
and then every table upstream must send them. A filter uses old values if they are available, and then emits nothing for
rows that never passed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millrace_streams.compiler.check import CheckedTopology, history_of
from millrace_streams.compiler.repartitions import with_parents
from millrace_streams.errors import TopologyError
from millrace_streams.graph import (
    AggregateNode,
    AnswerNode,
    DeltaSinkNode,
    FoldNode,
    GroupTableNode,
    MaterializeNode,
    Node,
    ProcessNode,
    ResponseJoinNode,
    StreamTableJoinNode,
    SubscribeNode,
    SuppressNode,
    TableFilterNode,
    TableFoldNode,
    TableMapNode,
    TableNode,
    TableSelectNode,
    TableTableJoinNode,
    Topology,
    ToTableNode,
)
from millrace_streams.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows, Windows


def old_values(checked: CheckedTopology) -> Topology:
    """Set ``sends_old`` on all tables whose consumers need it, and add a store to tables that need one for it."""
    nodes = {node.name: node for node in checked.topology.nodes}
    asked: set[str] = set()
    for node in reversed(checked.topology.nodes):
        asked.update(_asks(node, nodes, asked))
    changed = {}
    for name in asked:
        node = nodes[name]
        if isinstance(node, TableNode):
            changed[name] = _sending_old(node)
    return Topology(tuple(changed.get(node.name, node) for node in checked.topology.nodes))


def _asks(node: Node, nodes: dict[str, Node], asked: set[str]) -> set[str]:
    """Return the nodes that must send old values for this node."""
    parents = set(node.parents)
    match node:
        case GroupTableNode() | SuppressNode() | SubscribeNode():
            return parents
        case TableTableJoinNode(kind=kind):
            if node.name in asked or kind == "outer":
                return parents
            return {node.parents[0]} if kind == "left" else set()
        case TableFilterNode(store=store):
            if _offers_old(nodes[node.parents[0]], nodes) or (node.name in asked and store is None):
                return parents | {node.name}
        case TableMapNode(store=store) | TableSelectNode(store=store):
            # A node that stores its rows knows their old values.
            return parents if node.name in asked and store is None else set()
    return set()


def _offers_old(node: Node, nodes: dict[str, Node]) -> bool:
    """Return whether a table knows its old values anyway."""
    match node:
        case ToTableNode(store=store) | ResponseJoinNode(store=store):
            return store is not None
        case AggregateNode() | FoldNode() | TableFoldNode() | TableTableJoinNode():
            return True
        case TableFilterNode(store=store) | TableMapNode(store=store) | TableSelectNode(store=store):
            return store is not None or _offers_old(nodes[node.parents[0]], nodes)
        case SuppressNode():
            return _offers_old(nodes[node.parents[0]], nodes)
    return False


def _sending_old(node: TableNode) -> TableNode:
    fields: dict[str, Any] = {"sends_old": True}
    if isinstance(node, ToTableNode | ResponseJoinNode) and node.store is None:
        fields["store"] = f"{node.name}-STATE-STORE"
    if isinstance(node, AggregateNode | FoldNode | TableFoldNode):
        # Each change must carry the value that it replaces, so none can be omitted.
        fields["emit"] = "every"
    return replace(node, **fields)


def materialize(checked: CheckedTopology) -> Topology:
    """Add a store to every table that a join looks up."""
    nodes: list[Node] = list(checked.topology.nodes)
    by_name = {node.name: node for node in nodes}
    renamed: dict[str, str] = {}
    for node in checked.topology.nodes:
        for parent in looked_up(node):
            table = by_name[parent]
            if parent in renamed or store_of(table) is not None:
                continue
            if isinstance(table, ToTableNode):
                by_name[parent] = replace(table, store=f"{parent}-STATE-STORE")
                nodes[[each.name for each in nodes].index(parent)] = by_name[parent]
                continue
            kept = MaterializeNode(
                name=f"{parent}-materialize",
                parents=(parent,),
                store=f"{parent}-STATE-STORE",
                sends_old=isinstance(table, TableNode) and table.sends_old,
                history_ms=history_of(parent, by_name),
            )
            renamed[parent] = kept.name
            nodes.insert([each.name for each in nodes].index(parent) + 1, kept)
    return Topology(tuple(_reading_kept(node, renamed) for node in nodes))


def _reading_kept(node: Node, renamed: dict[str, str]) -> Node:
    """Return the node with stored tables as its parents in place of the original ones."""
    tables = looked_up(node)
    return with_parents(node, tuple(renamed.get(name, name) if name in tables else name for name in node.parents))


def looked_up(node: Node) -> tuple[str, ...]:
    """Return the parents whose rows a node looks up."""
    match node:
        case TableTableJoinNode():
            return node.parents
        case StreamTableJoinNode() | AnswerNode():
            return (node.parents[1],)
        case ResponseJoinNode():
            return (node.parents[0],)
        case ProcessNode():
            return node.parents[1:]
    return ()


def store_of(node: Node) -> str | None:
    """Return the store of a table's rows, or None."""
    return node.store if isinstance(node, TableNode) and not isinstance(node, SuppressNode) else None


def final_waits(checked: CheckedTopology) -> Topology:
    """Set the wait after the window's end on suppressions until a window closes."""
    nodes = {node.name: node for node in checked.topology.nodes}
    changed = [
        replace(node, wait_ms=_wait_after_end(node, nodes))
        if isinstance(node, SuppressNode) and node.final and node.wait_ms is None
        else node
        for node in checked.topology.nodes
    ]
    return Topology(tuple(changed))


def _wait_after_end(node: SuppressNode, nodes: dict[str, Node]) -> int:
    """Return the longest wait of the windowed aggregations above, of which every input needs one.

    In Kafka Streams a table that a stream's join or a processor reads is no parent in the graph. Source:
    ``GraphGraceSearchUtil.findAndVerifyWindowGrace``.
    """
    waits: list[int] = []
    pending, seen = list(node.parents), set(node.parents)
    while pending:
        above = nodes[pending.pop()]
        if isinstance(above, AggregateNode | FoldNode) and above.window is not None:
            waits.append(_wait_of(node, above.window))
        elif above.parents:
            parents = above.parents[:1] if isinstance(above, StreamTableJoinNode | ProcessNode) else above.parents
            pending += [parent for parent in parents if parent not in seen]
            seen.update(parents)
        else:
            raise TopologyError(
                f"{node.name}: the windows of records of {above.name} are not created here, so no grace tells when "
                "they close: put a windowed aggregation between the two, or suppress until_time_limit(...)"
            )
    return max(waits)


def _wait_of(node: SuppressNode, window: Windows) -> int:
    match window:
        case TimeWindows() | SlidingWindows():
            return window.grace_ms
        case SessionWindows():
            return window.gap_ms + window.grace_ms
        case UnlimitedWindows():
            raise TopologyError(f"{node.name}: an unlimited window never closes: suppress until_time_limit(...)")


def choose_emit(checked: CheckedTopology) -> Topology:
    """Set ``emit="last"`` on aggregations that only Delta tables read, because the table's content is the same."""
    changed: list[Node] = []
    for node in checked.topology.nodes:
        children = list(checked.topology.children(node.name))
        only_tables = bool(children) and all(isinstance(child, DeltaSinkNode) for child in children)
        if isinstance(node, AggregateNode) and node.emit is None:
            changed.append(replace(node, emit="last" if only_tables else "every"))
        else:
            changed.append(node)
    return Topology(tuple(changed))
