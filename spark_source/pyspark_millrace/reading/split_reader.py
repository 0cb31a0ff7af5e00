"""Reading of a split, from segment files, remote store or gRPC.

All three give the same batches to the same decoder, which verifies checksums and cuts to the split's offsets. A file is
read directly under four conditions. The broker named it, it exists on this machine, and it is as long as the extent.
Its directory holds the partition of the topic with the same id. So the choice needs no configuration. A file that
retention removed between planning and reading is read from the broker, which may report the loss. Segments in the
remote store of a tiered topic are read from there in ranges. After an error the rest is read from the broker.

Invariant: every batch has exactly the layout's Arrow schema, because Spark checks only the first.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import (
    InconsistentTopicIdError,
    InvalidTimestampError,
    MillraceError,
    OffsetOutOfRangeError,
    OffsetsLostError,
    RemoteStorageError,
    SchemaMismatchError,
    StorageError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from millrace.records import DecodedBatch, decode_range, end_of_batches
from millrace.schemas import promote
from millrace.segments.direct import map_located
from pyspark_millrace.columns import Metadata, TopicColumn
from pyspark_millrace.options.source import DirectReads, SourceOptions
from pyspark_millrace.planning.splits import Extent, PlannedSplit
from pyspark_millrace.reading.layout import ReadLayout
from pyspark_millrace.reading.reports import ReadCounters

_log = logging.getLogger(__name__)

_COALESCED_BYTES_MAX: Final = 4 * 2**20
"""Small batches are combined up to the requested rows, or up to this size."""


def read_split(
    split: PlannedSplit,
    layout: ReadLayout,
    options: SourceOptions,
    sources: Sources,
    counters: ReadCounters | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read one split as batches of at most ``options.rows_per_batch`` rows, and update ``counters``.

    Raises ``CorruptBatchError``, ``OffsetsLostError`` (unless losses are accepted; then they are logged), and the
    client's errors if the broker does not answer.
    """
    assembler = Assembler(layout, split.range.key.topic, split.range.key.partition, options.rows_per_batch)
    for decoded in _decoded(split, layout, options, sources, counters or ReadCounters()):
        yield from assembler.add(decoded)
    yield from assembler.flush()


@dataclass(frozen=True, slots=True)
class Sources:
    """Client calls for data that is not in files.

    The task passes these calls in. ``read_range(split, start, end)`` streams runs of whole batches.
    ``log_start(split)`` returns the partition's first retained offset. ``schema_of(id)`` finds a typed topic's schema.
    """

    read_range: Callable[[PlannedSplit, int, int], Iterator[bytes]]
    log_start: Callable[[PlannedSplit], int]
    schema_of: Callable[[int], pa.Schema]


def _decoded(
    split: PlannedSplit, layout: ReadLayout, options: SourceOptions, sources: Sources, counters: ReadCounters
) -> Iterator[DecodedBatch]:
    columns, wanted = layout.topic_columns, None
    if layout.row_filter is not None:
        wanted = layout.row_filter.wanted(split.range.key, sources.schema_of, counters.skip)
    for extent in split.extents:
        position = extent.start_offset
        while position < extent.end_offset:
            rest = replace(extent, start_offset=position)
            try:
                for buffer in _buffers(split, rest, options.direct_reads, sources):
                    counters.located_bytes += len(buffer)
                    for decoded in decode_range(
                        buffer,
                        position,
                        rest.end_offset,
                        sources.schema_of,
                        columns,
                        aborted=rest.aborted,
                        wanted=wanted,
                    ):
                        counters.count(decoded)
                        yield decoded
                        # Batches already yielded are not read again if the rest comes by another path.
                        position = decoded.header.next_offset
                break
            except _GONE as error:
                position = _after_loss(split, position, rest.end_offset, options, sources, error)


