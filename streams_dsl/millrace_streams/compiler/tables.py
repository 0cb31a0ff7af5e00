"""What tables must do for others: say what their changes replace, keep their rows, wait for their windows' grace.

The rules of old values are Kafka Streams': a grouping, a suppression and the outer side of a join ask for them, and
then every table above has to have them; a filter takes them where they are to be had, and is then quiet about rows that
never passed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from millrace_streams.compiler.check import CheckedTopology
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
from millrace_streams.windows import SessionWindows, SlidingWindows, TimeWindows, UnlimitedWindows

_ROW_BY_ROW = (TableFilterNode, TableMapNode, TableSelectNode, SuppressNode)


def old_values(checked: CheckedTopology) -> Topology:
    """Set ``sends_old`` on all tables whose consumers ask for it, and give a store to those that need one for it."""
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
    """The nodes that must send old values for the sake of this one."""
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
            # One that keeps its rows knows what it replaces.
            return parents if node.name in asked and store is None else set()
    return set()


def _offers_old(node: Node, nodes: dict[str, Node]) -> bool:
    """Whether a table has its old values anyway."""
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
        # Each change must say what it replaces, so that none may be left out.
        fields["emit"] = "every"
    return replace(node, **fields)


def materialize(checked: CheckedTopology) -> Topology:
    """Give every table that a join looks up a store with its rows."""
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
    """Joins read the kept table in place of the table itself."""
    tables = looked_up(node)
    return with_parents(node, tuple(renamed.get(name, name) if name in tables else name for name in node.parents))


def looked_up(node: Node) -> tuple[str, ...]:
    """The parents whose rows a node looks up."""
    match node:
        case TableTableJoinNode():
            return node.parents
        case StreamTableJoinNode() | AnswerNode():
            return (node.parents[1],)
        case ResponseJoinNode():
            return (node.parents[0],)
    return ()


def store_of(node: Node) -> str | None:
    """The store with a table's rows, if it keeps them."""
    return node.store if isinstance(node, TableNode) and not isinstance(node, SuppressNode) else None


def history_of(name: str, nodes: dict[str, Node]) -> int | None:
    """How long the table keeps versions, or the one whose rows it passes on; None if it has but one."""
    node = nodes[name]
    if isinstance(node, ToTableNode | MaterializeNode):
        return node.history_ms
    if isinstance(node, TableFilterNode | TableMapNode | TableSelectNode) and node.store is None:
        return history_of(node.parents[0], nodes)
    return None


def final_waits(checked: CheckedTopology) -> Topology:
    """Tell suppressions until a window closes how long that takes after its end."""
    nodes = {node.name: node for node in checked.topology.nodes}
    changed = [
        replace(node, wait_ms=_wait_after_end(node, nodes))
        if isinstance(node, SuppressNode) and node.final and node.wait_ms is None
        else node
        for node in checked.topology.nodes
    ]
    return Topology(tuple(changed))


def _wait_after_end(node: SuppressNode, nodes: dict[str, Node]) -> int:
    table = nodes[node.parents[0]]
    while isinstance(table, (*_ROW_BY_ROW, MaterializeNode)):
        table = nodes[table.parents[0]]
    window = table.window if isinstance(table, AggregateNode | FoldNode) else None
    match window:
        case TimeWindows() | SlidingWindows():
            return window.grace_ms
        case SessionWindows():
            return window.gap_ms + window.grace_ms
        case UnlimitedWindows():
            raise TopologyError(f"{node.name}: an unlimited window never closes: suppress until_time_limit(...)")
    raise TopologyError(
        f"{node.name}: the windows of {table.name} are not made here: suppress right after the aggregation, filters "
        "and map_values may stand between"
    )


def choose_emit(checked: CheckedTopology) -> Topology:
    """Aggregates that only Delta tables read may leave out what the same batch replaces: the table is the same."""
    changed: list[Node] = []
    for node in checked.topology.nodes:
        children = list(checked.topology.children(node.name))
        only_tables = bool(children) and all(isinstance(child, DeltaSinkNode) for child in children)
        if isinstance(node, AggregateNode) and node.emit is None:
            changed.append(replace(node, emit="last" if only_tables else "every"))
        else:
            changed.append(node)
    return Topology(tuple(changed))
