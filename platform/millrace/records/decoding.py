"""Decoder of batches to Arrow for consumers, Spark and tools.

Invariants:

- plain columnar buffers are not copied: the columns point into the passed buffer, and keep it alive;
- columns that the caller did not request are not decompressed; reserved columns are read on first access;
- any bytes give a ``DecodedBatch`` of ``header.count`` rows or a ``CorruptBatchError``. The decoder trusts the checksum
  for values inside a variable-length column, because the broker checked them (``validate_batch``).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import CorruptBatchError, UnsupportedCompressionError
from millrace.records.arrays import int64_scalar, null_binary_array, repeated_int64, without_columns
from millrace.records.columnar import (
    HEADERS_COLUMN,
    OFFSET_COLUMN,
    OPAQUE_SCHEMA,
    OPAQUE_SCHEMA_ID,
    TIMESTAMP_COLUMN,
    TOMBSTONE_COLUMN,
    ColumnFlags,
    ColumnsHeader,
    opaque_body_schema,
    read_columns_header,
    typed_body_schema,
)
from millrace.records.columnar_message import ColumnarMessage
from millrace.records.committed import AbortedTransaction, CommittedFilter
from millrace.records.compression import DECOMPRESSED_BYTES_MAX
from millrace.records.header import LOG_OVERHEAD_BYTES, BatchHeader, TimestampType, read_header
from millrace.records.row_columns import RowColumns, rows_to_columns, run_to_columns
from millrace.records.scan import crc_matches, scan_headers, verify_crc
from millrace.records.statistics import BatchStatistics, read_statistics
from millrace.schemas.promotion import promote

SchemaOf: TypeAlias = Callable[[int], pa.Schema]
"""Function that finds the schema of an id; called for typed batches only. Raises ``UnknownSchemaError``."""

Wanted: TypeAlias = Callable[[BatchHeader, BatchStatistics | None], bool]
"""Predicate: whether a batch may hold requested records, by its header and its statistics, if any."""

_SMALL_ROWS_MAX: Final = 2_000
_RUN_ROWS_MAX: Final = 16_384
_RUN_BYTES_MAX: Final = 2**22
"""Small batches are decoded several at once, up to these numbers of rows and bytes."""


class DecodedBatch:
    """Decoded records as Arrow columns.

    The records are those of one batch, of a range within a batch, or of several small batches of rows.

    ``header`` is the batch's. The header of several batches has their first and last offset, their size and number of
    records together, and their largest timestamp. Its other fields are those of the first batch. ``batch_count`` is the
    number of batches.

    ``columns`` holds the requested columns of the schema (``key`` and ``value`` in an opaque topic). ``offsets()``,
    ``timestamps_ms()``, ``headers`` and ``tombstones`` give the other fields of the records. Instances are immutable.
    """

    __slots__ = ("_beside", "_first_row", "batch_count", "columns", "header", "schema_id")

    def __init__(
        self,
        header: BatchHeader,
        schema_id: int,
        columns: pa.RecordBatch,
        beside: _Beside,
        *,
        batch_count: int = 1,
        first_row: int = 0,
    ) -> None:
        self.header = header
        self.batch_count = batch_count
        self.schema_id = schema_id
        self.columns = columns
        self._beside = beside
        self._first_row = first_row

    @property
    def num_rows(self) -> int:
        """Number of records."""
        rows: int = self.columns.num_rows
        return rows

    def offsets(self) -> pa.Int64Array:
        """Return the absolute offset of each record."""
        ascending = self.offset_range()
        if ascending is not None:
            return pa.arange(ascending.start, ascending.stop)
        deltas: Any = self._reserved(OFFSET_COLUMN)
        return pc.add(deltas.cast(pa.int64()), int64_scalar(self.header.base_offset))

    def offset_range(self) -> range | None:
        """Return the offsets as a range if they ascend by one; ``None`` if the batch stores them individually."""
        if self.has_gaps:
            return None
        start = self.header.base_offset + self._first_row
        return range(start, start + self.num_rows)

    @property
    def has_gaps(self) -> bool:
        """True if the batch stores each offset. Otherwise the offsets ascend by one from its base offset."""
        return self._beside.has(OFFSET_COLUMN)

    @property
    def constant_timestamp_ms(self) -> int | None:
        """The common timestamp of all records; ``None`` if each record has its own."""
        return self._beside.constant_timestamp

    def timestamps_ms(self) -> pa.Int64Array:
        """Return the timestamp of each record, in milliseconds; -1 means no timestamp."""
        constant = self._beside.constant_timestamp
        if constant is not None:
            return repeated_int64(constant, self.num_rows)
        return self._reserved(TIMESTAMP_COLUMN)

    def time_range_ms(self) -> tuple[int, int]:
        """Return the smallest and the largest timestamp. There must be records."""
        constant = self._beside.constant_timestamp
        if constant is not None:
            return constant, constant
        extremes = pc.min_max(self._reserved(TIMESTAMP_COLUMN)).as_py()
        return extremes["min"], extremes["max"]

    @property
    def headers(self) -> pa.ListArray | None:
        """Headers of the records as ``HEADERS_TYPE``, or ``None`` if no record has any."""
        return self._reserved(HEADERS_COLUMN)

    @property
    def tombstones(self) -> pa.BooleanArray | None:
        """Deletion flags of a typed topic's records, or ``None`` without deletions; opaque deletions have a null
        value.
        """
        return self._reserved(TOMBSTONE_COLUMN)

    def slice(self, start_offset: int, end_offset: int) -> DecodedBatch:
        """Return the records from ``start_offset`` up to, but not including, ``end_offset``, without a copy."""
        if start_offset <= self.header.base_offset and end_offset > self.header.last_offset:
            return self
        first, last = self._row_of(start_offset), self._row_of(end_offset)
        columns = self.columns.slice(first, max(last - first, 0))
        return DecodedBatch(
            self.header,
            self.schema_id,
            columns,
            self._beside,
            batch_count=self.batch_count,
            first_row=self._first_row + first,
        )

    def read_as(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the columns of ``schema``, in its order, with nulls for columns that this batch does not have.

        Readers use it for batches of other versions of the topic's schema. Values are promoted to the types of
        ``schema``.
        """
        present = set(self.columns.schema.names)
        arrays = [
            promote(self.columns.column(field.name), field.type)
            if field.name in present
            else pa.nulls(self.num_rows, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _row_of(self, offset: int) -> int:
        """Return the index of the first record at or after ``offset``."""
        delta = offset - self.header.base_offset
        deltas = self._reserved(OFFSET_COLUMN)
        if deltas is None:
            row = delta - self._first_row
        else:
            row = bisect_left(memoryview(deltas.buffers()[1]).cast("i")[deltas.offset :][: len(deltas)], delta)
        return min(max(row, 0), self.num_rows)

    def _reserved(self, name: str) -> pa.Array | None:
        array = self._beside.column(name)
        return None if array is None else array.slice(self._first_row, self.num_rows)

    def __repr__(self) -> str:
        return (
            f"DecodedBatch(base_offset={self.header.base_offset}, num_rows={self.num_rows}, "
            f"schema_id={self.schema_id}, columns={self.columns.schema.names})"
        )


class _Beside:
    """Fields of a batch outside its schema's columns, decoded on first access."""

    def __init__(
        self,
        constant_timestamp: int | None,
        columns: dict[str, pa.Array | None],
        load: Callable[[str], pa.Array] | None = None,
    ) -> None:
        self.constant_timestamp = constant_timestamp
        self._columns = columns
        self._load = load

    def has(self, name: str) -> bool:
        """Return whether the batch has a reserved column, without decoding it."""
        return name in self._columns

    def column(self, name: str) -> pa.Array | None:
        """Return the reserved column of the whole batch, or ``None`` if the batch does not have it."""
        if name not in self._columns:
            return None
        array = self._columns[name]
        if array is None and self._load is not None:
            array = self._columns[name] = self._load(name)
        return array


def decode_batch(
    buffer: pa.Buffer,
    position: int,
    header: BatchHeader,
    schema_of: SchemaOf,
    columns: Sequence[str] | None = None,
    *,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> DecodedBatch:
    """Decode the batch at ``position``; the caller has verified its checksum.

    ``columns`` names the schema's columns to read; ``None`` means all. Names that the batch's own version of the
    schema does not have are ignored (``DecodedBatch.read_as`` fills them). A compressed body may grow to
    ``max_bytes``.

    Raises ``CorruptBatchError``, ``UnsupportedCompressionError``, and the errors of ``schema_of``.
    """
    if not header.is_columnar:
        names = _opaque_names(columns)
        return _decoded_rows(header, rows_to_columns(buffer, position, header, names, max_bytes=max_bytes), names)
    layout = read_columns_header(buffer, position, header)
    if layout.schema_id == OPAQUE_SCHEMA_ID:
        schema = opaque_body_schema(layout.flags)
    else:
        schema = typed_body_schema(schema_of(layout.schema_id), layout.flags)
    message = ColumnarMessage(buffer, position, header, layout, schema, max_bytes)
    names, reserved_count = schema.names, layout.reserved_column_count
    selected = [index for index in range(reserved_count, len(names)) if columns is None or names[index] in columns]
    body = message.read(selected)
    if layout.schema_id == OPAQUE_SCHEMA_ID and not layout.flags & ColumnFlags.KEY:
        body = _with_null_key(body, header.count, columns)
    reserved: dict[str, pa.Array | None] = dict.fromkeys(names[:reserved_count])
    beside = _Beside(_constant_timestamp(header, layout), reserved, message.read_reserved)
    return DecodedBatch(header, layout.schema_id, body, beside)


def decode_range(
    buffer: pa.Buffer,
    start_offset: int,
    end_offset: int,
    schema_of: SchemaOf,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    aborted: Iterable[AbortedTransaction] = (),
    wanted: Wanted | None = None,
) -> Iterator[DecodedBatch]:
    """Read the records of [``start_offset``, ``end_offset``) from a run of whole batches, in order.

    Small batches of rows that follow each other are given together, if they have one leader epoch and timestamp type.
    Batches outside the range and control batches are skipped; the first and last batch are cut to the range.
    ``verify=False`` skips the checksums, for a buffer that was verified before. For a reader of committed records,
    ``aborted`` holds the aborted transactions that overlap the range. Their batches are skipped, and the range must
    end before the last stable offset. Batches that ``wanted`` refuses are skipped; those with valid statistics are
    not read.

    Raises the errors of ``decode_batch``. Raises ``CorruptBatchError`` for a wrong checksum or for offsets that do not
    ascend from batch to batch. Raises it too if the buffer ends within a batch of the range.
    """
    position, size, least_offset = 0, len(buffer), 0
    committed = CommittedFilter(aborted)
    while position < size:
        header = read_header(buffer, position)
        _check_follows(header, least_offset, position)
        if header.base_offset >= end_offset:
            _check_rest(buffer, position)
            return
        known = _known(buffer, position, header) if wanted is not None else None
        is_refused = wanted is not None and known is not None and not wanted(header, known)
        # Verify the checksum before the header decides, because a flipped bit in the header could skip the batch
        # unread. Valid statistics need no such check: their own checksum also covers the relevant header fields.
        if verify and not is_refused:
            verify_crc(buffer, position, header)
        elif position + header.size_bytes > size:
            raise CorruptBatchError(f"the buffer ends within the batch with base offset {header.base_offset}")
        if wanted is not None and known is None:
            is_refused = not wanted(header, None)
        if header.next_offset > start_offset and not is_refused and committed.admits(header):
            run = _small_rows_from(buffer, position, header, end_offset, committed, verify=verify)
            for decoded in _decode_run(buffer, run, schema_of, columns, max_bytes):
                clipped = decoded.slice(start_offset, end_offset)
                if clipped.num_rows:
                    yield clipped
            position, header = run[-1]
        position, least_offset = position + header.size_bytes, header.next_offset


def _known(buffer: pa.Buffer, position: int, header: BatchHeader) -> BatchStatistics | None:
    """Return the statistics of a complete batch; errors of other batches are reported when they are verified."""
    if not header.is_columnar or position + header.size_bytes > len(buffer):
        return None
    try:
        return read_statistics(buffer, position, header)
    except CorruptBatchError:
        return None


def _check_rest(buffer: pa.Buffer, position: int) -> None:
    """Check that offsets also ascend behind the range, because a damaged offset would hide the batches after it."""
    least_offset = 0
    for found, header in scan_headers(buffer, position):
        _check_follows(header, least_offset, found)
        least_offset = header.next_offset


def _check_follows(header: BatchHeader, least_offset: int, position: int) -> None:
    if header.base_offset < least_offset:
        raise CorruptBatchError(
            f"batch at position {position}: offset {header.base_offset} does not follow {least_offset - 1}"
        )


def _small_rows_from(
    buffer: pa.Buffer,
    position: int,
    first: BatchHeader,
    end_offset: int,
    committed: CommittedFilter,
    *,
    verify: bool,
) -> list[tuple[int, BatchHeader]]:
    """Return the batch at ``position``, and the small rows batches like it that follow, up to a size limit.

    The run ends before a batch that is skipped or damaged. Its damage is reported when that batch is read.
    """
    run = [(position, first)]
    rows, size = first.count, first.size_bytes
    if not _is_small_rows(first):
        return run
    with contextlib.suppress(CorruptBatchError):
        for following, header in scan_headers(buffer, position + first.size_bytes):
            rows, size = rows + header.count, size + header.size_bytes
            if not _is_small_rows(header) or rows > _RUN_ROWS_MAX or size > _RUN_BYTES_MAX:
                break
            if not committed.admits(header) or not _are_alike(header, first):
                break
            if header.base_offset < run[-1][1].next_offset:
                break
            if header.base_offset >= end_offset or (verify and not crc_matches(buffer, following, header)):
                break
            run.append((following, header))
    return run


def _is_small_rows(header: BatchHeader) -> bool:
    return not (header.is_columnar or header.is_control) and 0 < header.count <= _SMALL_ROWS_MAX


def _are_alike(one: BatchHeader, other: BatchHeader) -> bool:
    """Return whether the fields are equal that readers take from a header for all of its records."""
    return one.partition_leader_epoch == other.partition_leader_epoch and one.timestamp_type is other.timestamp_type


def _decode_run(
    buffer: pa.Buffer,
    run: list[tuple[int, BatchHeader]],
    schema_of: SchemaOf,
    columns: Sequence[str] | None,
    max_bytes: int,
) -> Iterator[DecodedBatch]:
    if len(run) > 1:
        names = _opaque_names(columns)
        try:
            rows = run_to_columns(buffer, run, names, max_bytes=min(max_bytes, _RUN_BYTES_MAX))
        except (CorruptBatchError, UnsupportedCompressionError):
            pass  # decode one by one, so that the batches before the damaged one can be read
        else:
            yield _decoded_rows(_header_of_run([header for _, header in run]), rows, names, batch_count=len(run))
            return
    for position, header in run:
        yield decode_batch(buffer, position, header, schema_of, columns, max_bytes=max_bytes)


def _header_of_run(headers: list[BatchHeader]) -> BatchHeader:
    first, last = headers[0], headers[-1]
    return first._replace(
        batch_length=sum(header.size_bytes for header in headers) - LOG_OVERHEAD_BYTES,
        last_offset_delta=last.last_offset - first.base_offset,
        max_timestamp=max(header.max_timestamp for header in headers),
        count=sum(header.count for header in headers),
    )


def _opaque_names(columns: Sequence[str] | None) -> list[str]:
    return [name for name in OPAQUE_SCHEMA.names if columns is None or name in columns]


def _decoded_rows(header: BatchHeader, rows: RowColumns, names: list[str], batch_count: int = 1) -> DecodedBatch:
    arrays = [rows.columns[name] for name in names]
    body = pa.RecordBatch.from_arrays(arrays, names=names) if arrays else without_columns(header.count)
    beside = {
        OFFSET_COLUMN: rows.offset_deltas,
        TIMESTAMP_COLUMN: rows.timestamps_ms,
        HEADERS_COLUMN: rows.headers,
    }
    reserved = {name: array for name, array in beside.items() if array is not None}
    return DecodedBatch(header, OPAQUE_SCHEMA_ID, body, _Beside(None, reserved), batch_count=batch_count)


def _constant_timestamp(header: BatchHeader, layout: ColumnsHeader) -> int | None:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    if layout.flags & ColumnFlags.TIMESTAMPS:
        return None
    if header.has_delete_horizon:
        raise CorruptBatchError(
            f"columnar batch with base offset {header.base_offset} has a delete horizon, but no timestamp column"
        )
    return header.base_timestamp


def _with_null_key(body: pa.RecordBatch, row_count: int, columns: Sequence[str] | None) -> pa.RecordBatch:
    if columns is not None and "key" not in columns:
        return body
    nulls = null_binary_array(row_count)
    if body.num_columns == 1:  # several times faster than adding a column
        return pa.RecordBatch.from_arrays([nulls, body.column(0)], schema=OPAQUE_SCHEMA)
    return body.add_column(0, OPAQUE_SCHEMA.field("key"), nulls)
