"""Descriptions of stores as data, for reading and comparing them.

A store's *meaning* must stay the same for its state to be valid. Other windows, aggregates or keys under the same name
would silently give wrong results. So would other foreign keys or serdes, or the table of a bucket as a global table.
The code of Python functions is not part of the meaning, because code cannot be compared.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl
import pyarrow as pa

from millrace_streams.aggregates import Aggregate
from millrace_streams.compiler import Stages
from millrace_streams.compiler.stage_numbers import StageNumbers
from millrace_streams.expressions import Expression
from millrace_streams.graph import (
    AggregateNode,
    AnswerNode,
    FoldNode,
    GroupTableNode,
    Node,
    SelectKeyNode,
    StreamStreamJoinNode,
    SubscribeNode,
    TableFoldNode,
    Topology,
)
from millrace_streams.layout import Layout
from millrace_streams.steps import Operator
from millrace_streams.steps.operator import AnyStoreSpec
from millrace_streams.steps.store import StoreSpec
from millrace_streams.steps.task import Steps
from millrace_streams.stores import StoreSpec as ObjectStoreSpec
from millrace_streams.stores.forms import form_of
from millrace_streams.windows import FOREVER_MS, SessionWindows, SlidingWindows, TimeWindows, length_of

_EARLIER: Final = {
    "key_value of records": "records of records",
    "key_value of subscriptions": "subscriptions of subscriptions",
}
"""Kinds in manifests of earlier versions whose state is readable, with the name of today.

The records of a stream-stream join were lists by key, which did not expire. The subscriptions of a foreign-key join
were one entry for each right key.
"""

FOREIGN_KEY: Final = "foreign key"
"""Part of the meaning that manifests of earlier versions lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDescription:
    """Description of a store. ``layout`` has the columns of its keys and values in their readable form.

    ``window_size_ms`` is the size of windows whose end is not stored; None without such windows. ``results`` are name
    and kind of the aggregates in a store of accumulators. With ``everywhere`` each bucket holds the complete store.
    """

    name: str
    node: str
    stage: int
    spec: AnyStoreSpec
    layout: Layout
    meaning: Mapping[str, str]
    window_size_ms: int | None = None
    results: tuple[tuple[str, str], ...] = ()
    everywhere: bool = False

    @property
    def kind(self) -> str:
        """``key_value``, ``window``, ``session``, ``versioned``; ``buffer`` for the private data of an operator."""
        if isinstance(self.spec, StoreSpec):
            return "key_value" if self.spec.window is None else "window"
        return self.spec.kind if self.spec.form == "row" else "buffer"

    @property
    def windowed(self) -> bool:
        """True if the keys of the store are ``Windowed``."""
        return self.kind in ("window", "session") or self.layout.windowed

    @property
    def columns(self) -> dict[str, pa.Field]:
        """Columns of keys and values, with the serdes of those whose type does not identify it."""
        other = None if isinstance(self.spec, StoreSpec) else self.spec.other
        layout = self.layout if isinstance(self.spec, StoreSpec) else self.spec.layout
        return {column.name: column for each in (other, layout) if each is not None for column in each.schema}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "name": self.name,
            "node": self.node,
            "stage": self.stage,
            "meaning": dict(self.meaning),
            "spec": _spec_to_json(self.spec),
            "layout": _layout_to_json(self.layout),
            "window_size_ms": self.window_size_ms,
            "results": [list(result) for result in self.results],
            "everywhere": self.everywhere,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StoreDescription:
        """Parse the output of ``to_json``. Raises ``KeyError`` and ``ValueError`` for anything else."""
        return cls(
            name=found["name"],
            node=found["node"],
            stage=found["stage"],
            meaning={what: _EARLIER.get(text, text) for what, text in found["meaning"].items()},
            spec=_spec_from_json(found["name"], found["spec"]),
            layout=_layout_from_json(found["layout"]),
            window_size_ms=found["window_size_ms"],
            results=tuple((name, kind) for name, kind in found["results"]),
            everywhere=found["everywhere"],
        )


def describe_stores(stages: Stages) -> list[StoreDescription]:
    """Return the stores of all stages; a store that exists in several stages is described once."""
    everywhere = StageNumbers.of(stages.plan).everywhere
    found: dict[str, StoreDescription] = {}
    for stage in stages.stages:
        steps = Steps.of(stage.operators, stages.forks, stages.plan.repartition_numbers, stages.plan.subtopologies)
        for operator in stage.operators:
            step = steps.by_node.get(operator.node.name)
            for spec in step.stores if step is not None else ():
                described = describe_store(
                    spec, operator, stages.plan.topology, stage=stage.number, everywhere=everywhere
                )
                found.setdefault(spec.name, described)
    return list(found.values())


def describe_store(
    spec: AnyStoreSpec,
    operator: Operator,
    topology: Topology,
    *,
    stage: int = 0,
    everywhere: frozenset[str] = frozenset(),
) -> StoreDescription:
    """Describe one store of an operator. ``everywhere`` are the nodes whose stores each bucket holds completely."""
    node = operator.node
    aggregates = _accumulated(spec, operator)
    return StoreDescription(
        name=spec.name,
        node=node.name,
        stage=stage,
        spec=spec,
        layout=operator.result if isinstance(spec, StoreSpec) or aggregates else spec.layout,
        meaning=dict(_meaning(spec, operator, topology, stage)),
        window_size_ms=length_of(node.window) if isinstance(node, FoldNode | AggregateNode) else None,
        results=tuple((name, aggregate.kind) for name, aggregate in aggregates),
        everywhere=node.name in everywhere,
    )


