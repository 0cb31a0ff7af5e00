"""The topology as data: nodes, and the immutable graph that they form.

``nodes`` holds the base, sources, sinks and stateless nodes, ``tables``, ``aggregations``, ``joins`` and ``processing``
the others, ``topology`` the graph with its checks, ``describe`` its text, ``diagram`` its boxes and edges, which
``svg`` and ``mermaid`` draw.
"""

from millrace_streams.graph.aggregations import (
    AggregateNode,
    Emit,
    Fold,
    FoldNode,
    PartialAggregateNode,
    TableFoldNode,
)
from millrace_streams.graph.joins import (
    AnswerNode,
    JoinColumns,
    Joiner,
    JoinKind,
    ResponseJoinNode,
    StreamStreamJoinNode,
    StreamTableJoinNode,
    SubscribeNode,
    TableTableJoinNode,
)
from millrace_streams.graph.nodes import (
    BranchNode,
    DeltaSinkNode,
    FilterNode,
    ForEachNode,
    MapFunctionNode,
    MapNode,
    MapValuesNode,
    MergeNode,
    Node,
    PeekNode,
    Produced,
    RepartitionNode,
    SelectKeyFunctionNode,
    SelectKeyNode,
    SinkNode,
    SourceNode,
    TopicSinkNode,
)
from millrace_streams.graph.processing import ProcessNode
from millrace_streams.graph.tables import (
    GroupTableNode,
    MaterializeNode,
    SuppressNode,
    TableFilterNode,
    TableMapNode,
    TableNode,
    TableSelectNode,
    ToStreamNode,
    ToTableNode,
)
from millrace_streams.graph.topology import Topology

__all__ = [
    "AggregateNode",
    "AnswerNode",
    "BranchNode",
    "DeltaSinkNode",
    "Emit",
    "FilterNode",
    "Fold",
    "FoldNode",
    "ForEachNode",
    "GroupTableNode",
    "JoinColumns",
    "JoinKind",
    "Joiner",
    "MapFunctionNode",
    "MapNode",
    "MapValuesNode",
    "MaterializeNode",
    "MergeNode",
    "Node",
    "PartialAggregateNode",
    "PeekNode",
    "ProcessNode",
    "Produced",
    "RepartitionNode",
    "ResponseJoinNode",
    "SelectKeyFunctionNode",
    "SelectKeyNode",
    "SinkNode",
    "SourceNode",
    "StreamStreamJoinNode",
    "StreamTableJoinNode",
    "SubscribeNode",
    "SuppressNode",
    "TableFilterNode",
    "TableFoldNode",
    "TableMapNode",
    "TableNode",
    "TableSelectNode",
    "TableTableJoinNode",
    "ToStreamNode",
    "ToTableNode",
    "TopicSinkNode",
    "Topology",
]
