"""``Topology.describe``: the graph as text in the form of Kafka Streams' ``TopologyDescription``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millrace_streams.graph.nodes import DeltaSinkNode, Node, RepartitionNode, SourceNode, TopicSinkNode


def describe_graph(nodes: Sequence[Node]) -> str:
    """Return the text of the sub-topologies with their nodes and edges."""
    lines = ["Topologies:"]
    everywhere = _global_nodes(nodes)
    for number, part in enumerate(subtopologies(nodes)):
        is_global = all(node.name in everywhere for node in part)
        lines.append(f"   Sub-topology: {number}{' for global store (will not generate tasks)' if is_global else ''}")
        for node in part:
            lines.extend(_describe_node(node, [child.name for child in nodes if node.name in child.parents]))
        lines.append("")
    return "\n".join(lines)


def subtopologies(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the parts of the graph that are connected without a topic, each in the order of ``nodes``.

    A global table is a part of its own, because no task reads its topic.
    """
    found: list[list[Node]] = []
    everywhere = _global_nodes(nodes)
    for node in nodes:
        # A repartition topic is written in one sub-topology and read in another.
        parents = () if isinstance(node, RepartitionNode) else node.parents
        if node.name not in everywhere:
            parents = tuple(parent for parent in parents if parent not in everywhere)
        joined = [piece for piece in found if any(member.name in parents for member in piece)]
        merged = [member for piece in joined for member in piece] + [node]
        found = [piece for piece in found if piece not in joined] + [merged]
    order = {node.name: place for place, node in enumerate(nodes)}
    for piece in found:
        piece.sort(key=lambda node: order[node.name])
    return sorted(found, key=lambda piece: order[piece[0].name])


def _global_nodes(nodes: Sequence[Node]) -> set[str]:
    """Return the names of the nodes of global tables."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, SourceNode):
            is_global = node.broadcast
        else:
            is_global = bool(node.parents) and found.issuperset(node.parents)
        if is_global:
            found.add(node.name)
    return found


def _describe_node(node: Node, children: list[str]) -> Iterator[str]:
    match node:
        case SourceNode():
            yield f"    Source: {node.name} (topics: [{node.topic}])"
        case RepartitionNode():
            yield f"    Source: {node.name} (topics: [{node.topic}])"
        case TopicSinkNode() if node.extractor is not None:
            yield f"    Sink: {node.name} (extractor class: {node.extractor})"
        case TopicSinkNode():
            yield f"    Sink: {node.name} (topic: {node.topic})"
        case DeltaSinkNode():
            yield f"    Sink: {node.name} (delta table: {node.table})"
        case _:
            yield f"    Processor: {node.name} (stores: [{', '.join(node.stores)}])"
    if not isinstance(node, TopicSinkNode | DeltaSinkNode):
        yield f"      --> {', '.join(children) or 'none'}"
    if not isinstance(node, SourceNode):
        yield f"      <-- {', '.join(node.parents)}"
