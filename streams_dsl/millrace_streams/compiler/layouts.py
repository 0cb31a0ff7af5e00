"""Output layouts of stream nodes: columns, types, key and bucket columns."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

import polars as pl
import pyarrow as pa

from millrace_streams.compiler.produced import produced_of
from millrace_streams.errors import TopologyError
from millrace_streams.expressions import LEFT, RIGHT, Column, Expression
from millrace_streams.frames.evaluation import arrow_type, polars_schema, result_types, to_polars
from millrace_streams.functions import PythonFunction
from millrace_streams.graph import (
    BranchNode,
    ChildNode,
    DeltaSinkNode,
    FilterNode,
    ForEachNode,
    Joiner,
    MapFunctionNode,
    MapNode,
    MapValuesNode,
    MergeNode,
    Node,
    PeekNode,
    ProcessNode,
    RepartitionNode,
    SelectKeyFunctionNode,
    SelectKeyNode,
    StreamStreamJoinNode,
    StreamTableJoinNode,
    TopicSinkNode,
)
from millrace_streams.layout import KEY, RESERVED_PREFIX, VALUE, WINDOW_TYPE, Layout
from millrace_streams.serdes import RowSerde, Serde


@singledispatch
def layout_of(node: Node, given: tuple[Layout, ...]) -> Layout:
    """Return the layout of a node's output. Raises ``TopologyError`` naming the node."""
    raise TopologyError(f"{node.name}: {type(node).__name__} is not a node that the compiler knows")


