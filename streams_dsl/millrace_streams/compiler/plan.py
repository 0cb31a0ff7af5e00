"""Third stage of the compiler: the rewritten graph becomes a physical plan that every runner can carry out.

A plan has two parts. The *reader* is the chain of stateless operators right after the source, up to the first that
keeps state, branches or ends: it runs where the batches are decoded, before anything crosses into the JVM. The *task*
is all the rest: it runs per bucket, in record order, with state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace_streams.compiler.check import CheckedTopology, check
from millrace_streams.compiler.rewrite import rewrite
from millrace_streams.errors import UnsupportedTopologyError
from millrace_streams.graph import AggregateNode, DeltaSinkNode, SinkNode, SourceNode, Topology
from millrace_streams.layout import Layout, TopicShape
from millrace_streams.steps.stateless import STATELESS, Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """Where records must move to the bucket of their new key before ``node`` can group them."""

    node: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a runner carries out. ``layouts`` are those of the rewritten graph, by node.

    ``head`` is the node whose output the task reads: the last of the reader's, or the source.
    """

    topology: Topology
    source: SourceNode
    layouts: Mapping[str, Layout]
    reader: tuple[Operator, ...]
    task: tuple[Operator, ...]
    repartitions: tuple[Repartition, ...]

    @property
    def head(self) -> str:
        """The node whose output enters the task."""
        return self.reader[-1].node.name if self.reader else self.source.name

    @property
    def head_layout(self) -> Layout:
        """The layout of what enters the task."""
        return self.layouts[self.head]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read from the topic."""
        return tuple(self.layouts[self.source.name].names)

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """Where results go."""
        return self.topology.sinks

    @property
    def delta_sinks(self) -> tuple[DeltaSinkNode, ...]:
        """The Delta tables among the sinks."""
        return tuple(sink for sink in self.topology.sinks if isinstance(sink, DeltaSinkNode))

    @property
    def stateful(self) -> bool:
        """Whether the task keeps state."""
        return any(isinstance(operator.node, AggregateNode) for operator in self.task)

    def sink_layout(self, sink: SinkNode) -> Layout:
        """The layout of what goes into a sink."""
        return self.layouts[sink.name]


def compile_topology(topology: Topology, shapes: Mapping[str, TopicShape]) -> Plan:
    """Compile: check, rewrite, plan. ``shapes``: of the topics that do not declare their schema.

    Raises ``TopologyError`` for what is wrong, ``UnsupportedTopologyError`` for what no runner can do yet.
    """
    return plan(rewrite(check(topology, shapes)))


def plan(checked: CheckedTopology) -> Plan:
    """Cut a checked graph into reader and task. Raises ``UnsupportedTopologyError``."""
    topology = checked.topology
    source, *more = topology.sources
    if more:
        raise UnsupportedTopologyError(
            f"{more[0].name}: a topology with a second source ({more[0].topic}) cannot be run yet: build one topology "
            "per topic"
        )
    operators = [
        Operator(node=node, given=checked.input_of(node), result=checked.layouts[node.name])
        for node in topology.nodes
        if node is not source
    ]
    reader = _reader_chain(topology, source, operators)
    return Plan(
        topology=topology,
        source=source,
        layouts=checked.layouts,
        reader=reader,
        task=tuple(operator for operator in operators if operator not in reader),
        repartitions=tuple(_repartitions(operators)),
    )


def _reader_chain(topology: Topology, source: SourceNode, operators: list[Operator]) -> tuple[Operator, ...]:
    by_name = {operator.node.name: operator for operator in operators}
    chain: list[Operator] = []
    head = source.name
    while True:
        children = [node for node in topology.children(head) if isinstance(node, STATELESS)]
        if len(children) != 1 or len(list(topology.children(head))) != 1:
            return tuple(chain)
        chain.append(by_name[children[0].name])
        head = children[0].name


def _repartitions(operators: list[Operator]) -> list[Repartition]:
    """The aggregations whose key does not contain what decides the bucket."""
    return [
        Repartition(node=operator.node.name, key=operator.given.key)
        for operator in operators
        if isinstance(operator.node, AggregateNode)
        and (operator.given.bucket_columns is None or not set(operator.given.bucket_columns) <= set(operator.given.key))
    ]
