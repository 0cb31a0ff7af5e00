"""Texts of nodes for ``explain``.

Expressions are shown in full, Python functions by name.
"""

from __future__ import annotations

from functools import singledispatch

from millrace_streams.expressions import Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import (
    AggregateNode,
    AnswerNode,
    BranchNode,
    ChildNode,
    DeltaSinkNode,
    FilterNode,
    FoldNode,
    ForEachNode,
    GroupTableNode,
    JoinColumns,
    MapFunctionNode,
    MapNode,
    MapValuesNode,
    MaterializeNode,
    MergeNode,
    Node,
    PartialAggregateNode,
    PeekNode,
    ProcessNode,
    RepartitionNode,
    ResponseJoinNode,
    SelectKeyFunctionNode,
    SelectKeyNode,
    StreamStreamJoinNode,
    StreamTableJoinNode,
    SubscribeNode,
    SuppressNode,
    TableFilterNode,
    TableFoldNode,
    TableMapNode,
    TableNode,
    TableSelectNode,
    TableTableJoinNode,
    TopicSinkNode,
    ToStreamNode,
    ToTableNode,
    UnsentNode,
    WindowCopyNode,
)
from millrace_streams.steps import Operator


@singledispatch
def text_of(node: Node, operator: Operator) -> str:
    """Return the text of a node, with its stores."""
    raise TypeError(f"{node.name}: {type(node).__name__} has no text in the plan")


@text_of.register(FilterNode)
@text_of.register(TableFilterNode)
def _(node: FilterNode | TableFilterNode, operator: Operator) -> str:
    return f"filter {'not ' if node.negate else ''}{_function(node.predicate)}{_kept(node)}"


@text_of.register
def _(node: BranchNode, operator: Operator) -> str:
    return f"branch {_function(node.predicate) if node.predicate is not None else 'of all other records'}"


@text_of.register(MapValuesNode)
@text_of.register(TableSelectNode)
def _(node: MapValuesNode | TableSelectNode, operator: Operator) -> str:
    return f"columns {_assignments(node.columns)}{_kept(node)}"


@text_of.register(MapFunctionNode)
@text_of.register(TableMapNode)
def _(node: MapFunctionNode | TableMapNode, operator: Operator) -> str:
    return f"values by {_function(node.function)}{_kept(node)}"


@text_of.register
def _(node: MapNode, operator: Operator) -> str:
    return f"keys and values by {_function(node.function)}"


@text_of.register
def _(node: SelectKeyNode, operator: Operator) -> str:
    return f"key {_assignments(node.columns)}"


@text_of.register
def _(node: SelectKeyFunctionNode, operator: Operator) -> str:
    return f"key by {_function(node.function)}"


@text_of.register(PeekNode)
@text_of.register(ForEachNode)
def _(node: PeekNode | ForEachNode, operator: Operator) -> str:
    return f"call {_function(node.function)}"


@text_of.register
def _(node: MergeNode, operator: Operator) -> str:
    return f"merge {_parents(node)}"


@text_of.register
def _(node: RepartitionNode, operator: Operator) -> str:
    return f"through topic {node.topic}{_produced(node)} to the bucket of {', '.join(operator.result.key)}"


@text_of.register
def _(node: TopicSinkNode, operator: Operator) -> str:
    return f"write to topic {node.destination}{_produced(node)}"


@text_of.register
def _(node: DeltaSinkNode, operator: Operator) -> str:
    if operator.given.table:
        return f"upsert into Delta table {node.table} by {', '.join(operator.given.row_key)}"
    return f"append to Delta table {node.table}"


@text_of.register
def _(node: ProcessNode, operator: Operator) -> str:
    reads = f"; reads {', '.join(node.tables)}" if node.tables else ""
    return f"Python processor{_stores(node)}{reads}"


@text_of.register
def _(node: ChildNode, operator: Operator) -> str:
    return f"records that {node.parents[0]} forwards to {node.child}"


@text_of.register
def _(node: PartialAggregateNode, operator: Operator) -> str:
    return "partial aggregates of each batch, input of the aggregation"


@text_of.register
def _(node: AggregateNode, operator: Operator) -> str:
    return f"{_named(node)} per {_group(node, operator)}; store {node.store}, emit {node.emit}{_old(node)}"


@text_of.register
def _(node: FoldNode, operator: Operator) -> str:
    closing = ", on close" if node.on_close else _emitted(node)
    what = _named(node) if node.aggregates else "Python aggregate"
    return f"{what} per {_group(node, operator)}{closing}{_kept(node)}"


