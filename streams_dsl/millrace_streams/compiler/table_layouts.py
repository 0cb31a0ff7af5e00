"""Output layouts of nodes on tables, groups and foreign-key joins."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from millrace_streams.compiler.layouts import (
    check_alike,
    check_predicate,
    computed_layout,
    fields_of,
    layout_of,
    window_fields,
    with_joined,
    with_key,
    with_key_columns,
    with_value,
)
from millrace_streams.errors import TopologyError
from millrace_streams.expressions import Expression
from millrace_streams.frames.evaluation import arrow_type
from millrace_streams.graph import (
    AggregateNode,
    AnswerNode,
    FoldNode,
    GroupTableNode,
    MaterializeNode,
    Node,
    PartialAggregateNode,
    ResponseJoinNode,
    SubscribeNode,
    SuppressNode,
    TableFilterNode,
    TableFoldNode,
    TableMapNode,
    TableSelectNode,
    TableTableJoinNode,
    ToStreamNode,
    ToTableNode,
)
from millrace_streams.layout import ANSWER, ASKING, KEY, RESERVED_PREFIX, WINDOW_COLUMNS, Layout
from millrace_streams.steps.accumulators import result_fields
from millrace_streams.steps.batch import TIMESTAMP
from millrace_streams.steps.lifting import Lifting
from millrace_streams.steps.partial_aggregate import RECORDS, RUN
from millrace_streams.windows import SessionWindows, Windows


@layout_of.register
def _(node: ToTableNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = given
    if stream.table:
        raise TopologyError(f"{node.name}: this is already a table: leave to_table() out")
    if not stream.key:
        raise TopologyError(f"{node.name}: the rows of a table need a key: select_key(column) first, or key_columns=")
    return replace(stream, table=True, spreads_nulls=False)


@layout_of.register(MaterializeNode)
@layout_of.register(SuppressNode)
@layout_of.register(TableFilterNode)
def _(node: MaterializeNode | SuppressNode | TableFilterNode, given: tuple[Layout, ...]) -> Layout:
    [table] = _needs_tables(node, given)
    if isinstance(node, TableFilterNode):
        check_predicate(node, table, node.predicate)
    if isinstance(node, SuppressNode) and node.final and not table.windowed:
        raise TopologyError(
            f"{node.name}: the table has no windows that could close: suppress until_time_limit(...), or windowed_by()"
        )
    return table


@layout_of.register
def _(node: TableMapNode, given: tuple[Layout, ...]) -> Layout:
    return with_value(node, _needs_tables(node, given)[0], node.serde)


@layout_of.register
def _(node: TableSelectNode, given: tuple[Layout, ...]) -> Layout:
    return computed_layout(node, _needs_tables(node, given)[0], node.columns, keep=node.keep)


@layout_of.register
def _(node: ToStreamNode, given: tuple[Layout, ...]) -> Layout:
    [table] = given
    if not table.table:
        raise TopologyError(f"{node.name}: this is already a stream: leave to_stream() out")
    return replace(table, table=False)


@layout_of.register
def _(node: GroupTableNode, given: tuple[Layout, ...]) -> Layout:
    [table] = _needs_tables(node, given)
    if node.selector is None:
        return replace(with_key_columns(node, table, node.columns), bucket_columns=None)
    return with_value(node, with_key(node, table, node.key_serde), node.serde)


@layout_of.register
def _(node: TableFoldNode, given: tuple[Layout, ...]) -> Layout:
    [table] = _needs_tables(node, given)
    return _named(node, table, None) if node.aggregates else with_value(node, table, node.serde)


@layout_of.register
def _(node: PartialAggregateNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = given
    lifting = Lifting(node.name, node.aggregates, node.window, stream.schema, stream.key)
    computed = {name: kind for name, kind in lifting.state_columns.items() if name not in (*stream.key, TIMESTAMP)}
    fields = [pa.field(name, arrow_type(kind)) for name, kind in computed.items()]
    numbers = [pa.field(name, pa.int64()) for name in (RECORDS, RUN)]
    schema = pa.schema([*(stream.schema.field(name) for name in stream.key), *fields, *numbers])
    buckets = stream.bucket_columns
    return Layout(schema=schema, key=stream.key, bucket_columns=buckets, spreads_nulls=stream.spreads_nulls)


@layout_of.register
def _(node: AggregateNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = given
    if node.records is not None:
        stream = replace(stream, schema=node.records)
    _check_groups(node, given, windows=node.window is not None)
    return _named(node, stream, node.window)


@layout_of.register
def _(node: FoldNode, given: tuple[Layout, ...]) -> Layout:
    _check_groups(node, given, windows=node.window is not None)
    first = given[0]
    for other in given[1:]:
        check_alike(node, first, other)
    if node.aggregates:
        return _named(node, first, node.window)
    valued = with_value(node, first, node.serde)
    results = [valued.schema.field(name) for name in valued.value_columns]
    if not results:
        raise TopologyError(
            f"{node.name}: the column {', '.join(valued.key)} is both key and value: give the key another name, such "
            f"as group_by(k=col({valued.key[0]!r}))"
        )
    return _aggregated(first, results, node.window, bare=valued.scalar)


@layout_of.register
def _(node: TableTableJoinNode, given: tuple[Layout, ...]) -> Layout:
    left, right = _needs_tables(node, given)
    check_alike(node, left, right)
    return with_joined(node, left, right, node.joiner, node.serde)


@layout_of.register
def _(node: SubscribeNode, given: tuple[Layout, ...]) -> Layout:
    [left] = _needs_tables(node, given)
    if isinstance(node.extractor, Expression):
        [key] = fields_of(node, left, ((KEY, node.extractor),))
    else:
        key = with_key(node, left, node.key_serde).schema.field(KEY)
    # A subscription carries the key columns of its left row.
    asking = [left.schema.field(name).with_name(f"{ASKING}{name}") for name in left.key_columns]
    return Layout(schema=pa.schema([key, *asking]), key=(KEY,), bucket_columns=None)


@layout_of.register
def _(node: AnswerNode, given: tuple[Layout, ...]) -> Layout:
    asked, right = given
    if not right.table:
        raise TopologyError(f"{node.name}: {node.parents[1]} is not a table: to_table() first")
    wanted, found = asked.schema.field(KEY).type, [right.schema.field(name).type for name in right.key]
    if right.windowed or found != [wanted]:
        raise TopologyError(
            f"{node.name}: the foreign key is {wanted}, but the key of {node.parents[1]} is "
            f"{'windowed ' if right.windowed else ''}{', '.join(map(str, found))}: give the type of the foreign key, "
            "foreign_key_type='long', and let the right table have a key of one column"
        )
    columns = [right.schema.field(name).with_name(f"{ANSWER}{name}") for name in right.value_columns]
    value = f"{ANSWER}{right.value}" if right.scalar else None
    return Layout(schema=pa.schema([*asked.schema, *columns]), key=asked.key, bucket_columns=None, value=value)


@layout_of.register
def _(node: ResponseJoinNode, given: tuple[Layout, ...]) -> Layout:
    left, answers = given
    return with_joined(node, left, answers.answered, node.joiner, node.serde)


def _needs_tables(node: Node, given: tuple[Layout, ...]) -> tuple[Layout, ...]:
    for layout, parent in zip(given, node.parents, strict=True):
        if not layout.table:
            raise TopologyError(f"{node.name}: {parent} is a stream, but a table is needed: to_table() first")
    return given


def _check_groups(node: Node, given: tuple[Layout, ...], *, windows: bool) -> None:
    for layout, parent in zip(given, node.parents, strict=True):
        if layout.table:
            raise TopologyError(f"{node.name}: aggregate needs a stream, but {parent} is a table: to_stream() first")
        if not layout.key:
            raise TopologyError(
                f"{node.name}: the records have no key: group_by(column) first, or give the topic key columns"
            )
        if layout.windowed and windows:
            raise TopologyError(f"{node.name}: the key of {parent} has a window already: select_key(...) without it")


def _named(node: AggregateNode | FoldNode | TableFoldNode, given: Layout, window: Windows | None) -> Layout:
    """Return the layout of named aggregates."""
    windows = list(WINDOW_COLUMNS) if window is not None else []
    names = [*given.key_columns, *windows, *(name for name, _ in node.aggregates)]
    for name in names:
        if names.count(name) > 1 or name.startswith(RESERVED_PREFIX):
            raise TopologyError(f"{node.name}: the column name {name} is taken or reserved: choose another")
    for _, aggregate in node.aggregates:
        given.require(aggregate.columns(), node.name)
    results = result_fields(node.aggregates, given.schema, node.name)
    return _aggregated(given, list(results), window, bare=node.bare)


def _aggregated(given: Layout, results: list[pa.Field], window: Windows | None, *, bare: bool) -> Layout:
    keys = [given.schema.field(name) for name in given.key_columns]
    return Layout(
        schema=pa.schema([*keys, *(window_fields() if window is not None else []), *results]),
        key=given.key,
        bucket_columns=given.bucket_columns,
        value=results[0].name if bare else None,
        table=True,
        windowed=window is not None or given.windowed,
        sessions=isinstance(window, SessionWindows) or given.sessions,
    )
