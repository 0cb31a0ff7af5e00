"""Conversion of decoded batches to records, or to tables with metadata columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from millrace.clients.model import ConsumerRecord, TopicDescription, TopicPartition
from millrace.errors import UnreadableValueError, UsageError
from millrace.records import HEADERS_TYPE, OPAQUE_SCHEMA, DecodedBatch

METADATA_TYPES: Final = {
    "__topic": pa.string(),
    "__partition": pa.int32(),
    "__offset": pa.int64(),
    "__timestamp": pa.timestamp("ms", tz="UTC"),
    "__headers": HEADERS_TYPE,
    "__tombstone": pa.bool_(),
}
METADATA_COLUMNS: Final = tuple(METADATA_TYPES)
"""Metadata columns; ``metadata=True`` adds the first four in this order."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """Columns of a table of records.

    The columns of the topics' schema come first, then metadata columns.
    """

    data: pa.Schema
    metadata: tuple[str, ...]
    columns_to_read: tuple[str, ...] | None

    @classmethod
    def of(
        cls, topics: Sequence[TopicDescription], columns: Sequence[str] | None, metadata: Sequence[str]
    ) -> TableShape:
        """Determine the columns; raises ``UsageError`` for unknown ones and for topics with different schemas."""
        schemas = [OPAQUE_SCHEMA if topic.read_schema is None else topic.read_schema for topic in topics]
        for topic, schema in zip(topics, schemas, strict=True):
            if schema != schemas[0]:
                raise UsageError(
                    f"topics {topics[0].name} and {topic.name} have different schemas: poll them separately"
                )
        for name in metadata:
            if name not in METADATA_TYPES:
                raise UsageError(f"there is no metadata column {name}: choose from {', '.join(METADATA_COLUMNS)}")
        data = schemas[0].remove_metadata()
        if columns is not None and not columns and not metadata:
            raise UsageError("a table needs at least one column: name a column or a metadata column")
        if columns is None:
            return cls(data, tuple(metadata), None)
        for name in columns:
            if data.get_field_index(name) < 0:
                raise UsageError(f"column {name}: topic {topics[0].name} has {', '.join(data.names)}")
        return cls(pa.schema([data.field(name) for name in columns]), tuple(metadata), tuple(columns))

    @property
    def schema(self) -> pa.Schema:
        """The table's schema."""
        return pa.schema([*self.data, *(pa.field(name, METADATA_TYPES[name]) for name in self.metadata)])


def batch_to_table(shape: TableShape, partition: TopicPartition, batch: DecodedBatch) -> pa.RecordBatch:
    """Convert the records of a batch to the given shape."""
    arrays = list(batch.read_as(shape.data).columns) if len(shape.data) else []
    arrays += [_metadata(name, partition, batch) for name in shape.metadata]
    return pa.RecordBatch.from_arrays(arrays, schema=shape.schema)


def _metadata(name: str, partition: TopicPartition, batch: DecodedBatch) -> pa.Array:
    rows = batch.num_rows
    if name == "__topic":
        return pa.repeat(pa.scalar(partition.topic), rows)
    if name == "__partition":
        return pa.repeat(pa.scalar(partition.partition, pa.int32()), rows)
    if name == "__offset":
        return batch.offsets()
    if name == "__timestamp":
        return batch.timestamps_ms().view(METADATA_TYPES[name])
    if name == "__headers":
        return batch.headers if batch.headers is not None else pa.nulls(rows, HEADERS_TYPE)
    return batch.tombstones if batch.tombstones is not None else pa.repeat(pa.scalar(False), rows)


def batch_to_records(
    partition: TopicPartition, batch: DecodedBatch, key_columns: Sequence[str]
) -> list[ConsumerRecord]:
    """Convert the records of a batch to Python values. Raises ``UnreadableValueError`` for the first without one."""
    keys: Any = repeat(None)
    values: list[Any]
    if batch.schema_id:
        try:
            values = batch.columns.to_pylist()
        except (ValueError, OverflowError) as error:
            raise _unreadable(partition, batch) from error
        if key_columns:
            keys = [{name: value.get(name) for name in key_columns} for value in values]
        if batch.tombstones is not None:
            values = [None if gone else value for value, gone in zip(values, batch.tombstones.to_pylist(), strict=True)]
    else:
        values = batch.columns.column("value").to_pylist()
        key = batch.columns.column("key")
        if key.null_count < len(key):
            keys = key.to_pylist()
    headers: Any = repeat(())
    if batch.headers is not None:
        headers = [
            tuple((entry["key"], entry["value"]) for entry in record or ()) for record in batch.headers.to_pylist()
        ]
    constant = batch.constant_timestamp_ms
    timestamps: Any = batch.timestamps_ms().to_pylist() if constant is None else repeat(constant)
    offsets: Any = batch.offset_range() or batch.offsets().to_pylist()
    rows = zip(offsets, timestamps, keys, values, headers, strict=False)
    return [
        ConsumerRecord(partition.topic, partition.partition, offset, timestamp, key, value, header)
        for offset, timestamp, key, value, header in rows
    ]


def _unreadable(partition: TopicPartition, batch: DecodedBatch) -> UnreadableValueError:
    """Find the first record whose value Python does not have."""
    for row, offset in enumerate(batch.offsets().to_pylist()):
        for name, column in zip(batch.columns.schema.names, batch.columns.columns, strict=True):
            try:
                column[row].as_py()
            except (ValueError, OverflowError) as error:
                return UnreadableValueError(
                    f"{partition} offset {offset}: Python has no value for column {name} ({column.type}): {error}: "
                    "read it with poll_table, or seek past it",
                    offset=offset,
                )
    raise AssertionError("a batch is unreadable, but each of its values is readable")
