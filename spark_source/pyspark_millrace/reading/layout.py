"""Columns and row filter of a query, with their Spark schema."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from millrace.errors import UsageError
from pyspark_millrace.columns import (
    RAW_KEY,
    RAW_VALUE,
    Metadata,
    TopicColumn,
    available_columns,
    metadata_columns,
    opaque_columns,
    raw_columns,
    typed_columns,
)
from pyspark_millrace.filters.binding import bind_option
from pyspark_millrace.filters.condition import conjunction
from pyspark_millrace.filters.parsing import parse_filter
from pyspark_millrace.filters.row_filter import row_filter_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import DataType, StructType

    from pyspark_millrace.decoding.plan import DecodePlan
    from pyspark_millrace.filters.row_filter import RowFilter

_INCLUDED_METADATA: Final = tuple(kind for kind in Metadata if kind is not Metadata.TOMBSTONE)


@dataclass(frozen=True, slots=True)
class ReadLayout:
    """Columns of a query, in order, and its row filter. Small and picklable, because every task receives it."""

    columns: tuple[TopicColumn, ...]
    is_opaque: bool
    row_filter: RowFilter | None = None
    """Filter of the rows; it can use other columns than the selected ones."""
    decoding: DecodePlan | None = None
    """Decoding of an opaque topic's payloads into columns (option ``decode``)."""

    def spark_schema(self) -> StructType:
        """Return the schema that Spark plans with."""
        from pyspark.sql.types import StructField, StructType

        return StructType([StructField(column.name, column.type, column.nullable) for column in self.columns])

    def arrow_schema(self) -> pa.Schema:
        """Return the exact schema of every batch that is handed to Spark."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.spark_schema(), timezone="UTC")

    @property
    def topic_columns(self) -> list[str]:
        """Names of the columns to decode, each once."""
        filtered = () if self.row_filter is None else self.row_filter.columns
        sources = [column.source for column in (*self.columns, *filtered)]
        names = [source for source in sources if isinstance(source, str)]
        if self.is_opaque and Metadata.TOMBSTONE in sources:
            # In an opaque topic a record without a value is a tombstone. Typed topics mark tombstones explicitly.
            names.append("value")
        return list(dict.fromkeys(names))


def default_layout(
    schema: pa.Schema | None, *, include_headers: bool, include_metadata: bool, decoding: DecodePlan | None = None
) -> ReadLayout:
    """Return the columns of a topic if the user names none."""
    if schema is None and decoding is None:
        columns = [column for column in opaque_columns() if include_headers or column.name != "headers"]
    else:
        columns = typed_columns(schema) if schema is not None else []
        if decoding is not None:
            columns = [each for each in _decoded_columns(decoding) if decoding.key or each.name != RAW_KEY]
        wanted = list(_INCLUDED_METADATA) if include_metadata else [Metadata.HEADERS] if include_headers else []
        columns += [metadata_columns()[kind] for kind in wanted]
    return ReadLayout(tuple(columns), is_opaque=schema is None, decoding=decoding)


def named_layout(
    schema: pa.Schema | None, names: Sequence[str], *, topics: str, decoding: DecodePlan | None = None
) -> ReadLayout:
    """Return the columns of the option ``columns``.

    Raises ``UsageError`` with the first column that ``topics`` (for the message) do not have.
    """
    available = _available(schema, decoding)
    columns = tuple(_find(available, name, "columns", topics) for name in names)
    return ReadLayout(columns, is_opaque=schema is None, decoding=decoding)


def layout_of_user_schema(
    schema: pa.Schema | None, asked: StructType, *, topics: str, decoding: DecodePlan | None = None
) -> ReadLayout:
    """Return the columns of a schema set by ``.schema(...)``, which also selects columns.

    Raises ``UsageError`` for a column that the topics lack or have with another type.
    """
    available = _available(schema, decoding)
    columns = []
    for field in asked.fields:
        column = _find(available, field.name, "schema", topics)
        if column.type != field.dataType:
            raise UsageError(
                f"schema: column {field.name} of {topics} is {column.type.simpleString().upper()}, "
                f"not {field.dataType.simpleString().upper()}: give that type and cast the column"
            )
        if column.nullable and not field.nullable:
            raise UsageError(f"schema: column {field.name} of {topics} may be null: leave NOT NULL out")
        columns.append(TopicColumn(column.name, column.source, column.type, field.nullable))
    return ReadLayout(tuple(columns), is_opaque=schema is None, decoding=decoding)


def check_layout(layout: ReadLayout, schema: pa.Schema | None, *, topic: str, is_new: bool = True) -> None:
    """Check that a topic found while a query runs has the query's columns; raises ``UsageError``.

    A topic that is not new may have lost nullable columns and got fields in structs. They are null and left out.
    """
    available = _available(schema, layout.decoding)
    same_kind = layout.is_opaque == (schema is None)
    for column in layout.columns:
        found = available.get(column.name)
        if found is None:
            fits = not is_new and column.nullable
        else:
            same_type = found.type == column.type if is_new else _is_readable_as(found.type, column.type)
            fits = found.source == column.source and same_type
        if not (same_kind and fits):
            raise UsageError(
                f"topic {topic}: no column {column.name} {column.type.simpleString().upper()}, which the query reads "
                "of the topics it started with: subscribe to topics of one schema"
            )


def _is_readable_as(newer: DataType, older: DataType) -> bool:
    """Return whether values have an older type, apart from fields of structs that were added or dropped since."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(newer, StructType) and isinstance(older, StructType):
        added = {field.name: field for field in newer}
        return all(
            _is_readable_as(added[field.name].dataType, field.dataType) if field.name in added else field.nullable
            for field in older
        )
    if isinstance(newer, ArrayType) and isinstance(older, ArrayType):
        return _is_readable_as(newer.elementType, older.elementType)
    if isinstance(newer, MapType) and isinstance(older, MapType):
        return _is_readable_as(newer.keyType, older.keyType) and _is_readable_as(newer.valueType, older.valueType)
    return bool(newer == older)


