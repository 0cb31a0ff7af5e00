"""The topology, an immutable graph of nodes, checked without schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from millrace.topic_names import is_topic_name
from millrace_streams.errors import TopologyError
from millrace_streams.graph.describe import describe_graph
from millrace_streams.graph.diagram import diagram_of
from millrace_streams.graph.mermaid import mermaid
from millrace_streams.graph.nodes import (
    DeltaSinkNode,
    ForEachNode,
    Node,
    RepartitionNode,
    SourceNode,
    TopicSinkNode,
)
from millrace_streams.graph.processing import ProcessNode
from millrace_streams.graph.store_names import check_store_names
from millrace_streams.graph.svg import svg

DescriptionFormat: TypeAlias = Literal["text", "svg", "mermaid"]


@dataclass(frozen=True, eq=False)
class Topology:
    """A graph of nodes, parents before children, for a runner. Made by ``StreamsBuilder.build``.

    Raises ``TopologyError`` for nodes that do not form a topology. Such nodes have no source, no sink, duplicate names,
    unknown parents, or stores that Spark's state store cannot distinguish.
    """

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        """Check the graph."""
        names: set[str] = set()
        stores: set[str] = set()
        for node in self.nodes:
            self._check_node(node, names, stores)
            names.add(node.name)
            stores.update(node.stores)
        check_store_names(self.nodes)
        if not self.sources:
            raise TopologyError("the topology reads no topic: begin with builder.stream(topic)")
        if not self.sinks and not any(isinstance(node, ForEachNode | ProcessNode) for node in self.nodes):
            raise TopologyError("the topology has no result: end a stream or table with to_delta(table) or to(topic)")
        self._check_topics()
        tables = [sink.table for sink in self.sinks if isinstance(sink, DeltaSinkNode)]
        if len(tables) != len(set(tables)):
            raise TopologyError(f"two sinks write to the same Delta table, one of {sorted(tables)}: give each its own")

    def _check_node(self, node: Node, names: set[str], stores: set[str]) -> None:
        if node.name in names:
            raise TopologyError(f"{node.name}: the name is used twice; give one of the nodes another name")
        for parent in node.parents:
            if parent not in names:
                raise TopologyError(f"{node.name}: its parent {parent} is not a node before it")
        for store in node.stores:
            # Processors can share a store, and each of them names it.
            if store in stores and not isinstance(node, ProcessNode):
                raise TopologyError(f"{node.name}: the store {store} is used twice; name it with store=...")

    def _check_topics(self) -> None:
        """Refuse invalid topic names, and writes to a source topic, because its records would circulate forever."""
        read = {source.topic for source in self.sources}
        for node in self.nodes:
            if isinstance(node, SourceNode) or (isinstance(node, TopicSinkNode) and node.extractor is None):
                _check_topic(node.name, node.topic)
            if isinstance(node, TopicSinkNode | RepartitionNode) and node.topic in read:
                raise TopologyError(
                    f"{node.name}: the topology reads the topic {node.topic} that it writes, which is a "
                    "cycle: write another topic, or use through(topic) in place of the sink"
                )

    @cached_property
    def sources(self) -> tuple[SourceNode, ...]:
        """The sources."""
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @cached_property
    def sinks(self) -> tuple[TopicSinkNode | DeltaSinkNode, ...]:
        """The sinks to topics and Delta tables."""
        return tuple(node for node in self.nodes if isinstance(node, TopicSinkNode | DeltaSinkNode))

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """Names of the Delta tables that are written."""
        return tuple(sink.table for sink in self.sinks if isinstance(sink, DeltaSinkNode))

    @cached_property
    def stores(self) -> tuple[str, ...]:
        """Names of the state stores."""
        return tuple(dict.fromkeys(store for node in self.nodes for store in node.stores))

    def node(self, name: str) -> Node:
        """Return a node by name. Raises ``TopologyError`` if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise TopologyError(f"no node is named {name}; the nodes are {', '.join(node.name for node in self.nodes)}")

    def children(self, name: str) -> Iterator[Node]:
        """Return the children of a node, in order."""
        return (node for node in self.nodes if name in node.parents)

    def describe(self, format: DescriptionFormat = "text") -> str:
        """Describe the graph as ``text`` in the form of Kafka Streams' ``TopologyDescription``, or as a picture.

        ``svg`` is a picture to view, ``mermaid`` a flowchart for documents. Key columns are unknown here, so an
        aggregation after a change of key is in one sub-topology with its predecessors. ``explain`` shows where records
        are really repartitioned. Raises ``TopologyError`` for another format.
        """
        match format:
            case "text":
                return describe_graph(self.nodes)
            case "svg":
                return svg(diagram_of(self.nodes))
            case "mermaid":
                return mermaid(diagram_of(self.nodes))
        raise TopologyError(f"format={format!r}: describe as text, svg or mermaid")

    def _repr_svg_(self) -> str:
        """Return the picture, for notebooks."""
        return self.describe("svg")


def _check_topic(node: str, topic: object) -> None:
    if not (isinstance(topic, str) and is_topic_name(topic)):
        raise TopologyError(f"{node}: {topic!r} cannot be a topic's name: letters, digits, '.', '_' and '-', up to 249")
