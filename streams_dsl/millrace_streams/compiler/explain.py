"""``explain``: a plan as text, with pushdown, stages and state."""

from __future__ import annotations

from collections.abc import Iterator

from millrace_streams.compiler.node_texts import text_of
from millrace_streams.compiler.plan import Plan, SourceReader
from millrace_streams.compiler.stages import Stage, stages_of, stateless
from millrace_streams.steps import Operator


def explain(plan: Plan) -> str:
    """Return the plan as text, one step per line, from top to bottom in the direction of the records.

    Raises ``UnsupportedTopologyError`` for a plan that cannot be cut into stages; only the test driver can run it.
    """
    stages = stages_of(plan)
    moves = [send for stage in (*stages.prologues, *stages.stages) for send in stage.sends if send.way == "key"]
    lines = [
        *(line for pair in zip(plan.readers, stages.prologues, strict=True) for line in _reader(*pair)),
        "Records move: " + ("no (bucket = source partition)" if not moves else "yes"),
        *(
            f"  {send.node}: to the bucket of {', '.join(column.name for column in send.key) or 'no key'}"
            f" in stage {send.stage}"
            for send in moves
        ),
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


def _operators(operators: tuple[Operator, ...]) -> Iterator[str]:
    if not operators:
        yield "  nothing"
    for operator in operators:
        yield f"  {operator.node.name}: {text_of(operator.node, operator)}"
