"""Third stage of the compiler: the physical plan for every runner.

A plan has two parts, the readers and the task.

*Readers* are the chains of stateless operators after each source. A reader ends before the first node that has state,
branches or ends. Readers run where the batches are decoded, before rows enter the JVM.

The *task* is the rest of the plan. The task runs per bucket, in record order, with state. A *stage* ends where records
move to another bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from millrace_streams.compiler.check import CheckedTopology, check, history_of
from millrace_streams.compiler.forks import forks_of
from millrace_streams.compiler.initializers import check_initializers
from millrace_streams.compiler.rewrite import rewrite
from millrace_streams.compiler.stream_time import advancing, in_order
from millrace_streams.compiler.tables import looked_up, store_of
from millrace_streams.graph import (
    AggregateNode,
    AnswerNode,
    DeltaSinkNode,
    GroupTableNode,
    Node,
    ProcessNode,
    RepartitionNode,
    SinkNode,
    SourceNode,
    SubscribeNode,
    TableFilterNode,
    TableTableJoinNode,
    TopicSinkNode,
    Topology,
)
from millrace_streams.graph.describe import subtopologies
from millrace_streams.layout import KEY, VALUE, Layout, TopicShape
from millrace_streams.payload_rows import PayloadRows
from millrace_streams.steps import STATELESS, Operator

Edge = tuple[str, str, int]
"""Parent, child, and number of the child's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """A repartition by ``key`` that ``node`` needs for its grouping."""

    node: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReader:
    """A source with the chain of operators that runs at its reading."""

    source: SourceNode
    layout: Layout
    operators: tuple[Operator, ...]

    @property
    def head(self) -> str:
        """The node whose output enters the task."""
        return self.operators[-1].node.name if self.operators else self.source.name

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read from the topic; key and value if values are payloads of rows."""
        serdes = self.source.serdes
        if serdes is not None and isinstance(serdes[1], PayloadRows):
            return (KEY, VALUE)
        return tuple(name for name in self.layout.names if name not in self.source.unread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Physical plan for a runner. ``layouts`` are those of the rewritten graph, by node.

    ``advancing`` has the repartitions whose records advance the stream time of each processor. ``forks`` numbers the
    edges of forks whose branches meet again: fork, branch, and number of branches.
    """

    topology: Topology
    layouts: Mapping[str, Layout]
    readers: tuple[SourceReader, ...]
    task: tuple[Operator, ...]
    advancing: Mapping[str, tuple[str, ...]]
    forks: Mapping[Edge, tuple[int, int, int]]
    repartitions: tuple[Repartition, ...]

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """The sinks."""
        return self.topology.sinks

    @property
    def outputs(self) -> tuple[SinkNode | RepartitionNode, ...]:
        """Nodes whose rows leave the topology: sinks, and visible repartition topics."""
        return tuple(node for node in self.topology.nodes if is_output(node))

    @property
    def repartition_numbers(self) -> dict[str, int]:
        """Numbers of the repartitions, as in the marks of repartitioned rows."""
        moves = [each.node.name for each in self.task if isinstance(each.node, RepartitionNode)]
        return {name: place for place, name in enumerate(moves, start=1)}

    @property
    def subtopologies(self) -> dict[str, int]:
        """Number of each node's sub-topology. A stage may hold parts of one that are connected only in another
        stage.
        """
        return {node.name: number for number, part in enumerate(subtopologies(self.topology.nodes)) for node in part}

    @property
    def stateful(self) -> bool:
        """True if the task has state."""
        return any(operator.node.stores for operator in self.task)

    @property
    def carries_headers(self) -> bool:
        """True if the plan carries record headers, because topics receive them and processors can access them."""
        looks = any(isinstance(node, ProcessNode) for node in self.topology.nodes)
        return looks or any(not isinstance(node, DeltaSinkNode) for node in self.outputs)

    def deletes(self, sink: SinkNode) -> bool:
        """Return whether rows of a sink's table can be deleted; those of a directly preceding named aggregation never
        are.
        """
        return self.layouts[sink.name].table and not isinstance(self.topology.node(sink.parents[0]), AggregateNode)


def is_output(node: Node) -> TypeGuard[SinkNode | RepartitionNode]:
    """Return whether a node's rows leave the topology."""
    return isinstance(node, TopicSinkNode | DeltaSinkNode) or (isinstance(node, RepartitionNode) and node.visible)


def compile_topology(topology: Topology, shapes: Mapping[str, TopicShape]) -> Plan:
    """Compile a topology: check, rewrite, plan. ``shapes`` has the topics that do not declare their schema.

    Raises ``TopologyError`` for an invalid topology and ``UnsupportedTopologyError`` for an unsupported one.
    """
    checked = check(topology, shapes)
    check_initializers(checked)
    return plan(rewrite(checked))


def plan(checked: CheckedTopology) -> Plan:
    """Cut a checked graph into readers and task."""
    topology = checked.topology
    operators = {node.name: _operator(node, checked) for node in topology.nodes if not isinstance(node, SourceNode)}
    readers = tuple(
        SourceReader(
            source=source,
            layout=checked.layouts[source.name],
            operators=_reader_chain(topology, source, operators),
        )
        for source in topology.sources
    )
    read = {operator.node.name for reader in readers for operator in reader.operators}
    advances = advancing(topology.nodes)
    ordered = (node.name for node in in_order(topology.nodes, advances))
    task = tuple(operators[name] for name in ordered if name in operators and name not in read)
    return Plan(
        topology=topology,
        layouts=checked.layouts,
        readers=readers,
        task=task,
        advancing=advances,
        forks=forks_of([operator.node for operator in task]),
        repartitions=tuple(_repartitions(checked)),
    )


def _operator(node: Node, checked: CheckedTopology) -> Operator:
    nodes = {each.name: each for each in checked.topology.nodes}
    tables = looked_up(node)
    # These nodes treat changes that are not the newest of their key differently (KIP-914).
    minds_versions = isinstance(
        node, GroupTableNode | TableTableJoinNode | SubscribeNode | AnswerNode | TableFilterNode
    )
    return Operator(
        node=node,
        inputs=checked.inputs_of(node),
        result=checked.layouts[node.name],
        reads=tuple(store_of(nodes[parent]) if parent in tables else None for parent in node.parents),
        versioned=tuple(minds_versions and history_of(parent, nodes) is not None for parent in node.parents),
    )


def _reader_chain(topology: Topology, source: SourceNode, operators: Mapping[str, Operator]) -> tuple[Operator, ...]:
    chain: list[Operator] = []
    head = source.name
    if any(isinstance(node, ProcessNode) for node in topology.nodes):
        # Records that a filter drops advance a processor's stream time too, so they must reach its task.
        return ()
    while True:
        children = list(topology.children(head))
        if len(children) != 1 or not isinstance(children[0], STATELESS) or len(children[0].parents) != 1:
            return tuple(chain)
        chain.append(operators[children[0].name])
        head = children[0].name


def _repartitions(checked: CheckedTopology) -> list[Repartition]:
    """Return the repartitions, by the node that needs each."""
    found = []
    for node in checked.topology.nodes:
        if isinstance(node, RepartitionNode):
            children = [child.name for child in checked.topology.children(node.name)]
            found.append(Repartition(node=children[0] if children else node.name, key=checked.layouts[node.name].key))
    return found
