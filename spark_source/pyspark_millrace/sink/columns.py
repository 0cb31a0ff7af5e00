"""Mapping of DataFrame columns to record fields, checked before anything is written.

An opaque topic takes ``value`` and, if present, ``key``, ``headers``, ``timestamp`` and ``partition``, as Spark's Kafka
sink does. Like that sink, it ignores other columns. A typed topic takes columns by the names of its schema, and no
others. Both kinds take record metadata from the metadata columns of a read: ``__timestamp``, ``__headers``,
``__partition``, and for typed topics ``__tombstone``. ``__offset`` and ``__timestamp_type`` describe the record that
was read, and are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millrace.errors import SchemaMismatchError, UnknownTopicOrPartitionError, UsageError
from pyspark_millrace.columns import Metadata

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_WITH_METADATA_NAMES: Final = {
    "timestamp": Metadata.TIMESTAMP.value,
    "headers": Metadata.HEADERS.value,
    "partition": Metadata.PARTITION.value,
}
"""An opaque topic's name of a producer column, and its metadata column."""
_FACTS_OF_READING: Final = frozenset((Metadata.OFFSET.value, Metadata.TIMESTAMP_TYPE.value))


@dataclass(frozen=True, slots=True)
class Route:
    """Mapping of DataFrame columns (``source``) to producer columns (``target``) for one topic.

    ``partition`` is the column with partitions, if there is one.
    """

    topic: str
    columns: tuple[tuple[str, str], ...]
    partition: str | None = None

    def apply(self, table: pa.Table) -> pa.Table:
        """Return the producer's columns, without copying. Raises ``UnknownTopicOrPartitionError``."""
        if self.partition is not None:
            import pyarrow.compute as pc

            least = pc.min(table.column(self.partition)).as_py()
            # Kafka's producers refuse it too. millrace's producer would take -1 in a table as null.
            if least is not None and least < 0:
                raise UnknownTopicOrPartitionError(
                    f"topic {self.topic} has no partition {least}: name one of its partitions, or NULL to choose "
                    "it by the key"
                )
        return table.select([source for source, _ in self.columns]).rename_columns([to for _, to in self.columns])


def topic_column(schema: StructType, *, has_option: bool) -> str | None:
    """Return the column that names each row's topic; ``None`` with the option ``topic``, which has priority.

    Raises ``UsageError`` if there is neither.
    """
    if has_option:
        return None
    for name in (Metadata.TOPIC.value, "topic"):
        if name in schema.names:
            _check_type(schema, name, "STRING", lambda t: t.StringType())
            return name
    raise UsageError(
        "topic option required when no 'topic' column is present: use the option topic for setting a topic"
    )


def route_to(
    topic: str, topic_schema: pa.Schema | None, schema: StructType, *, topic_from: str | None, include_headers: bool
) -> Route:
    """Map columns for a topic. ``topic_from`` is the column that names topics, which is not written.

    Raises ``UsageError`` and ``SchemaMismatchError`` with the column, its type and the expected type.
    """
    names = schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"column {twice} is twice in the DataFrame: drop one")
    if topic_schema is None:
        found = _opaque_columns(topic, schema)
    else:
        found = _typed_columns(topic, topic_schema, schema, topic_from)
    if not include_headers:
        found.pop(Metadata.HEADERS.value if topic_schema is not None else "headers", None)
    named = found.get("partition" if topic_schema is None else Metadata.PARTITION.value)
    return Route(topic, tuple((source, target) for target, source in found.items()), named)


def _opaque_columns(topic: str, schema: StructType) -> dict[str, str]:
    found = {}
    if "value" not in schema.names:
        raise SchemaMismatchError(
            f"required column 'value' not found: topic {topic} is opaque, and the DataFrame has "
            f"{', '.join(schema.names) or 'no columns'}"
        )
    for name in ("key", "value"):
        if name in schema.names:
            _check_type(schema, name, "STRING or BINARY", lambda t: t.StringType(), lambda t: t.BinaryType())
            found[name] = name
    for name, metadata in _WITH_METADATA_NAMES.items():
        given = [each for each in (name, metadata) if each in schema.names]
        if len(given) > 1:
            raise UsageError(f"the columns {' and '.join(given)} have the same meaning: drop one")
        for source in given:
            _check_metadata(schema, source, metadata)
            found[name] = source
    return found


def _typed_columns(topic: str, topic_schema: pa.Schema, schema: StructType, topic_from: str | None) -> dict[str, str]:
    found = {}
    for name in schema.names:
        if name == topic_from or name in _FACTS_OF_READING or name == Metadata.TOPIC.value:
            continue
        if name in _METADATA_TYPES:
            _check_metadata(schema, name, name)
        elif topic_schema.get_field_index(name) < 0:
            raise SchemaMismatchError(
                f"column {name} is not in the schema of topic {topic}: its columns are "
                f"{', '.join(topic_schema.names)}; drop it, or add it to the topic (millrace topics evolve)"
            )
        found[name] = name
    return found


def _check_metadata(schema: StructType, name: str, metadata: str) -> None:
    form, make = _METADATA_TYPES[metadata]
    _check_type(schema, name, form, make)


def _check_type(schema: StructType, name: str, form: str, *makers: Callable[[Any], Any]) -> None:
    from pyspark.sql import types

    found = schema[name].dataType
    if not any(_same(found, make(types)) for make in makers):
        raise SchemaMismatchError(f"column {name} is {found.simpleString().upper()}, expected {form}: cast it")


def _same(found: Any, wanted: Any) -> bool:
    """Return whether two types are equal, apart from nullability and collation."""
    from pyspark.sql import types

    if isinstance(found, types.ArrayType) and isinstance(wanted, types.ArrayType):
        return _same(found.elementType, wanted.elementType)
    if isinstance(found, types.StructType) and isinstance(wanted, types.StructType):
        return found.names == wanted.names and all(
            _same(mine.dataType, other.dataType) for mine, other in zip(found, wanted, strict=True)
        )
    return type(found) is type(wanted)


def _headers(types: Any) -> Any:
    return types.ArrayType(types.StructType().add("key", types.StringType()).add("value", types.BinaryType()))


_METADATA_TYPES: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    Metadata.PARTITION.value: ("INT", lambda types: types.IntegerType()),
    Metadata.TIMESTAMP.value: ("TIMESTAMP", lambda types: types.TimestampType()),
    Metadata.HEADERS.value: ("ARRAY<STRUCT<key: STRING, value: BINARY>>", _headers),
    Metadata.TOMBSTONE.value: ("BOOLEAN", lambda types: types.BooleanType()),
}
