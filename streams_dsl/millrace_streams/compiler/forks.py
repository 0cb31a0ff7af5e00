"""Forks of the graph whose branches meet again.

The order of records must be kept across such branches.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace_streams.graph import Node, RepartitionNode, TopicSinkNode


def forks_of(nodes: Sequence[Node]) -> dict[tuple[str, str, int], tuple[int, int, int]]:
    """Number the edges (parent, child, input) of forks: the fork, the branch, and the number of branches.

    Branches count from 1, because 0 comes before all of them (``Flow.before_branches``). ``nodes`` are those of a task,
    parents first. Sinks of one topic meet in the topic. A sink whose topics a function names may meet every other sink.
    """
    any_topic = any(isinstance(node, TopicSinkNode) and node.extractor is not None for node in nodes)
    reached = {node.name: _meetings(node, any_topic=any_topic) for node in nodes}
    for node in reversed(nodes):
        for child in nodes:
            if node.name in child.parents and not isinstance(child, RepartitionNode):
                reached[node.name] |= reached[child.name]
    numbered: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    forks = 0
    for parent in dict.fromkeys(name for node in nodes for name in node.parents):
        edges = [(node, place) for node in nodes for place, name in enumerate(node.parents) if name == parent]
        if not _meet_again([reached[node.name] for node, _ in edges]):
            continue
        for way, (node, place) in enumerate(edges, start=1):
            numbered[parent, node.name, place] = (forks, way, len(edges) + 1)
        forks += 1
    return numbered


def _meetings(node: Node, *, any_topic: bool) -> set[str]:
    """Return where rows of a node may meet other rows: in the node, or in the topic that it writes."""
    if isinstance(node, TopicSinkNode | RepartitionNode):
        return {node.name, "topics" if any_topic else f"topic {node.topic}"}
    return {node.name}


def _meet_again(reached: list[set[str]]) -> bool:
    seen: set[str] = set()
    for each in reached:
        if seen & each:
            return True
        seen |= each
    return False
