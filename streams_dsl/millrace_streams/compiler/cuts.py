"""Where records must move: to the bucket of their key, before they are grouped, joined or read as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from millrace_streams.compiler.check import CheckedTopology
from millrace_streams.errors import TopologyError
from millrace_streams.graph import (
    AggregateNode,
    FoldNode,
    GroupTableNode,
    Node,
    RepartitionNode,
    StreamStreamJoinNode,
    StreamTableJoinNode,
    TableFoldNode,
    TableTableJoinNode,
    Topology,
    ToTableNode,
)
from millrace_streams.layout import Layout

_NEED_BUCKETS: Final = (
    AggregateNode,
    FoldNode,
    TableFoldNode,
    ToTableNode,
    StreamTableJoinNode,
    StreamStreamJoinNode,
    TableTableJoinNode,
)
"""The nodes that find a key's records in one bucket."""


def cut(checked: CheckedTopology) -> Topology:
    """Put a ``RepartitionNode`` before each node whose input's key does not decide the bucket."""
    nodes: list[Node] = []
    topics: dict[tuple[str, bool], str] = {}
    for node in checked.topology.nodes:
        parents = list(node.parents)
        for place, given in enumerate(checked.inputs_of(node)):
            if not _moves(node, place, given):
                continue
            keep_null_keys = _keeps_null_keys(node, place)
            identity = (parents[place], keep_null_keys)
            if identity not in topics:
                _check_order(node, checked, parents[place])
                topics[identity] = f"{parents[place]}-repartition{'-nulls' if keep_null_keys else ''}"
                nodes.append(
                    RepartitionNode(
                        name=topics[identity],
                        parents=(parents[place],),
                        topic=topics[identity],
                        keep_null_keys=keep_null_keys,
                    )
                )
            parents[place] = topics[identity]
        nodes.append(with_parents(node, tuple(parents)))
    return Topology(tuple(nodes))


def with_parents(node: Node, parents: tuple[str, ...]) -> Node:
    """The node with other parents."""
    return node if parents == node.parents else replace(node, parents=parents)


def decided(layout: Layout) -> bool:
    """Whether rows of one key are in one bucket."""
    return layout.bucket_columns is not None and set(layout.bucket_columns) <= set(layout.key)


def _moves(node: Node, place: int, given: Layout) -> bool:
    if not isinstance(node, _NEED_BUCKETS) or decided(given):
        return False
    # A global table is in every bucket: neither it nor the stream has to move.
    return not (isinstance(node, StreamTableJoinNode) and (node.selector is not None or place == 1))


def _keeps_null_keys(node: Node, place: int) -> bool:
    """Outer sides of a join keep what has no key (KIP-962)."""
    if isinstance(node, StreamTableJoinNode):
        return node.kind == "left"
    if isinstance(node, StreamStreamJoinNode):
        return node.kind == "outer" or (node.kind == "left" and place == 0)
    return False


def _check_order(node: Node, checked: CheckedTopology, parent: str) -> None:
    """A table cannot move by itself: its changes would overtake one another."""
    if checked.layouts[parent].table and not isinstance(checked.topology.node(parent), GroupTableNode):
        raise TopologyError(
            f"{node.name}: the rows of {parent} are in the buckets of another key: group_by() them first"
        )
