"""Conversion of tables to record batches by partition and size.

All functions are pure and independent of the sender. They fit tables to the topic, divide them among partitions, cut
them to size and build batches. Rows keep their order within a partition. An opaque topic takes the columns ``key``,
``value``, ``headers``, ``timestamp`` and ``partition``. A typed topic takes the columns of its schema and
``__timestamp``, ``__headers``, ``__partition`` and ``__tombstone``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from millrace.clients.metadata import check_partition
from millrace.clients.model import TopicDescription
from millrace.clients.producing.partitioner import partitions_for_keys
from millrace.clients.producing.partitioning import StickyPartition
from millrace.errors import MessageTooLargeError, MillraceError, SchemaMismatchError
from millrace.records import (
    HEADERS_TYPE,
    OPAQUE_SCHEMA,
    Compression,
    build_columnar_batch,
    decode_batch,
    read_header,
)
from millrace.schemas import conform, encode_keys

TIMESTAMP: Final = "__timestamp"
HEADERS: Final = "__headers"
PARTITION: Final = "__partition"
TOMBSTONE: Final = "__tombstone"

Rows = range | npt.NDArray[np.int64]
"""Row numbers, ascending; a range for consecutive rows, which costs no memory."""
_PADDING_BYTES: Final = 256
"""Padding and metadata of a column that one row may need more than another."""
_COLUMN_BYTES_MAX: Final = 4096
"""Bytes of a column in a batch beside its values. Only deeply nested columns have more."""
_FILTERED_PARTITIONS_MAX: Final = 16
"""Up to this number of partitions, one filter per partition is faster than sorting rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Table that fits its topic.

    ``columns`` are the schema's columns. The other fields have a column in ``beside``, or one value for all rows.
    """

    topic: TopicDescription
    columns: pa.Table | pa.RecordBatch
    beside: dict[str, pa.ChunkedArray]
    timestamp_ms: int
    partition: int | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.columns.num_rows)

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows in memory."""
        return int(self.columns.nbytes + sum(column.nbytes for column in self.beside.values()))

    def slice(self, offset: int, length: int) -> Fitted:
        """Return a slice of the rows, without copying."""
        beside = {name: column.slice(offset, length) for name, column in self.beside.items()}
        return replace(self, columns=self.columns.slice(offset, length), beside=beside)


class BuiltBatch(NamedTuple):
    """Batch without its checksum.

    ``wire`` computes the checksum when the batch is sent. ``rows`` are the numbers of its rows in the table, if
    requested. ``schema`` is that of a typed topic.
    """

    partition: int
    records: bytes
    num_rows: int
    timestamp_ms: int
    rows: Rows | None = None
    schema: pa.Schema | None = None


class RefusedRow(NamedTuple):
    """A row that cannot be sent; ``rows`` holds its number, if requested."""

    error: MillraceError
    rows: Rows | None = None


# --- fitting -------------------------------------------------------------------------------------------------


def fit_table(
    topic: TopicDescription,
    table: pa.Table,
    *,
    now_ms: int,
    timestamps: int | str | Any = None,
    partition: int | str | Any = None,
) -> Fitted:
    """Fit a table to a topic; ``timestamps`` and ``partition`` are one for all rows, a column's name, or one per row.

    Raises ``SchemaMismatchError`` with column and row, ``UnknownTopicOrPartitionError``.
    """
    beside: dict[str, pa.ChunkedArray] = {}
    timestamp_ms = now_ms
    if isinstance(timestamps, int):
        timestamp_ms = timestamps
    elif timestamps is not None:
        beside[TIMESTAMP] = _given(table, timestamps, "timestamps")
    one_partition = None
    if isinstance(partition, int):
        check_partition(topic, partition)
        one_partition = partition
    elif partition is not None:
        beside[PARTITION] = _given(table, partition, "partition")
        if isinstance(partition, str) and topic.schema is None:
            table = table.drop_columns([partition])
    if isinstance(timestamps, str) and (topic.schema is None or topic.schema.get_field_index(timestamps) < 0):
        table = table.drop_columns([timestamps])
    columns, found = _separate(topic, table)
    # An argument takes precedence over the column of the same meaning.
    beside = _normalized({**found, **beside}, now_ms)
    if PARTITION in beside:
        _check_partitions(topic, beside[PARTITION])
        if one_partition is not None:
            del beside[PARTITION]
    if TIMESTAMP in beside and isinstance(timestamps, int):
        del beside[TIMESTAMP]
    return Fitted(topic=topic, columns=columns, beside=beside, timestamp_ms=timestamp_ms, partition=one_partition)


