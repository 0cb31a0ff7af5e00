"""Repartitions whose records advance the stream time of processors.

In Kafka Streams, each record that a task reads advances the stream time of its punctuations. That includes a record of
a repartition topic that never reaches the processor. So a processor runs after all repartitions that its sub-topology
reads, except those of its own results.

Source: Kafka Streams' ``StreamTask.maybePunctuateStreamTime``.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter

from millrace_streams.graph import Node, ProcessNode, RepartitionNode
from millrace_streams.graph.describe import subtopologies

Before = Mapping[str, Collection[str]]
"""The nodes that must run before a node, by its name."""


def advancing(nodes: Sequence[Node]) -> dict[str, tuple[str, ...]]:
    """Return for each processor the repartitions of its sub-topology that do not depend on it.

    ``nodes`` are those of a topology, parents first. If two processors depend on each other through repartitions, only
    the first one has those of the other.
    """
    before = {node.name: set(node.parents) for node in nodes}
    found: dict[str, tuple[str, ...]] = {}
    for part in subtopologies(nodes):
        moves = [node.name for node in part if isinstance(node, RepartitionNode)]
        for node in part:
            if isinstance(node, ProcessNode):
                found[node.name] = tuple(move for move in moves if node.name not in _needed(move, before))
                before[node.name].update(found[node.name])
    return found


def in_order(nodes: Sequence[Node], later: Before) -> Iterator[Node]:
    """Yield nodes after their parents and after the nodes that ``later`` has for them, otherwise in their order."""
    place = {node.name: number for number, node in enumerate(nodes)}
    sorter = TopologicalSorter({node.name: {*node.parents, *later.get(node.name, ())} for node in nodes})
    sorter.prepare()
    ready: list[int] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, place[name])
        node = nodes[heapq.heappop(ready)]
        yield node
        sorter.done(node.name)


def _needed(name: str, before: Before) -> set[str]:
    """Return all nodes that must run before a node."""
    found: set[str] = set()
    pending = [name]
    while pending:
        for each in before[pending.pop()]:
            if each not in found:
                found.add(each)
                pending.append(each)
    return found
