"""The topology as data: nodes, and the immutable graph that they form.

``nodes`` holds the kinds of node, ``topology`` the graph with its checks, ``describe`` its text.
"""

from millrace_streams.graph.nodes import (
    AggregateNode,
    DeltaSinkNode,
    Emit,
    FilterNode,
    MapFunctionNode,
    MapValuesNode,
    Node,
    SelectKeyNode,
    SinkNode,
    SourceNode,
    TopicSinkNode,
    ToStreamNode,
)
from millrace_streams.graph.topology import Topology

__all__ = [
    "AggregateNode",
    "DeltaSinkNode",
    "Emit",
    "FilterNode",
    "MapFunctionNode",
    "MapValuesNode",
    "Node",
    "SelectKeyNode",
    "SinkNode",
    "SourceNode",
    "ToStreamNode",
    "TopicSinkNode",
    "Topology",
]
