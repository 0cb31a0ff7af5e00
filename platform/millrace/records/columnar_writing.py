"""Writer of columnar batches from Arrow columns, which copies each buffer once."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import InvalidRecordError, InvalidTimestampError, SchemaMismatchError, UnsupportedCompressionError
from millrace.records.arrays import int64_scalar, repeated_int64
from millrace.records.columnar import (
    HEADERS_TYPE,
    OPAQUE_SCHEMA_ID,
    RESERVED_PREFIX,
    ColumnFlags,
    opaque_body_schema,
    typed_body_schema,
)
from millrace.records.compression import Compression
from millrace.records.header import (
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    attributes_of,
)
from millrace.records.statistics import gather_entries, seal_columnar

_ARROW_COMPRESSIONS: Final = {Compression.NONE: None, Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}
_UNASSIGNED_LEADER_EPOCH: Final = -1
_COPIED_BYTES_MAX: Final = 16 * 1024
_BINARY: Final = pa.binary()


def build_columnar_batch(
    columns: pa.RecordBatch,
    *,
    schema_id: int = OPAQUE_SCHEMA_ID,
    timestamps_ms: int | pa.Int64Array = NO_TIMESTAMP,
    headers: pa.ListArray | None = None,
    tombstones: pa.BooleanArray | None = None,
    offsets: pa.Int64Array | None = None,
    last_offset_delta: int | None = None,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    delete_horizon_ms: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    base_offset: int = 0,
    leader_epoch: int = _UNASSIGNED_LEADER_EPOCH,
    with_checksum: bool = True,
) -> bytes:
    """Build a whole batch, checksum and padding included.

    ``with_checksum=False`` leaves the checksum 0 for a caller that changes the header and computes the checksum then.

    ``columns`` holds binary ``value`` and optionally ``key`` for schema id 0. For other schema ids it holds the
    schema's columns in their order. If ``columns`` is a slice of a larger batch, only its rows are written.
    ``timestamps_ms`` is one for all rows or one per row. With ``TimestampType.LOG_APPEND_TIME`` the largest applies
    to all rows. ``headers`` is a list of ``HEADERS_TYPE`` per row.

    ``offsets``, ``last_offset_delta`` and ``delete_horizon_ms`` are for compaction. ``offsets`` are the absolute
    offsets of the remaining rows, ascending from ``base_offset``. ``last_offset_delta`` comes from the last offset of
    the original batch. ``delete_horizon_ms`` is the time from which compaction may drop the batch's tombstones.

    Raises ``UnsupportedCompressionError`` for gzip and snappy, and ``MessageTooLargeError`` above 2 GiB. Raises
    ``SchemaMismatchError`` for opaque columns of another name or type. Raises ``InvalidRecordError`` for arrays of
    another length or impossible offsets, and ``InvalidTimestampError`` for timestamps below -1.
    """
    if compression not in _ARROW_COMPRESSIONS:
        raise UnsupportedCompressionError(
            f"{compression.name.lower()} cannot compress columnar batches: choose none, lz4 or zstd"
        )
    reserved = _ReservedColumns(columns.num_rows)
    reserved.add_offsets(offsets, base_offset)
    reserved.add_timestamps(timestamps_ms, keep=delete_horizon_ms is not None)
    reserved.add(ColumnFlags.HEADERS, headers, HEADERS_TYPE)
    reserved.add(ColumnFlags.TOMBSTONES, tombstones, pa.bool_())
    flags, message, entries = _body(columns, schema_id, reserved, _ARROW_COMPRESSIONS[compression])
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes_of(
            compression=compression,
            timestamp_type=timestamp_type,
            is_transactional=is_transactional,
            has_delete_horizon=delete_horizon_ms is not None,
            is_columnar=True,
        ),
        last_offset_delta=reserved.last_offset_delta if last_offset_delta is None else last_offset_delta,
        base_timestamp=reserved.base_timestamp if delete_horizon_ms is None else delete_horizon_ms,
        max_timestamp=reserved.max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=columns.num_rows,
    )
    return seal_columnar(header, flags, schema_id, message, entries, with_checksum=with_checksum)


def _body(
    columns: pa.RecordBatch, schema_id: int, reserved: _ReservedColumns, compression: str | None
) -> tuple[int, list[Any], bytes]:
    """Return the column flags, the pieces of the message and the entries of the statistics."""
    flags = reserved.flags
    if schema_id == OPAQUE_SCHEMA_ID:
        arrays = _opaque_arrays(columns)
        flags |= ColumnFlags.KEY if len(arrays) == 2 else 0
        schema = opaque_body_schema(flags)
        summed: list[pa.Array | None] = [*arrays] if len(arrays) == 2 else [None, *arrays]
    else:
        for name in columns.schema.names:
            if name.startswith(RESERVED_PREFIX):
                raise SchemaMismatchError(f"column {name}: names that begin with {RESERVED_PREFIX} are reserved")
        arrays = columns.columns
        schema = typed_body_schema(columns.schema, flags)
        summed = [*arrays]
    message = _message_parts(pa.RecordBatch.from_arrays(reserved.arrays + arrays, schema=schema), compression)
    return flags, message, gather_entries(summed, reserved.timestamps)


class _ReservedColumns:
    """Collector of the reserved columns and the header fields that describe them."""

    def __init__(self, row_count: int) -> None:
        self.flags = 0
        self.arrays: list[pa.Array] = []
        self.base_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.timestamps: pa.Array | None = None
        """Values of ``__timestamp``, if that column exists and the records have their own times."""
        self.last_offset_delta = max(row_count - 1, 0)
        self._row_count = row_count

    def add(self, flag: ColumnFlags, array: pa.Array | None, type_: pa.DataType) -> None:
        """Add a reserved column if ``array`` is given; the order of calls is the order of columns."""
        if array is None:
            return
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if len(array) != self._row_count:
            raise InvalidRecordError(f"{len(array)} {flag.name} for {self._row_count} rows".lower())
        if flag is not ColumnFlags.HEADERS and array.null_count:
            raise InvalidRecordError(f"nulls among the {flag.name}".lower())
        self.flags |= flag
        self.arrays.append(array if array.type.equals(type_) else array.cast(type_))

    def add_offsets(self, offsets: pa.Array | None, base_offset: int) -> None:
        """Add ``__offset`` unless the offsets ascend by one from the base offset."""
        if offsets is None or not self._row_count:
            return
        deltas = pc.subtract(offsets, int64_scalar(base_offset))
        first, last = deltas[0].as_py(), deltas[-1].as_py()
        if first < 0 or last > 2**31 - 1 or not pc.all(pc.greater(deltas[1:], deltas[:-1]), min_count=0).as_py():
            raise InvalidRecordError(
                f"offsets {base_offset + first}..{base_offset + last} do not ascend from {base_offset} on"
            )
        self.last_offset_delta = last
        if last != self._row_count - 1:
            self.add(ColumnFlags.OFFSETS, deltas.cast(pa.int32()), pa.int32())

    def add_timestamps(self, timestamps_ms: int | pa.Array, *, keep: bool) -> None:
        """Add ``__timestamp`` unless all timestamps are equal.

        ``keep`` adds it even then, because the delete horizon takes the header's timestamp field.
        """
        if isinstance(timestamps_ms, int):
            low = high = timestamps_ms
            timestamps = repeated_int64(low, self._row_count) if keep else None
        else:
            timestamps = _as_milliseconds(timestamps_ms)
            if not self._row_count:
                return
            extremes: dict[str, Any] = pc.min_max(timestamps).as_py()
            low, high = extremes["min"], extremes["max"]
            if low is None:
                raise InvalidRecordError("all timestamps are null")
        if low < NO_TIMESTAMP:
            raise InvalidTimestampError(f"timestamp {low}: timestamps are milliseconds from 0, or -1 for none")
        if timestamps is not None and (low != high or keep or timestamps.null_count):
            self.add(ColumnFlags.TIMESTAMPS, timestamps, pa.int64())
            self.timestamps = timestamps
            low = timestamps[0].as_py() if self._row_count else low
        self.base_timestamp, self.max_timestamp = low, high


def _as_milliseconds(timestamps: pa.Array) -> pa.Array:
    if isinstance(timestamps, pa.ChunkedArray):
        timestamps = timestamps.combine_chunks()
    if pa.types.is_timestamp(timestamps.type):
        timestamps = timestamps.cast(pa.timestamp("ms", timestamps.type.tz), safe=False)
    return timestamps if timestamps.type == pa.int64() else timestamps.cast(pa.int64())


def _opaque_arrays(columns: pa.RecordBatch) -> list[pa.Array]:
    names = columns.schema.names
    if names not in (["value"], ["key", "value"], ["value", "key"]):
        raise SchemaMismatchError(f"an opaque topic has the columns key and value, not {', '.join(names)}")
    arrays = []
    for name in sorted(names):
        array = columns.column(name)
        if array.type != _BINARY:
            if not _holds_bytes(array.type):
                raise SchemaMismatchError(f"column {name} of an opaque topic is binary, not {array.type}")
            array = array.cast(_BINARY)
        arrays.append(array)
    if len(arrays) == 2 and arrays[0].null_count == len(arrays[0]):
        del arrays[0]
    return arrays


def _holds_bytes(type_: pa.DataType) -> bool:
    return any(
        check(type_)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_null)
    )


class _Gatherer:
    """File-like sink that keeps the written pieces without copying them."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def write(self, part: Any) -> int:
        self.parts.append(part)
        return len(part)

    def tell(self) -> int:
        return 0

    def flush(self) -> None:
        """Do nothing: the sink holds no data back."""

    def close(self) -> None:
        """Do nothing: the sink has no open resource."""


def _message_parts(columns: pa.RecordBatch, compression: str | None) -> list[Any]:
    """Serialise to the pieces of an encapsulated message: metadata as bytes, buffers as they are in ``columns``.

    A small message is one piece, which is a copy. That is faster than a callback for each piece. A small slice of
    large buffers is small as well, but that check takes longer.
    """
    is_small = columns.get_total_buffer_size() <= _COPIED_BYTES_MAX or columns.nbytes <= _COPIED_BYTES_MAX
    if compression is None and is_small:
        return [columns.serialize()]
    sink = _Gatherer()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    writer = pa.ipc.new_stream(pa.PythonFile(sink, "w"), columns.schema, options=options)
    writer.write_batch(columns)
    parts, sink.parts = sink.parts, []
    return parts[_schema_part_count(parts) :]


def _schema_part_count(parts: list[Any]) -> int:
    """Count the pieces of the schema message at the start of a stream: continuation, size, metadata."""
    taken, metadata_bytes = 8, int.from_bytes(parts[1], "little")
    count = 2
    while taken < 8 + metadata_bytes:
        taken += len(parts[count])
        count += 1
    return count
