"""``explain``: a plan in words: what was pushed down, what runs where, what keeps state."""

from __future__ import annotations

from collections.abc import Iterator

from millrace_streams.compiler.plan import Plan, SourceReader
from millrace_streams.compiler.stages import Send, Stage, stages_of, stateless
from millrace_streams.expressions import Expression
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import (
    AggregateNode,
    BranchNode,
    DeltaSinkNode,
    FilterNode,
    FoldNode,
    MapFunctionNode,
    MapValuesNode,
    MergeNode,
    Node,
    PartialAggregateNode,
    ProcessNode,
    RepartitionNode,
    SelectKeyNode,
    StreamStreamJoinNode,
    StreamTableJoinNode,
    SuppressNode,
    TableFilterNode,
    TableFoldNode,
    TableNode,
    TableTableJoinNode,
    TopicSinkNode,
    ToStreamNode,
)
from millrace_streams.steps import Operator


def explain(plan: Plan) -> str:
    """The plan as text, one step a line, top to bottom as records flow.

    Raises ``UnsupportedTopologyError`` for a plan that cannot be cut into stages, which the test driver alone can run.
    """
    stages = stages_of(plan)
    moves = [send for stage in (*stages.prologues, *stages.stages) for send in stage.sends if send.way == "key"]
    lines = [
        *(line for pair in zip(plan.readers, stages.prologues, strict=True) for line in _reader(*pair)),
        "Records move: " + ("no (bucket = source partition)" if not moves else "yes"),
        *(f"  {send.node}: to the bucket of {_names(send)} in stage {send.stage}" for send in moves),
        *(line for stage in stages.stages for line in _stage(stage, several=bool(moves))),
        "Native Spark operators: none",
    ]
    return "\n".join(lines)


def _reader(reader: SourceReader, prologue: Stage) -> Iterator[str]:
    source = reader.source
    yield f"Read topic {source.topic}{' (all of it, in every bucket)' if source.broadcast else ''}"
    yield f"  columns pushed down: {', '.join(reader.columns) or 'none'}"
    extracted = f"Python {source.extractor}" if source.extractor is not None else "record timestamp"
    yield f"  event time: {source.timestamp or extracted}"
    yield "Reader (in Arrow, per batch, before rows reach Spark)"
    yield from _operators((*reader.operators, *prologue.operators))


def _stage(stage: Stage, *, several: bool) -> Iterator[str]:
    stateful = not all(stateless(operator) for operator in stage.operators)
    name = f"Stage {stage.number}" if several else "Task"
    keeps = "stateful" if stateful else "stateless"
    yield f"{name} (per bucket, in record order, {keeps}: transformWithState)"
    yield from _operators(stage.operators)


def _names(send: Send) -> str:
    return ", ".join(field.name for field in send.key) or "no key"


def _operators(operators: tuple[Operator, ...]) -> Iterator[str]:
    if not operators:
        yield "  nothing"
    for operator in operators:
        yield f"  {operator.node.name}: {_words(operator.node, operator)}"


def _words(node: Node, operator: Operator) -> str:
    match node:
        case PartialAggregateNode():
            return "partial aggregates of what is read together, for the aggregation"
        case AggregateNode():
            return _aggregate_words(node, operator)
        case FoldNode() | TableFoldNode() | StreamStreamJoinNode() | StreamTableJoinNode() | TableTableJoinNode():
            return _stateful_words(node, operator)
        case DeltaSinkNode(table=table) if operator.given.table:
            return f"upsert into Delta table {table} by {', '.join(operator.given.row_key)}"
        case DeltaSinkNode(table=table):
            return f"append to Delta table {table}"
        case TopicSinkNode(topic=topic):
            return f"write to topic {topic}"
        case RepartitionNode(topic=topic):
            return f"through topic {topic} to the bucket of {', '.join(operator.result.key)}"
        case ToStreamNode():
            return "updates of the table as a stream"
        case ProcessNode():
            return f"Python processor{_stores(node)}"
        case SuppressNode(final=final, wait_ms=wait_ms):
            return f"hold back until {wait_ms} ms after {'the window' if final else 'the first change'}{_stores(node)}"
        case TableNode():
            return f"{_stateless_words(node)}{_old(node)}{_stores(node)}"
    return _stateless_words(node)


def _stateless_words(node: Node) -> str:
    match node:
        case FilterNode(predicate=predicate, negate=negate) | TableFilterNode(predicate=predicate, negate=negate):
            return f"filter {'not ' if negate else ''}{_function(predicate)}"
        case BranchNode(predicate=predicate):
            return f"branch {_function(predicate) if predicate is not None else 'of the rest'}"
        case MapValuesNode(columns=columns):
            return "columns " + ", ".join(_assignment(name, value) for name, value in columns)
        case MapFunctionNode(function=function):
            return f"Python {function}"
        case SelectKeyNode(columns=columns):
            return "key " + ", ".join(_assignment(name, value) for name, value in columns)
        case MergeNode(parents=parents):
            return f"{' and '.join(parents)} together"
    called: PythonFunction | None = getattr(node, "function", None)
    what = node.prefix.partition("-")[2].lower().replace("-", " ")
    return f"{what}, Python {called}" if called is not None else what


def _aggregate_words(node: AggregateNode, operator: Operator) -> str:
    results = ", ".join(f"{name}={aggregate!r}" for name, aggregate in node.aggregates)
    per = f"per {', '.join(operator.given.key)}" + (f" and window ({node.window})" if node.window is not None else "")
    return f"{results} {per}; store {node.store}, emit {node.emit}{_old(node)}"


def _stateful_words(node: Node, operator: Operator) -> str:
    match node:
        case FoldNode(window=window, on_close=on_close):
            windows = f" and window ({window})" if window is not None else ""
            words = f"Python aggregate per {', '.join(operator.given.key)}{windows}{', on close' if on_close else ''}"
        case TableFoldNode():
            words = f"Python adder and subtractor per {', '.join(operator.given.key)}"
        case StreamStreamJoinNode(kind=kind, joiner=joiner, window=window):
            words = f"{kind} join of {' and '.join(node.parents)}, {window}, Python {joiner}"
        case StreamTableJoinNode(kind=kind, joiner=joiner) | TableTableJoinNode(kind=kind, joiner=joiner):
            words = f"{kind} join of {' and '.join(node.parents)}, Python {joiner}"
        case _:
            words = node.prefix
    return f"{words}{_old(node)}{_stores(node)}"


def _old(node: Node) -> str:
    return ", with old values" if isinstance(node, TableNode) and node.sends_old else ""


def _stores(node: Node) -> str:
    return f"; store {', '.join(node.stores)}" if node.stores else ""


def _function(predicate: Expression | PythonFunction) -> str:
    return repr(predicate) if isinstance(predicate, Expression) else f"Python {predicate}"


def _assignment(name: str, value: Expression) -> str:
    return name if repr(value) == name else f"{name}={value!r}"
