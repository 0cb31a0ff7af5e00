"""Topic columns and metadata columns, and the Spark schema they make.

An *opaque* topic has the columns of Spark's Kafka source, by name, type and order: ``key, value, topic, partition,
offset, timestamp, timestampType`` and, when asked for, ``headers``. A *typed* topic has its schema's columns. What a
record has beside these is in metadata columns, which both kinds offer under names that no schema may use::

    __topic string, __partition int, __offset bigint, __timestamp timestamp, __timestamp_type int,
    __headers array<struct<key: string, value: binary>>, __tombstone boolean

Stored types are exactly one for each Spark type (``docs/schemas.md``), so columns pass to Spark without a cast.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from pyspark_millrace.decoding.plan import DecodePlan
    from pyspark_millrace.filters import RowFilter


class Metadata(Enum):
    """What a record has beside its fields; the value is the metadata column's name."""

    TOPIC = "__topic"
    PARTITION = "__partition"
    OFFSET = "__offset"
    TIMESTAMP = "__timestamp"
    TIMESTAMP_TYPE = "__timestamp_type"
    HEADERS = "__headers"
    TOMBSTONE = "__tombstone"


KAFKA_NAMES: Final = {
    "topic": Metadata.TOPIC,
    "partition": Metadata.PARTITION,
    "offset": Metadata.OFFSET,
    "timestamp": Metadata.TIMESTAMP,
    "timestampType": Metadata.TIMESTAMP_TYPE,
    "headers": Metadata.HEADERS,
}
"""The names that metadata columns have in an opaque topic, in the Kafka source's order after key and value."""


def is_opaque(columns: Sequence[str]) -> bool:
    """Whether these are the columns that an opaque topic has by default: no schema may use their names."""
    return "timestampType" in columns


_INCLUDED_METADATA: Final = tuple(kind for kind in Metadata if kind is not Metadata.TOMBSTONE)