def _accumulated(spec: AnyStoreSpec, operator: Operator) -> tuple[tuple[str, Aggregate], ...]:
    """Return the aggregates of a store that holds accumulators instead of results."""
    node = operator.node
    if isinstance(node, AggregateNode):
        return node.aggregates
    holds_results = isinstance(spec, StoreSpec) or spec.layout == operator.result
    return node.aggregates if isinstance(node, FoldNode | TableFoldNode) and not holds_results else ()


def _meaning(spec: AnyStoreSpec, operator: Operator, topology: Topology, stage: int) -> Iterator[tuple[str, str]]:
    node = operator.node
    columns = spec.schema if isinstance(spec, StoreSpec) else form_of(spec).frame([]).schema
    yield "kind", "columns" if isinstance(spec, StoreSpec) else f"{spec.kind} of {spec.form}"
    yield "columns", ", ".join(f"{name} {data_type}" for name, data_type in columns.items())
    yield "stage", str(stage)
    if windows := _windows(node):
        yield "windows", windows
    if aggregates := _accumulated(spec, operator):
        yield "aggregates", ", ".join(f"{name}={aggregate!r}" for name, aggregate in aggregates)
    if keys := sorted(set(_keys(node, topology))):
        yield "key", "; ".join(keys)
    if isinstance(node, AnswerNode):
        yield FOREIGN_KEY, _foreign_key(node, topology)


def _windows(node: Node) -> str:
    """Return the windows of entries, without grace and retention, which may change."""
    if isinstance(node, StreamStreamJoinNode):
        return f"right {node.window.before_ms} ms before to {node.window.after_ms} ms after left"
    match node.window if isinstance(node, FoldNode | AggregateNode) else None:
        case TimeWindows(size_ms=size_ms, advance_ms=advance_ms):
            return f"{size_ms} ms every {advance_ms} ms"
        case SlidingWindows(difference_ms=difference_ms):
            return f"sliding {difference_ms} ms"
        case SessionWindows(gap_ms=gap_ms):
            return f"sessions with a gap of {gap_ms} ms"
        case None:
            return ""
        case other:
            return str(other)


def _keys(node: Node, topology: Topology) -> Iterator[str]:
    """Yield the expressions of the keys of a node's records."""
    nodes = {each.name: each for each in topology.nodes}
    # A stage's copy of a table has the table itself as parent.
    for parent in (nodes[name] for name in node.parents if name in nodes):
        if isinstance(parent, SelectKeyNode | GroupTableNode) and parent.columns:
            yield ", ".join(f"{name}={value!r}" for name, value in parent.columns)
        else:
            yield from _keys(parent, topology)


def _foreign_key(node: AnswerNode, topology: Topology) -> str:
    """Return the expression of the foreign keys under which a store has subscriptions."""
    nodes = {each.name: each for each in topology.nodes}
    repartition = nodes[node.parents[0]]
    subscribe = nodes[repartition.parents[0]]
    assert isinstance(subscribe, SubscribeNode)
    return repr(subscribe.extractor) if isinstance(subscribe.extractor, Expression) else "a function"


def _spec_to_json(spec: AnyStoreSpec) -> dict[str, Any]:
    if isinstance(spec, StoreSpec):
        return {
            "columns": _schema_to_text(pl.DataFrame(schema=spec.schema).to_arrow().schema),
            "key": list(spec.key),
            "window": spec.window,
            "advance_ms": spec.advance_ms,
            "retention_ms": spec.retention_ms,
        }
    return {
        "kind": spec.kind,
        "form": spec.form,
        "layout": _layout_to_json(spec.layout),
        "other": None if spec.other is None else _layout_to_json(spec.other),
        "retention_ms": spec.retention_ms,
    }


def _spec_from_json(name: str, found: Mapping[str, Any]) -> AnyStoreSpec:
    if "columns" in found:
        empty = pl.DataFrame(_schema_from_text(found["columns"]).empty_table())
        return StoreSpec(
            name=name,
            schema=empty.schema,
            key=tuple(found["key"]),
            window=found["window"],
            advance_ms=found["advance_ms"],
            retention_ms=found["retention_ms"],
        )
    today = _EARLIER.get(f"{found['kind']} of {found['form']}")
    return ObjectStoreSpec(
        name=name,
        kind=found["kind"] if today is None else found["form"],
        form=found["form"],
        layout=_layout_from_json(found["layout"]),
        other=None if found["other"] is None else _layout_from_json(found["other"]),
        retention_ms=found["retention_ms"] if today is None else FOREVER_MS,
    )


def _layout_to_json(layout: Layout) -> dict[str, Any]:
    return {
        "schema": _schema_to_text(layout.schema),
        "key": list(layout.key),
        "value": layout.value,
        "table": layout.table,
        "windowed": layout.windowed,
        "sessions": layout.sessions,
    }


def _layout_from_json(found: Mapping[str, Any]) -> Layout:
    return Layout(
        schema=_schema_from_text(found["schema"]),
        key=tuple(found["key"]),
        bucket_columns=None,
        value=found["value"],
        table=found["table"],
        windowed=found["windowed"],
        sessions=found["sessions"],
    )


def _schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
