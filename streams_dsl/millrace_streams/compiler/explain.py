"""``explain``: a plan in words: what was pushed down, what runs where, what keeps state."""

from __future__ import annotations

from collections.abc import Iterator

from millrace_streams.compiler.plan import Plan
from millrace_streams.expressions import Expression
from millrace_streams.graph import (
    AggregateNode,
    DeltaSinkNode,
    FilterNode,
    MapFunctionNode,
    MapValuesNode,
    Node,
    SelectKeyNode,
    TopicSinkNode,
)
from millrace_streams.layout import WINDOW_START
from millrace_streams.steps.stateless import Operator


def explain(plan: Plan) -> str:
    """The plan as text, one step a line, top to bottom as records flow."""
    source = plan.source
    lines = [
        f"Read topic {source.topic}",
        f"  columns pushed down: {', '.join(plan.columns) or 'none'}",
        f"  event time: {source.timestamp or 'record timestamp'}",
        "Reader (in Arrow, per batch, before rows reach Spark)",
        *_operators(plan.reader),
        "Records move: " + ("no (bucket = source partition)" if not plan.repartitions else "yes"),
        *(f"  {move.node}: to the bucket of {', '.join(move.key)}" for move in plan.repartitions),
        f"Task (per bucket, in record order{', stateful: transformWithState' if plan.stateful else ', stateless'})",
        *_operators(plan.task),
        "Native Spark operators: none",
    ]
    return "\n".join(lines)


def _operators(operators: tuple[Operator, ...]) -> Iterator[str]:
    if not operators:
        yield "  nothing"
    for operator in operators:
        yield f"  {operator.node.name}: {_words(operator.node, operator)}"


def _words(node: Node, operator: Operator) -> str:
    match node:
        case FilterNode(predicate=predicate, negate=negate):
            how = repr(predicate) if isinstance(predicate, Expression) else f"Python {predicate}"
            return f"filter {'not ' if negate else ''}{how}"
        case MapValuesNode(columns=columns):
            return "columns " + ", ".join(_assignment(name, value) for name, value in columns)
        case MapFunctionNode(function=function):
            return f"Python {function}"
        case SelectKeyNode(columns=columns):
            return "key " + ", ".join(_assignment(name, value) for name, value in columns)
        case AggregateNode(aggregates=aggregates, window=window, store=store, emit=emit):
            results = ", ".join(f"{name}={aggregate!r}" for name, aggregate in aggregates)
            per = f"per {', '.join(operator.given.key)}" + (f" and window ({window})" if window is not None else "")
            return f"{results} {per}; store {store}, emit {emit}"
        case DeltaSinkNode(table=table) if operator.given.table:
            key = [*operator.given.key, *([WINDOW_START] if operator.given.windowed else [])]
            return f"upsert into Delta table {table} by {', '.join(key)}"
        case DeltaSinkNode(table=table):
            return f"append to Delta table {table}"
        case TopicSinkNode(topic=topic):
            return f"write to topic {topic}"
    return "updates of the table as a stream"


def _assignment(name: str, value: Expression) -> str:
    return name if repr(value) == name else f"{name}={value!r}"