_GONE: Final = (
    OffsetOutOfRangeError,
    OffsetsLostError,
    InconsistentTopicIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
"""Errors if records were removed between planning and reading, by retention or with their topic."""


def _after_loss(
    split: PlannedSplit, start: int, end: int, options: SourceOptions, sources: Sources, error: MillraceError
) -> int:
    """Return the offset at which to resume after records were removed during the read, or raise."""
    first_left = min(max(sources.log_start(split), start), end)
    if first_left == start:
        # The records exist, so the cause is another fault.
        raise error
    lost = f"offsets {start}..{first_left - 1} of {split.range.key} were removed while they were being read"
    if options.fail_on_data_loss:
        remedy = "read the topic again" if first_left == end else f"start at {first_left}"
        raise OffsetsLostError(
            f"{lost} ({error.message}): {remedy}, or set failOnDataLoss=false to continue without them"
        ) from error
    _log.warning("%s (%s); the query continues without them, because failOnDataLoss is false", lost, error.message)
    return first_left


def _buffers(split: PlannedSplit, extent: Extent, direct_reads: DirectReads, sources: Sources) -> Iterator[pa.Buffer]:
    if direct_reads is not DirectReads.NEVER:
        if extent.uri:
            next_offset, obstacle = yield from _remote_buffers(extent)
            extent = replace(extent, start_offset=max(extent.start_offset, next_offset))
        else:
            obstacle = yield from _mapped_buffers(extent, split.range.topic_id)
        if obstacle is None:
            return
        if direct_reads is DirectReads.ALWAYS:
            raise StorageError(
                f"directReads=always, but offsets {extent.start_offset}..{extent.end_offset - 1} of {split.range.key} "
                f"cannot be read from a file here: {obstacle}; set directReads=auto to read them over the network"
            )
    for chunk in sources.read_range(split, extent.start_offset, extent.end_offset):
        yield pa.py_buffer(chunk)


def _mapped_buffers(extent: Extent, topic_id: uuid.UUID) -> Generator[pa.Buffer, None, str | None]:
    """Map an extent; returns the obstacle, None after success."""
    mapped = map_located(
        extent.path, extent.start_position, extent.end_position, start_offset=extent.start_offset, topic_id=topic_id
    )
    if isinstance(mapped, str):
        return mapped
    yield mapped
    return None


def _remote_buffers(extent: Extent) -> Generator[pa.Buffer, None, tuple[int, str | None]]:
    """Read an extent from the remote store; returns the next offset, and the obstacle if the read stopped early."""
    from millrace.segments.remote import read_remote_extent

    next_offset = extent.start_offset
    try:
        for buffer in read_remote_extent(extent.uri, extent.start_position, extent.end_position):
            yield buffer
            next_offset = end_of_batches(buffer, next_offset)
    except (OffsetsLostError, RemoteStorageError) as error:
        _log.warning("%s; reading over the network", error.message)
        return next_offset, error.message
    return next_offset, None


class Assembler:
    """Assembly of decoded batches of one partition into output batches.

    An output batch has up to ``rows_per_batch`` rows. Large batches are sliced and small ones combined, because a batch
    costs Spark about 100 us whatever its size. Columns with the same value in every row are built once and sliced. A
    batch of large values is passed on unchanged.
    """

    def __init__(self, layout: ReadLayout, topic: str, partition: int, rows_per_batch: int) -> None:
        self._layout = layout
        self._schema = layout.arrow_schema()
        self._compared_types = () if layout.row_filter is None else layout.row_filter.arrow_types()
        self._rows = rows_per_batch
        self._where = f"{topic}-{partition}"
        self._constants: Mapping[Metadata, pa.Scalar] = {
            Metadata.TOPIC: pa.scalar(topic, pa.string()),
            Metadata.PARTITION: pa.scalar(partition, pa.int32()),
        }
        self._repeated: dict[Any, pa.Array] = {}
        self._pending: list[list[pa.Array]] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    def add(self, decoded: DecodedBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch; yields the batches that are complete."""
        arrays, rows = self._matching(decoded)
        if not rows:
            return
        size_bytes = sum(array.nbytes for array in arrays)
        if self._pending_rows + rows > self._rows or self._pending_bytes + size_bytes > _COALESCED_BYTES_MAX:
            yield from self.flush()
        if rows > self._rows:
            yield from self._sliced(arrays, rows)
            return
        self._pending.append(arrays)
        self._pending_rows += rows
        self._pending_bytes += size_bytes

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are still held."""
        if not self._pending_rows:
            return
        columns = [
            pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces) for pieces in zip(*self._pending, strict=True)
        ]
        rows = self._pending_rows
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        yield self._batch(columns, rows)

    def _sliced(self, arrays: list[pa.Array], rows: int) -> Iterator[pa.RecordBatch]:
        """Cut into equal slices, rather than full ones and a small rest."""
        count = -(-rows // self._rows)
        edges = [rows * number // count for number in range(count + 1)]
        for number in range(count):
            start, length = edges[number], edges[number + 1] - edges[number]
            yield self._batch([array.slice(start, length) for array in arrays], length)

    def _batch(self, arrays: list[pa.Array], rows: int) -> pa.RecordBatch:
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        # A batch without columns would lose its row count, and count() reads no columns.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))

    def _matching(self, decoded: DecodedBatch) -> tuple[list[pa.Array], int]:
        """Return the columns of the rows that pass the layout's filter, and the number of these rows."""
        row_filter, rows = self._layout.row_filter, decoded.num_rows
        if row_filter is None:
            return self._arrays(decoded), rows
        compared = {
            column.name: self._array(decoded, column, data_type)
            for column, data_type in zip(row_filter.columns, self._compared_types, strict=True)
        }
        matching = row_filter.rows_matching(compared, rows)
        left = matching.true_count
        if not left:
            return [], 0
        arrays = self._arrays(decoded)
        return (arrays if left == rows else [array.filter(matching) for array in arrays]), left

    def _arrays(self, decoded: DecodedBatch) -> list[pa.Array]:
        arrays = []
        for column, field in zip(self._layout.columns, self._schema, strict=True):
            array = self._array(decoded, column, field.type)
            if not column.nullable and array.null_count:
                raise self._misfit(decoded, column, "has nulls")
            arrays.append(array)
        return arrays

    def _array(self, decoded: DecodedBatch, column: TopicColumn, data_type: pa.DataType) -> pa.Array:
        if isinstance(column.source, Metadata):
            return self._metadata(column.source, decoded)
        if column.source in decoded.columns.schema.names:
            array = decoded.columns.column(column.source)
            try:
                return promote(array, data_type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise self._misfit(decoded, column, f"is {array.type} with values that do not fit ({error})") from error
        # The batch is older than the column, or newer than its removal.
        return self._repeat(pa.scalar(None, data_type), decoded.num_rows)

    def _misfit(self, decoded: DecodedBatch, column: TopicColumn, what: str) -> SchemaMismatchError:
        """Return the error for a schema change under a running query that forward compatibility would have refused."""
        required = "" if column.nullable else " NOT NULL"
        return SchemaMismatchError(
            f"column {column.name} of {self._where} {what} from offset {decoded.header.base_offset} (schema "
            f"{decoded.schema_id}), but the query started with {column.type.simpleString().upper()}{required}: start "
            "the query again, so that it uses the topic's newest schema"
        )

    def _metadata(self, kind: Metadata, decoded: DecodedBatch) -> pa.Array:
        rows = decoded.num_rows
        if kind in self._constants:
            return self._repeat(self._constants[kind], rows)
        if kind is Metadata.OFFSET:
            return decoded.offsets()
        if kind is Metadata.TIMESTAMP:
            return _microseconds(decoded)
        if kind is Metadata.TIMESTAMP_TYPE:
            return self._repeat(pa.scalar(int(decoded.header.timestamp_type), pa.int32()), rows)
        if kind is Metadata.TOMBSTONE:
            return self._tombstones(decoded)
        return self._headers(decoded)

    def _headers(self, decoded: DecodedBatch) -> pa.Array:
        """Return the headers, null for a record without headers, as in Spark's Kafka source."""
        headers = decoded.headers
        if headers is None:
            return self._repeat(pa.scalar(None, _HEADERS), decoded.num_rows)
        has_some = pc.greater(pc.list_value_length(headers), 0)
        return pc.if_else(has_some, headers.cast(_HEADERS), pa.scalar(None, _HEADERS))

    def _tombstones(self, decoded: DecodedBatch) -> pa.Array:
        if self._layout.is_opaque:
            return decoded.columns.column("value").is_null()
        if decoded.tombstones is not None:
            return decoded.tombstones
        return self._repeat(pa.scalar(False), decoded.num_rows)

    def _repeat(self, value: pa.Scalar, rows: int) -> pa.Array:
        key = (value.type, value.as_py())
        array = self._repeated.get(key)
        if array is None or len(array) < rows:
            array = self._repeated[key] = pa.repeat(value, max(rows, self._rows))
        return array.slice(0, rows)


_HEADERS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")


def _microseconds(decoded: DecodedBatch) -> pa.Array:
    try:
        return pc.multiply_checked(decoded.timestamps_ms(), 1000).view(_MICROSECONDS)
    except pa.ArrowInvalid:
        raise InvalidTimestampError(
            f"a timestamp of the batch with base offset {decoded.header.base_offset} is beyond Spark's range "
            "(microseconds in 64 bits): leave the timestamp column out with the option columns"
        ) from None