def option_filter(text: str, schema: pa.Schema | None, layout: ReadLayout, *, topics: str) -> RowFilter | None:
    """Return the row filter of the option ``filter``. Raises ``UsageError`` with column and value.

    With ``decode`` the filter sees the raw columns and the metadata: ``__key``, ``__value``, ``__offset``.
    """
    available = _filterable(schema, layout)
    return row_filter_of(bind_option(text, parse_filter(text), available, topics=topics), available)


def and_pushed(filters: Sequence[Filter], layout: ReadLayout) -> tuple[ReadLayout, list[Filter]]:
    """Add Spark's pushed filters to a layout; returns the layout and the filters that it cannot apply."""
    from pyspark_millrace.filters.pushed import split_pushed

    raw = _filterable(None, layout) if layout.decoding is not None else None
    available = {column.name: column for column in layout.columns if raw is None or raw.get(column.name) == column}
    taken, left = split_pushed(filters, available)
    if taken is None:
        return layout, left
    own = layout.row_filter
    columns = {column.name: column for column in own.columns} if own is not None else {}
    together = conjunction(None if own is None else own.expression, taken)
    return replace(layout, row_filter=row_filter_of(together, columns | available)), left


def raw_layout(layout: ReadLayout) -> ReadLayout:
    """Return the layout for reading the log. With ``decode`` it has the raw keys and values instead of the columns."""
    plan = layout.decoding
    if plan is None:
        return layout
    wanted: dict[str, TopicColumn] = {}
    available = raw_columns()
    names = [RAW_VALUE, Metadata.OFFSET.value, *(column.name for column in layout.columns)]
    if plan.key is not None or plan.dead_letter_topic is not None:
        names.append(RAW_KEY)
    if plan.dead_letter_topic is not None:
        names += [Metadata.HEADERS.value]
    for name in names:
        if name in available:
            wanted[name] = available[name]
    return ReadLayout(tuple(wanted.values()), is_opaque=True, row_filter=layout.row_filter)


def _available(schema: pa.Schema | None, decoding: DecodePlan | None) -> dict[str, TopicColumn]:
    """Return every column that a query may name.

    A decoded opaque topic has the columns of its values' schema, and also ``__key`` and ``__value``.
    """
    if decoding is None:
        return available_columns(schema)
    return raw_columns() | {column.name: column for column in _decoded_columns(decoding)}


def _filterable(schema: pa.Schema | None, layout: ReadLayout) -> Mapping[str, TopicColumn]:
    return available_columns(schema) if layout.decoding is None else raw_columns()


def _find(available: Mapping[str, TopicColumn], name: str, option: str, topics: str) -> TopicColumn:
    if (column := available.get(name)) is not None:
        return column
    near = difflib.get_close_matches(name, available, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the columns are {', '.join(available)}"
    raise UsageError(f"{option}: {topics} has no column {name!r}: {hint}")


def _decoded_columns(decoding: DecodePlan) -> list[TopicColumn]:
    """Return the decoded key as a struct and the columns of decoded values. All are nullable."""
    import pyarrow as pa

    columns = []
    if (key := decoding.key_columns()) is not None:
        struct = pa.struct([field.with_nullable(True) for field in key])
        columns += typed_columns(pa.schema([pa.field(RAW_KEY, struct)]))
    value = decoding.value_columns()
    if value is None:
        return [*columns, raw_columns()[RAW_VALUE]]
    reserved = [name for name in value.names if name in raw_columns()]
    if reserved:
        raise UsageError(f"decode: column {reserved[0]} of the payloads has a metadata column's name: rename it")
    return columns + typed_columns(pa.schema([field.with_nullable(True) for field in value]))
