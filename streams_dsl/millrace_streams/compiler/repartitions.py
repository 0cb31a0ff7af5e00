"""Repartitions that a topology needs.

Records move to the bucket of their key before a node that needs all records of a key.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from millrace_streams.compiler.check import CheckedTopology
from millrace_streams.compiler.layouts import layout_of
from millrace_streams.errors import TopologyError
from millrace_streams.graph import (
    AggregateNode,
    FoldNode,
    GroupTableNode,
    Node,
    RepartitionNode,
    ResponseJoinNode,
    SourceNode,
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
"""Nodes that need all records of a key in one bucket."""


def insert_repartitions(checked: CheckedTopology) -> Topology:
    """Insert a ``RepartitionNode`` before each node whose input key does not determine the bucket.

    Rows after an inserted node are in the buckets of their key, so layouts are determined again along the way.
    """
    inserter = _RepartitionInserter(checked)
    before_outer = _before_outer_joins(checked.topology)
    for node in checked.topology.nodes:
        if isinstance(node, RepartitionNode) and node.name in before_outer:
            node = replace(node, keep_null_keys=True)
        parents = [inserter.repartitioned(node, place, parent) for place, parent in enumerate(node.parents)]
        inserter.add(with_parents(node, tuple(parents)))
    return Topology(tuple(inserter.nodes))


class _RepartitionInserter:
    """The nodes so far, including inserted ones, with their layouts."""

    def __init__(self, checked: CheckedTopology) -> None:
        self.nodes: list[Node] = []
        self._checked = checked
        self._layouts: dict[str, Layout] = {}

    def add(self, node: Node) -> None:
        """Add a node whose parents have been added."""
        given = tuple(self._layouts[parent] for parent in node.parents)
        is_source = isinstance(node, SourceNode)
        self._layouts[node.name] = self._checked.layouts[node.name] if is_source else layout_of(node, given)
        self.nodes.append(node)

    def repartitioned(self, node: Node, place: int, parent: str) -> str:
        """Return the node that delivers a parent's rows where ``node`` needs them: the parent, or a repartition
        of it.
        """
        if not _needs_repartition(node, place, self._layouts[parent]):
            return parent
        keep_null_keys = _keeps_null_keys(node, place)
        topic = f"{parent}-repartition{'-nulls' if keep_null_keys else ''}"
        if topic not in self._layouts:
            checked = self._checked
            if checked.layouts[parent].table and not isinstance(checked.topology.node(parent), GroupTableNode):
                # Repartitioned changes of a table would overtake each other.
                raise TopologyError(
                    f"{node.name}: the rows of {parent} are in the buckets of another key: group_by() them first"
                )
            self.add(RepartitionNode(name=topic, parents=(parent,), topic=topic, keep_null_keys=keep_null_keys))
        return topic


def with_parents(node: Node, parents: tuple[str, ...]) -> Node:
    """Return the node with other parents."""
    return node if parents == node.parents else replace(node, parents=parents)


def decided(layout: Layout) -> bool:
    """Return whether rows of one key are in one bucket.

    A row with nulls in all bucket columns may still have a key if the key has more columns.
    """
    buckets, key = set(layout.bucket_columns or ()), set(layout.key)
    if not buckets or not buckets <= key:
        return False
    return buckets == key or not layout.spreads_nulls


def _needs_repartition(node: Node, place: int, given: Layout) -> bool:
    if not isinstance(node, _NEED_BUCKETS) or decided(given):
        return False
    # A global table is in every bucket, so neither the table nor the stream moves.
    return not (isinstance(node, StreamTableJoinNode) and (node.selector is not None or place == 1))


def _before_outer_joins(topology: Topology) -> set[str]:
    """Return the nodes before a join with an outer side, for which repartitions keep records without a key."""
    found: set[str] = set()
    for node in reversed(topology.nodes):
        is_left = isinstance(node, ResponseJoinNode) and node.kind == "left"
        if node.name in found or is_left or any(_keeps_null_keys(node, place) for place in range(len(node.parents))):
            found.update(node.parents)
    return found


def _keeps_null_keys(node: Node, place: int) -> bool:
    """Return whether records without a key are kept, for the outer sides of a join (KIP-962)."""
    if isinstance(node, StreamTableJoinNode):
        return node.kind == "left"
    if isinstance(node, StreamStreamJoinNode):
        return node.kind == "outer" or (node.kind == "left" and place == 0)
    return False
