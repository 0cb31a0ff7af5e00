"""The columns that a topic offers, and their types in Spark.

An *opaque* topic has the columns of Spark's Kafka source, by name, type and order: ``key, value, topic, partition,
offset, timestamp, timestampType`` and, when asked for, ``headers``. A *typed* topic has its schema's columns. Metadata
columns hold the rest of a record. Both kinds of topics offer them, under names that no schema may use::

    __topic string, __partition int, __offset bigint, __timestamp timestamp, __timestamp_type int,
    __headers array<struct<key: string, value: binary>>, __tombstone boolean

Stored types are exactly one for each Spark type (``docs/schemas.md``), so columns pass to Spark without a cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType


class Metadata(Enum):
    """Metadata of a record; the value is the metadata column's name."""

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
"""Names of metadata columns in an opaque topic, in the Kafka source's order after key and value."""


def is_opaque(columns: Sequence[str]) -> bool:
    """Return whether these are the default columns of an opaque topic, whose names no schema may use."""
    return "timestampType" in columns


RAW_KEY: Final = "__key"
RAW_VALUE: Final = "__value"
"""Stored key and value, beside the columns decoded from them."""


@dataclass(frozen=True, slots=True)
class TopicColumn:
    """Output column of a read.

    ``source`` is the name of a column of the topic, or metadata.
    """

    name: str
    source: str | Metadata
    type: DataType
    nullable: bool = True


def available_columns(schema: pa.Schema | None) -> dict[str, TopicColumn]:
    """Return every column that a topic offers, by name; ``schema`` is None for an opaque topic."""
    columns = [*metadata_columns().values(), *(opaque_columns() if schema is None else typed_columns(schema))]
    return {column.name: column for column in columns}


def raw_columns() -> dict[str, TopicColumn]:
    """Return key, value and metadata of an opaque topic, by the names that decoded columns leave free."""
    from pyspark.sql.types import BinaryType

    parts = [TopicColumn(RAW_KEY, "key", BinaryType()), TopicColumn(RAW_VALUE, "value", BinaryType())]
    return {column.name: column for column in (*parts, *metadata_columns().values())}


def metadata_columns() -> dict[Metadata, TopicColumn]:
    """Return the metadata columns."""
    return {kind: TopicColumn(kind.value, kind, data_type) for kind, data_type in _metadata_types().items()}


def typed_columns(schema: pa.Schema) -> list[TopicColumn]:
    """Return the columns of a schema."""
    from pyspark.sql.pandas.types import from_arrow_type

    return [
        TopicColumn(field.name, field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True), field.nullable)
        for field in schema
    ]


def opaque_columns() -> list[TopicColumn]:
    """Return the columns of Spark's Kafka source, headers included."""
    from pyspark.sql.types import BinaryType

    types = _metadata_types()
    return [
        TopicColumn("key", "key", BinaryType()),
        TopicColumn("value", "value", BinaryType()),
        *(TopicColumn(name, kind, types[kind]) for name, kind in KAFKA_NAMES.items()),
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