@dataclass(frozen=True, slots=True)
class Column:
    """One output column: ``source`` is a column of the topic by its name, or metadata."""

    name: str
    source: str | Metadata
    type: DataType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns a query reads, in order, and of which rows. Small and picklable: it travels to every task."""

    columns: tuple[Column, ...]
    is_opaque: bool
    row_filter: RowFilter | None = None
    """Which rows are read; it may be about other columns than those."""
    decoding: DecodePlan | None = None
    """How an opaque topic's payloads become columns, with the option ``decode``."""

    def spark_schema(self) -> StructType:
        """The schema that Spark plans with."""
        from pyspark.sql.types import StructField, StructType

        return StructType([StructField(column.name, column.type, column.nullable) for column in self.columns])

    def arrow_schema(self) -> pa.Schema:
        """The schema that every batch handed to Spark has, exactly."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.spark_schema(), timezone="UTC")

    @property
    def topic_columns(self) -> list[str]:
        """Names of the columns to decode, each once."""
        filtered = () if self.row_filter is None else self.row_filter.columns
        sources = [column.source for column in (*self.columns, *filtered)]
        names = [source for source in sources if isinstance(source, str)]
        if self.is_opaque and Metadata.TOMBSTONE in sources:
            # A record without a value is what deletes there; typed topics have a mark of their own.
            names.append("value")
        return list(dict.fromkeys(names))


def available_columns(schema: pa.Schema | None, decoding: DecodePlan | None = None) -> dict[str, Column]:
    """Every column that a topic offers, by name; ``schema`` is a typed topic's, None stands for an opaque one.

    Decoded, an opaque topic has the columns of its values' schema, and ``__key`` and ``__value`` beside them.
    """
    columns = [Column(kind.value, kind, _metadata_types()[kind]) for kind in Metadata]
    if decoding is not None:
        columns += [*raw_columns().values(), *_decoded_columns(decoding)]
    elif schema is None:
        columns += _opaque_columns()
    else:
        columns += _typed_columns(schema)
    return {column.name: column for column in columns}


def default_layout(
    schema: pa.Schema | None, *, include_headers: bool, include_metadata: bool, decoding: DecodePlan | None = None
) -> Layout:
    """The columns of a topic when none are named."""
    if schema is None and decoding is None:
        columns = [column for column in _opaque_columns() if include_headers or column.name != "headers"]
    else:
        columns = _typed_columns(schema) if schema is not None else []
        if decoding is not None:
            columns = [each for each in _decoded_columns(decoding) if decoding.key or each.name != "__key"]
        wanted = list(_INCLUDED_METADATA) if include_metadata else [Metadata.HEADERS] if include_headers else []
        columns += [Column(kind.value, kind, _metadata_types()[kind]) for kind in wanted]
    return Layout(tuple(columns), is_opaque=schema is None, decoding=decoding)


def named_layout(
    schema: pa.Schema | None, names: Sequence[str], *, topics: str, decoding: DecodePlan | None = None
) -> Layout:
    """The columns named in the option ``columns``.

    Raises ``UsageError`` naming the first column that ``topics`` (for the message) do not have.
    """
    available = available_columns(schema, decoding)
    columns = tuple(_find(available, name, "columns", topics) for name in names)
    return Layout(columns, is_opaque=schema is None, decoding=decoding)


def layout_of_user_schema(
    schema: pa.Schema | None, asked: StructType, *, topics: str, decoding: DecodePlan | None = None
) -> Layout:
    """The columns of a schema given by ``.schema(...)``, which thereby chooses columns as well.

    Raises ``UsageError`` for a column that the topics do not have, or have with another type.
    """
    available = available_columns(schema, decoding)
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
        columns.append(Column(column.name, column.source, column.type, field.nullable))
    return Layout(tuple(columns), is_opaque=schema is None, decoding=decoding)


def check_layout(layout: Layout, schema: pa.Schema | None, *, topics: str) -> None:
    """Check that topics found while a query runs have the columns that it reads; raises ``UsageError``."""
    available = available_columns(schema, layout.decoding)
    same_kind = layout.is_opaque == (schema is None)
    for column in layout.columns:
        found = available.get(column.name)
        if not same_kind or found is None or found.source != column.source or found.type != column.type:
            raise UsageError(
                f"{topics}: no column {column.name} {column.type.simpleString().upper()}, which the query reads of the "
                "topics it started with: subscribe to topics of one schema"
            )


def _find(available: Mapping[str, Column], name: str, option: str, topics: str) -> Column:
    if (column := available.get(name)) is not None:
        return column
    near = difflib.get_close_matches(name, available, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the columns are {', '.join(available)}"
    raise UsageError(f"{option}: {topics} has no column {name!r}: {hint}")


def _typed_columns(schema: pa.Schema) -> list[Column]:
    from pyspark.sql.pandas.types import from_arrow_type

    return [
        Column(field.name, field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True), field.nullable)
        for field in schema
    ]


def raw_columns() -> dict[str, Column]:
    """What a record of an opaque topic is made of, by the names that decoded columns leave free."""
    from pyspark.sql.types import BinaryType

    types = _metadata_types()
    parts = [Column(f"__{part}", part, BinaryType()) for part in ("key", "value")]
    return {column.name: column for column in [*parts, *(Column(kind.value, kind, types[kind]) for kind in Metadata)]}


def _decoded_columns(decoding: DecodePlan) -> list[Column]:
    """The decoded key as a struct, and the columns of decoded values; each is null where there is nothing to decode."""
    import pyarrow as pa

    columns = []
    if (key := decoding.key_columns()) is not None:
        struct = pa.struct([field.with_nullable(True) for field in key])
        columns += _typed_columns(pa.schema([pa.field("__key", struct)]))
    value = decoding.value_columns()
    if value is None:
        return [*columns, raw_columns()["__value"]]
    reserved = [name for name in value.names if name in raw_columns()]
    if reserved:
        raise UsageError(f"decode: column {reserved[0]} of the payloads has a metadata column's name: rename it")
    return columns + _typed_columns(pa.schema([field.with_nullable(True) for field in value]))


def _opaque_columns() -> list[Column]:
    from pyspark.sql.types import BinaryType

    types = _metadata_types()
    return [
        Column("key", "key", BinaryType()),
        Column("value", "value", BinaryType()),
        *(Column(name, kind, types[kind]) for name, kind in KAFKA_NAMES.items()),
    ]


def _metadata_types() -> dict[Metadata, Any]:
    from pyspark.sql import types

    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    return {
        Metadata.TOPIC: types.StringType(),
        Metadata.PARTITION: types.IntegerType(),
        Metadata.OFFSET: types.LongType(),
        Metadata.TIMESTAMP: types.TimestampType(),
        Metadata.TIMESTAMP_TYPE: types.IntegerType(),
        Metadata.HEADERS: types.ArrayType(header),
        Metadata.TOMBSTONE: types.BooleanType(),
    }