def _given(table: pa.Table, source: Any, what: str) -> pa.ChunkedArray:
    if isinstance(source, str):
        if source not in table.column_names:
            raise SchemaMismatchError(
                f"{what}: the data has no column {source}: its columns are {', '.join(table.column_names)}"
            )
        return table.column(source)
    array = source if isinstance(source, (pa.Array, pa.ChunkedArray)) else pa.array(source)
    if len(array) != table.num_rows:
        raise SchemaMismatchError(f"{what}: {len(array)} values for {table.num_rows} rows")
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _separate(topic: TopicDescription, table: pa.Table) -> tuple[pa.Table, dict[str, pa.ChunkedArray]]:
    """Separate the schema's columns from the other fields, and fit the former."""
    if topic.schema is not None:
        names = {name: name for name in (TIMESTAMP, HEADERS, PARTITION, TOMBSTONE)}
        schema = topic.schema
    else:
        names = {"timestamp": TIMESTAMP, "headers": HEADERS, "partition": PARTITION}
        has_key = "key" in table.column_names
        schema = OPAQUE_SCHEMA if has_key else pa.schema([OPAQUE_SCHEMA.field("value")])
        if "value" not in table.column_names:
            raise SchemaMismatchError(
                f"topic {topic.name} is opaque: the data needs a column value, but its columns are "
                f"{', '.join(table.column_names)}"
            )
    found = {meaning: table.column(name) for name, meaning in names.items() if name in table.column_names}
    rest = table.drop_columns([name for name in names if name in table.column_names])
    return conform(rest, schema), found


