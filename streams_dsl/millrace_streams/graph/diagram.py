"""The graph as boxes and edges, for any renderer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from millrace_streams.graph.describe import subtopologies
from millrace_streams.graph.nodes import DeltaSinkNode, Node, RepartitionNode, SourceNode, TopicSinkNode

BoxKind: TypeAlias = Literal["topic", "node", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node of the topology, or a topic or Delta table outside. ``part`` is a node's sub-topology.

    ``lines`` are its name and, for a node, its stores.
    """

    kind: BoxKind
    lines: tuple[str, ...]
    part: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagram:
    """Boxes of a diagram and the edges between them.

    An edge is a pair of box numbers (from, to). Boxes and edges are in the order of the nodes.
    """

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]


def diagram_of(nodes: Sequence[Node]) -> Diagram:
    """Return the boxes and edges of a graph, whose nodes are sorted parents first."""
    part_of = {node.name: number for number, part in enumerate(subtopologies(nodes)) for node in part}
    places: dict[tuple[BoxKind, str], int] = {}
    boxes: list[Box] = []
    edges: list[tuple[int, int]] = []

    def place_of(kind: BoxKind, name: str, box: Box) -> int:
        if (kind, name) not in places:
            places[kind, name] = len(boxes)
            boxes.append(box)
        return places[kind, name]

    for node in nodes:
        before = [places["node", parent] for parent in node.parents]
        if isinstance(node, SourceNode | RepartitionNode):
            topic = place_of("topic", node.topic, Box(kind="topic", lines=(node.topic,)))
            edges += [(parent, topic) for parent in before]
            before = [topic]
        stores = tuple(f"store {store}" for store in node.stores)
        here = place_of("node", node.name, Box(kind="node", lines=(node.name, *stores), part=part_of[node.name]))
        edges += [(parent, here) for parent in before]
        if isinstance(node, TopicSinkNode):
            edges.append((here, place_of("topic", node.destination, Box(kind="topic", lines=(node.destination,)))))
        elif isinstance(node, DeltaSinkNode):
            edges.append((here, place_of("table", node.table, Box(kind="table", lines=(node.table,)))))
    return Diagram(boxes=tuple(boxes), edges=tuple(edges))