@text_of.register
def _(node: TableFoldNode, operator: Operator) -> str:
    what = _named(node) if node.aggregates else "Python adder and subtractor"
    return f"{what} per {', '.join(operator.given.key)}{_emitted(node)}{_kept(node)}"


@text_of.register
def _(node: ToTableNode, operator: Operator) -> str:
    versions = f", versions kept for {node.history_ms} ms" if node.history_ms is not None else ""
    return f"changes of a table{versions}{_kept(node)}"


@text_of.register
def _(node: MaterializeNode, operator: Operator) -> str:
    return f"look-up table of {_parents(node)}{_kept(node)}"


@text_of.register
def _(node: UnsentNode, operator: Operator) -> str:
    return f"open windows of {_parents(node)} and rows that expire, for its copies"


@text_of.register
def _(node: WindowCopyNode, operator: Operator) -> str:
    return f"look-up table of {node.parents[0]}, whose rows expire as there{_kept(node)}"


@text_of.register
def _(node: GroupTableNode, operator: Operator) -> str:
    by = _function(node.selector) if node.selector is not None else _assignments(node.columns)
    return f"rows grouped by {by}: subtract the old row, add the new one"


@text_of.register
def _(node: SuppressNode, operator: Operator) -> str:
    return f"hold back until {node.wait_ms} ms after {'the window' if node.final else 'the first change'}{_kept(node)}"


@text_of.register
def _(node: ToStreamNode, operator: Operator) -> str:
    return "updates of the table as a stream"


@text_of.register
def _(node: StreamStreamJoinNode, operator: Operator) -> str:
    return f"{node.kind} join of {_parents(node)}, {node.window}, {_function(node.joiner)}{_kept(node)}"


@text_of.register
def _(node: StreamTableJoinNode, operator: Operator) -> str:
    by = f" by {_function(node.selector)}" if node.selector is not None else ""
    wait = f", records wait {node.grace_ms} ms" if node.grace_ms is not None else ""
    return f"{node.kind} join of {_parents(node)}{by}{wait}, {_function(node.joiner)}{_kept(node)}"


@text_of.register
def _(node: TableTableJoinNode, operator: Operator) -> str:
    return f"{node.kind} join of {_parents(node)}, {_function(node.joiner)}{_kept(node)}"


@text_of.register
def _(node: SubscribeNode, operator: Operator) -> str:
    return f"{node.kind} join by foreign key, {_function(node.extractor)}: request the right row"


@text_of.register
def _(node: AnswerNode, operator: Operator) -> str:
    return f"respond with the right row{_kept(node)}"


@text_of.register
def _(node: ResponseJoinNode, operator: Operator) -> str:
    return f"{node.kind} join with the response, {_function(node.joiner)}{_kept(node)}"


def _named(node: AggregateNode | FoldNode | TableFoldNode) -> str:
    return ", ".join(f"{name}={aggregate!r}" for name, aggregate in node.aggregates)


def _group(node: AggregateNode | FoldNode, operator: Operator) -> str:
    windows = f" and window ({node.window})" if node.window is not None else ""
    return f"{', '.join(operator.given.key)}{windows}"


def _parents(node: Node) -> str:
    return " and ".join(node.parents)


def _kept(node: Node) -> str:
    return f"{_old(node)}{_stores(node)}"


def _old(node: Node) -> str:
    return ", with old values" if isinstance(node, TableNode) and node.sends_old else ""


def _emitted(node: FoldNode | TableFoldNode) -> str:
    return ", emit last" if node.emit == "last" else ""


def _stores(node: Node) -> str:
    return f"; store {', '.join(node.stores)}" if node.stores else ""


def _produced(node: RepartitionNode | TopicSinkNode) -> str:
    told = {"key": node.produced.key, "value": node.produced.value}
    words = [f"{what} as {serde}" for what, serde in told.items() if serde is not None]
    return f" ({', '.join(words)})" if words else ""


def _function(function: Expression | PythonFunction | JoinColumns) -> str:
    if isinstance(function, JoinColumns):
        kept = ["all of the left side"] if function.keep else []
        computed = [_assignments(function.columns)] if function.columns else []
        return f"columns {', '.join([*kept, *computed])}"
    return repr(function) if isinstance(function, Expression) else f"Python {function}"


def _assignments(columns: tuple[tuple[str, Expression], ...]) -> str:
    return ", ".join(name if repr(value) == name else f"{name}={value!r}" for name, value in columns)