def _normalized(beside: dict[str, pa.ChunkedArray], now_ms: int) -> dict[str, pa.ChunkedArray]:
    normalized = {}
    for name, column in beside.items():
        try:
            if name == TIMESTAMP:
                normalized[name] = _milliseconds(column, now_ms)
            elif name == HEADERS:
                normalized[name] = _headers(column)
            elif name == PARTITION:
                normalized[name] = pc.fill_null(column.cast(pa.int32()), -1)
            else:
                normalized[name] = pc.fill_null(column.cast(pa.bool_()), False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatchError(f"column {name.removeprefix('__')}: {error}") from error
    return normalized


def _milliseconds(column: pa.ChunkedArray, now_ms: int) -> pa.ChunkedArray:
    """Convert timestamps to milliseconds: integers are milliseconds already, other units are truncated, null means
    now.
    """
    if pat.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif pat.is_date(column.type):
        column = column.cast(pa.date64()).cast(pa.int64())
    elif pat.is_integer(column.type):
        column = column.cast(pa.int64())
    elif not pat.is_null(column.type):
        raise SchemaMismatchError(f"timestamps are milliseconds, timestamps or dates, not {column.type}: cast them")
    column = pc.fill_null(column.cast(pa.int64()), now_ms)
    negative = pc.index(pc.less(column, 0), True).as_py()
    if negative >= 0:
        raise SchemaMismatchError(
            f"row {negative}: timestamp {column[negative]} is before 1970: a log has no such timestamps"
        )
    return column


def _headers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pat.is_map(column.type):
        struct = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
        column = column.cast(pa.list_(struct))
    return column if column.type == HEADERS_TYPE else column.cast(HEADERS_TYPE)


def _check_partitions(topic: TopicDescription, partitions: pa.ChunkedArray) -> None:
    extremes = pc.min_max(partitions)
    for extreme in (extremes["min"].as_py(), extremes["max"].as_py()):
        if extreme is not None and extreme != -1:
            check_partition(topic, extreme)


# --- dividing ------------------------------------------------------------------------------------------------


def divide(
    fitted: Fitted, sticky: StickyPartition, batch_bytes: int, *, number_rows: bool, ignore_keys: bool = False
) -> Iterator[tuple[int, Fitted, Rows | None]]:
    """Divide rows among partitions and cut them to about ``batch_bytes``; yields partition, rows and row numbers.

    Rows that name a partition go there. Rows with a key go to the partition of its hash, unless ``ignore_keys``. The
    other rows go to partitions that ``sticky`` chooses, about one batch to each in turn.
    """
    partitions = _partitions(fitted, ignore_keys=ignore_keys)
    if isinstance(partitions, int):
        parts: Iterable[tuple[int, Fitted, Rows | None]] = [
            (partitions, fitted, range(fitted.num_rows) if number_rows else None)
        ]
    else:
        parts = _parts(fitted, partitions, number_rows)
    for partition, part, numbers in parts:
        for start, count in _cuts(part, batch_bytes):
            target = partition
            if target < 0:
                target = sticky.place(part.size_bytes * count // part.num_rows, fitted.topic)
            if count == part.num_rows:
                yield target, part, numbers
            else:
                yield target, part.slice(start, count), None if numbers is None else numbers[start : start + count]


def _partitions(fitted: Fitted, *, ignore_keys: bool) -> npt.NDArray[np.int32] | int:
    """Return each row's partition, or one number if all are equal; -1 means any partition."""
    topic = fitted.topic
    if fitted.partition is not None:
        return fitted.partition
    explicit = fitted.beside.get(PARTITION)
    if topic.num_partitions == 1:
        return 0
    keys = None
    if ignore_keys:
        pass
    elif topic.schema is not None and topic.key_columns:
        keys = encode_keys(fitted.columns, topic.key_columns)
    elif topic.schema is None and "key" in fitted.columns.column_names:
        keys = encode_keys(fitted.columns, ["key"])
    if keys is None or keys.null_count == len(keys):
        partitions = None
    else:
        partitions = partitions_for_keys(keys, topic.num_partitions)
    if explicit is not None:
        named: npt.NDArray[np.int32] = explicit.to_numpy()
        partitions = named if partitions is None else np.where(named >= 0, named, partitions)
    return -1 if partitions is None else partitions


def _parts(
    fitted: Fitted, partitions: npt.NDArray[np.int32], number_rows: bool
) -> Iterator[tuple[int, Fitted, Rows | None]]:
    whole = fitted.columns
    if isinstance(whole, pa.RecordBatch):
        whole = pa.Table.from_batches([whole])
    for name, column in fitted.beside.items():
        whole = whole.append_column(name, column)
    distinct = np.unique(partitions).tolist()
    if len(distinct) == 1:
        yield distinct[0], fitted, range(len(partitions)) if number_rows else None
        return
    order = np.argsort(partitions, kind="stable") if len(distinct) > _FILTERED_PARTITIONS_MAX else None
    taken = whole.take(pa.array(order)) if order is not None else None
    start = 0
    for partition in distinct:
        mask = partitions == partition
        if taken is not None and order is not None:
            count = int(np.count_nonzero(mask))
            part, numbers = taken.slice(start, count), order[start : start + count] if number_rows else None
            start += count
        else:
            part, numbers = whole.filter(pa.array(mask)), np.flatnonzero(mask) if number_rows else None
        beside = {name: part.column(name) for name in fitted.beside}
        yield partition, replace(fitted, columns=part.select(fitted.columns.column_names), beside=beside), numbers


def _cuts(fitted: Fitted, batch_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of equally long slices of about ``batch_bytes``."""
    if fitted.num_rows <= 1:
        if fitted.num_rows:
            yield 0, 1
        return
    count = min(max(round(fitted.size_bytes / batch_bytes), 1), fitted.num_rows)
    length = -(-fitted.num_rows // count)
    for start in range(0, fitted.num_rows, length):
        yield start, min(length, fitted.num_rows - start)


# --- building ------------------------------------------------------------------------------------------------


def build_batches(
    partition: int, part: Fitted, numbers: Rows | None, *, compression: Compression, max_bytes: int
) -> Iterator[BuiltBatch | RefusedRow]:
    """Build the batch of a part, or several batches if one would exceed ``max_bytes``.

    A single row above ``max_bytes`` is refused.
    """
    records = _build(part, compression)
    if len(records) <= max_bytes:
        timestamp_ms = -1 if TIMESTAMP in part.beside else part.timestamp_ms
        yield BuiltBatch(
            partition=partition,
            records=records,
            num_rows=part.num_rows,
            timestamp_ms=timestamp_ms,
            rows=numbers,
            schema=part.topic.schema,
        )
        return
    if part.num_rows == 1:
        record = f"a record for {part.topic.name}-{partition}"
        yield RefusedRow(error=_too_large(record, len(records), max_bytes), rows=numbers)
        return
    half = part.num_rows // 2
    for start, count in ((0, half), (half, part.num_rows - half)):
        rows = None if numbers is None else numbers[start : start + count]
        yield from build_batches(
            partition, part.slice(start, count), rows, compression=compression, max_bytes=max_bytes
        )


def halves_of(batch: BuiltBatch) -> Iterator[BuiltBatch]:
    """Build a batch of each half of the rows of a batch with several rows, which is too large for its topic."""
    buffer = pa.py_buffer(batch.records)
    header = read_header(buffer, 0)
    whole = decode_batch(buffer, 0, header, lambda schema_id: batch.schema)
    half = batch.num_rows // 2
    for start, end in ((0, half), (half, batch.num_rows)):
        part = whole.slice(start, end)
        stamp_ms = part.constant_timestamp_ms
        records = build_columnar_batch(
            part.columns,
            schema_id=part.schema_id,
            timestamps_ms=part.timestamps_ms() if stamp_ms is None else stamp_ms,
            headers=part.headers,
            tombstones=part.tombstones,
            compression=Compression(header.compression),
            with_checksum=False,
        )
        rows = None if batch.rows is None else batch.rows[start:end]
        yield batch._replace(records=records, num_rows=end - start, rows=rows)


def check_row_sizes(fitted: Fitted, *, compression: Compression, max_bytes: int) -> None:
    """Raise ``MessageTooLargeError`` for the first row whose own batch exceeds ``max_bytes``.

    Only rows that are so large in memory are built, because compression may make them small enough.
    """
    num_columns = fitted.columns.num_columns + len(fitted.beside)
    if not fitted.num_rows or fitted.size_bytes + _COLUMN_BYTES_MAX * num_columns <= max_bytes // 2:
        return
    first = fitted.slice(0, 1)
    overhead_bytes = len(_build(first, Compression.NONE)) - first.size_bytes
    # Other rows may need more padding than the first row, and compression may make a row larger.
    overhead_bytes += _PADDING_BYTES * num_columns + max_bytes // 128
    for number, row in _rows_above(fitted, max_bytes - overhead_bytes):
        size_bytes = len(_build(row, compression))
        if size_bytes > max_bytes:
            raise _too_large(f"row {number} for topic {fitted.topic.name}", size_bytes, max_bytes)


def _rows_above(part: Fitted, size_bytes: int, first: int = 0) -> Iterator[tuple[int, Fitted]]:
    """Yield numbers of the rows with more than ``size_bytes`` in memory, and the rows; halves a table to find them."""
    if part.size_bytes <= size_bytes:
        return
    if part.num_rows == 1:
        yield first, part
        return
    half = part.num_rows // 2
    yield from _rows_above(part.slice(0, half), size_bytes, first)
    yield from _rows_above(part.slice(half, part.num_rows - half), size_bytes, first + half)


def _too_large(record: str, size_bytes: int, max_bytes: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"{record} makes a batch of {size_bytes} bytes, max.request.size is {max_bytes}: raise it, and the topic's "
        "max.message.bytes, or make the record smaller"
    )


def _build(part: Fitted, compression: Compression) -> bytes:
    columns = part.columns
    if isinstance(columns, pa.Table):
        columns = pa.RecordBatch.from_arrays([_whole(column) for column in columns.columns], schema=columns.schema)
    beside = {name: _whole(column) for name, column in part.beside.items() if name != PARTITION}
    return build_columnar_batch(
        columns,
        schema_id=part.topic.schema_id,
        timestamps_ms=beside.get(TIMESTAMP, part.timestamp_ms),
        headers=beside.get(HEADERS),
        tombstones=beside.get(TOMBSTONE),
        compression=compression,
        with_checksum=False,
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