@layout_of.register
def _(node: FilterNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = needs_streams(node, given, "filter")
    check_predicate(node, stream, node.predicate)
    return stream


@layout_of.register
def _(node: BranchNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = needs_streams(node, given, "split")
    if node.predicate is not None:
        check_predicate(node, stream, node.predicate)
    return stream


@layout_of.register
def _(node: MapValuesNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = needs_streams(node, given, "map_values")
    return computed_layout(node, stream, node.columns, keep=node.keep)


@layout_of.register
def _(node: MapFunctionNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = needs_streams(node, given, "map_values")
    return with_value(node, stream, node.serde)


@layout_of.register
def _(node: SelectKeyNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = needs_streams(node, given, "select_key")
    return with_key_columns(node, stream, node.columns)


@layout_of.register
def _(node: SelectKeyFunctionNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = needs_streams(node, given, "select_key")
    return with_key(node, stream, node.serde)


@layout_of.register
def _(node: MapNode, given: tuple[Layout, ...]) -> Layout:
    [stream] = needs_streams(node, given, "map")
    return with_value(node, with_key(node, stream, node.key_serde), node.serde)


@layout_of.register
def _(node: ProcessNode, given: tuple[Layout, ...]) -> Layout:
    stream, *tables = given
    needs_streams(node, (stream,), "process")
    for store, table in zip(node.tables, tables, strict=True):
        if table.windowed:
            raise TopologyError(
                f"{node.name}: the store {store} holds windows, and a processor reads only tables without: join the "
                "table, or process its to_stream() and keep the windows in a window_store(...)"
            )
    if node.fixed_key:
        return with_value(node, stream, node.serde)
    if node.key_serde is None and len(stream.key) == 1 and not stream.windowed:
        return replace(with_value(node, stream, node.serde), bucket_columns=None)
    return with_value(node, with_key(node, stream, node.key_serde), node.serde)


@layout_of.register(PeekNode)
@layout_of.register(ForEachNode)
def _(node: PeekNode | ForEachNode, given: tuple[Layout, ...]) -> Layout:
    return needs_streams(node, given, "peek or for_each")[0]


@layout_of.register
def _(node: RepartitionNode, given: tuple[Layout, ...]) -> Layout:
    [layout] = given
    if not layout.key:
        raise TopologyError(
            f"{node.name}: the records have no key, which a repartition needs: select_key(column) first"
        )
    _check_produced(node, layout)
    return replace(layout, bucket_columns=layout.key, spreads_nulls=False)


@layout_of.register
def _(node: ChildNode, given: tuple[Layout, ...]) -> Layout:
    return given[0]


@layout_of.register
def _(node: MergeNode, given: tuple[Layout, ...]) -> Layout:
    left, right = needs_streams(node, given, "merge")
    right = named_alike(right, left)
    if columns(left) != columns(right) or left.key != right.key or left.windowed != right.windowed:
        raise TopologyError(
            f"{node.name}: {node.parents[0]} has {describe(left)}, {node.parents[1]} has {describe(right)}: merged "
            "streams need the same columns and key: select() the same columns, select_key() the same key"
        )
    buckets = left.bucket_columns if left.bucket_columns == right.bucket_columns else None
    return replace(left, bucket_columns=buckets, spreads_nulls=left.spreads_nulls or right.spreads_nulls)


@layout_of.register
def _(node: StreamTableJoinNode, given: tuple[Layout, ...]) -> Layout:
    stream, table = given
    if stream.table or not table.table:
        raise TopologyError(f"{node.name}: a stream is joined with a table here: to_stream() or to_table() first")
    if node.selector is None:
        check_alike(node, stream, table)
    elif isinstance(node.selector, Expression):
        _check_selector(node, node.selector, stream, table)
    return with_joined(node, stream, table, node.joiner, node.serde)


@layout_of.register
def _(node: StreamStreamJoinNode, given: tuple[Layout, ...]) -> Layout:
    left, right = needs_streams(node, given, "join")
    check_alike(node, left, right)
    return with_joined(node, left, right, node.joiner, node.serde)


@layout_of.register(TopicSinkNode)
@layout_of.register(DeltaSinkNode)
def _(node: TopicSinkNode | DeltaSinkNode, given: tuple[Layout, ...]) -> Layout:
    if isinstance(node, TopicSinkNode):
        needs_streams(node, given, "to")
        _check_produced(node, given[0])
    return given[0]


def _check_produced(node: TopicSinkNode | RepartitionNode, given: Layout) -> None:
    """Refuse rows that a topic of bytes cannot hold, if the topology declares the topic as one."""
    if isinstance(node, TopicSinkNode) and node.extractor is not None:
        produced_of(given, node.produced, node.name, f"a topic {node.destination}")
    elif node.produced:
        produced_of(given, node.produced, node.name, node.topic)


def named_alike(layout: Layout, other: Layout) -> Layout:
    """Rename key and value of a layout of bare values to those of ``other``, if possible."""
    if layout.value is None or other.value is None or len(layout.key) != len(other.key):
        return layout
    if layout.value in layout.key or other.value in other.key:
        return layout
    names = dict(zip((*layout.key, layout.value), (*other.key, other.value), strict=True))
    fields = [field.with_name(names.get(field.name, field.name)) for field in layout.schema]
    buckets = None if layout.bucket_columns is None else tuple(names.get(name, name) for name in layout.bucket_columns)
    return replace(layout, schema=pa.schema(fields), key=other.key, value=other.value, bucket_columns=buckets)


def needs_streams(node: Node, given: tuple[Layout, ...], what: str) -> tuple[Layout, ...]:
    """Refuse tables among the first parents. Raises ``TopologyError`` naming the node."""
    for layout, parent in zip(given, node.parents, strict=False):
        if layout.table:
            raise TopologyError(f"{node.name}: {what} needs a stream, but {parent} is a table: to_stream() first")
    return given


def check_predicate(node: Node, given: Layout, predicate: Expression | PythonFunction) -> None:
    """Refuse an expression that is not boolean. Raises ``TopologyError`` naming the node."""
    if isinstance(predicate, Expression):
        [field] = fields_of(node, given, (("predicate", predicate),))
        if not pa.types.is_boolean(field.type):
            raise TopologyError(f"{node.name}: the predicate {predicate!r} is {field.type}, not boolean")


def check_alike(node: Node, left: Layout, right: Layout) -> None:
    """Refuse joins of keys with different types. Raises ``TopologyError`` naming the node."""
    if not left.key or not right.key:
        raise TopologyError(f"{node.name}: both sides of a join need a key: select_key(column) first")
    keys = [[layout.schema.field(name).type for name in layout.key] for layout in (left, right)]
    if keys[0] != keys[1] or left.windowed != right.windowed:
        raise TopologyError(
            f"{node.name}: {node.parents[0]} has {describe(left)}, {node.parents[1]} has {describe(right)}: both keys "
            "must have the same types, or records of one key lie in different buckets: select_key(...) first"
        )


def computed_layout(node: Node, given: Layout, computed: tuple[tuple[str, Expression], ...], *, keep: bool) -> Layout:
    """Return the layout after the computation of columns; key columns stay unchanged."""
    for name, expression in computed:
        if name in given.key_columns and not (isinstance(expression, Column) and expression.name == name):
            raise TopologyError(f"{node.name}: {name} is part of the key: change it with group_by or select_key")
    new = {field.name: field for field in fields_of(node, given, computed)}
    kept = [field for field in given.schema if keep or (field.name in given.key_columns and field.name not in new)]
    fields = [new.pop(field.name, field) for field in kept] + list(new.values())
    layout = _with_schema(given, pa.schema(fields), _moved(computed))
    names = layout.value_columns
    return replace(layout, value=names[0] if given.scalar and len(names) == 1 else None)


def with_key_columns(node: Node, given: Layout, computed: tuple[tuple[str, Expression], ...]) -> Layout:
    """Return the layout under a key of existing or computed columns."""
    new = {field.name: field for field in fields_of(node, given, computed)}
    fields = [new.pop(field.name, field) for field in given.schema] + list(new.values())
    layout = _with_schema(given, pa.schema(fields), _moved(computed))
    layout = replace(layout, key=tuple(name for name, _ in computed), windowed=False)
    if given.value is None:
        return layout
    # Remaining columns of the old key are not part of a bare value.
    kept = [field for field in layout.schema if field.name in layout.key or field.name == given.value]
    return replace(layout, schema=pa.schema(kept))


def with_key(node: Node, given: Layout, serde: Serde | None) -> Layout:
    """Return the layout under a key from a function, in the column ``key``; None means the type of the previous key."""
    if serde is not None:
        field = serde.field(KEY)
    elif len(given.key) == 1:
        field = given.schema.field(given.key[0]).with_name(KEY)
    else:
        raise TopologyError(f"{node.name}: the type of the new key is unknown: give key='string', or another serde")
    kept = [each for each in given.schema if each.name != KEY]
    if given.value is not None:
        kept = [each for each in kept if each.name == given.value]
    return replace(given, schema=pa.schema([field, *kept]), key=(KEY,), windowed=False, bucket_columns=None)


def with_value(node: Node, given: Layout, serde: Serde | RowSerde | None) -> Layout:
    """Return the layout with values from a function; None means the type of the previous values."""
    if serde is None:
        return given
    key_fields = [given.schema.field(name) for name in given.key_columns]
    if isinstance(serde, Serde):
        if VALUE in given.key:
            raise TopologyError(f"{node.name}: the key's column is named {VALUE}: name it otherwise, group_by(k=...)")
        return replace(given, schema=pa.schema([*key_fields, serde.field(VALUE)]), value=VALUE)
    fields = [field for field in serde.schema if field.name not in given.key_columns]
    if not fields:
        raise TopologyError(f"{node.name}: the schema has no column beside the key's ({', '.join(given.key)})")
    for field in fields:
        if field.name.startswith(RESERVED_PREFIX):
            raise TopologyError(f"{node.name}: the column name {field.name} is reserved: choose another")
    return replace(given, schema=pa.schema([*key_fields, *fields]), value=None)


def with_joined(node: Node, left: Layout, right: Layout, joiner: Joiner, serde: Serde | RowSerde | None) -> Layout:
    """Return the layout of joined records: the left key, and values that a function returns or expressions compute."""
    if isinstance(joiner, PythonFunction):
        return with_value(node, left, serde)
    keys = [left.schema.field(name) for name in left.key_columns]
    sides = [field.with_name(f"{LEFT}{field.name}") for field in left.schema]
    sides += [right.schema.field(name).with_name(f"{RIGHT}{name}") for name in right.value_columns]
    new = {
        field.name: field for field in fields_of(node, replace(left, schema=pa.schema([*keys, *sides])), joiner.columns)
    }
    for name in left.key_columns:
        if name in new:
            raise TopologyError(f"{node.name}: {name} is part of the key: name the column otherwise")
    kept = [left.schema.field(name) for name in left.value_columns] if joiner.keep else []
    fields = [new.pop(field.name, field) for field in kept] + list(new.values())
    value = fields[0].name if left.scalar and len(fields) == 1 else None
    return replace(left, schema=pa.schema([*keys, *fields]), value=value)


def fields_of(node: Node, given: Layout, computed: tuple[tuple[str, Expression], ...]) -> list[pa.Field]:
    """Return names and types of expressions. Raises ``TopologyError`` naming the node for an invalid one."""
    for name, expression in computed:
        given.require(expression.columns(), node.name)
        if name.startswith(RESERVED_PREFIX):
            raise TopologyError(f"{node.name}: the column name {name} is reserved: choose another")
    types = result_types([to_polars(expression) for _, expression in computed], polars_schema(given.schema), node.name)
    fields = []
    for (name, expression), data_type in zip(computed, types, strict=True):
        if isinstance(expression, Column):
            fields.append(given.schema.field(expression.name).with_name(name))
        elif data_type == pl.Null():
            raise TopologyError(f"{node.name}: {name} is always null and has no type: cast it, lit(None).cast('int')")
        else:
            fields.append(pa.field(name, arrow_type(data_type)))
    return fields


def _check_selector(node: Node, selector: Expression, stream: Layout, table: Layout) -> None:
    [wanted] = fields_of(node, stream, (("selector", selector),))
    found = [table.schema.field(name).type for name in table.key]
    if found != [wanted.type]:
        raise TopologyError(
            f"{node.name}: the selector {selector!r} is {wanted.type}, but the table's key is "
            f"{', '.join(map(str, found))}: cast() it, or give a function"
        )


def window_fields() -> list[pa.Field]:
    """Return the columns of a window."""
    return [pa.field(name, WINDOW_TYPE) for name in ("window_start", "window_end")]


def columns(layout: Layout) -> dict[str, pa.DataType]:
    """Return names and types of the columns."""
    return {field.name: field.type for field in layout.schema}


def describe(layout: Layout) -> str:
    """Describe key and columns for error messages."""
    key = ", ".join(f"{name} {layout.schema.field(name).type}" for name in layout.key)
    others = ", ".join(f"{name} {layout.schema.field(name).type}" for name in layout.value_columns)
    return f"the {'windowed ' if layout.windowed else ''}key ({key}) and the columns ({others})"


def _moved(computed: tuple[tuple[str, Expression], ...]) -> set[str]:
    return {name for name, value in computed if not (isinstance(value, Column) and value.name == name)}


def _with_schema(given: Layout, schema: pa.Schema, changed: set[str]) -> Layout:
    """Return the layout with another schema; ``changed`` columns no longer determine the bucket."""
    buckets = given.bucket_columns
    if buckets is not None and any(name in changed or name not in schema.names for name in buckets):
        buckets = None
    return replace(given, schema=schema, bucket_columns=buckets)
