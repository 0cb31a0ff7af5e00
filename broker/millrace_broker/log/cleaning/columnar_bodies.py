"""The stored body of a columnar batch, with all its columns.

This is faster than decoding and rebuilding for the many small batches of a log. The checksum is verified, so the Arrow
message is trusted. A batch that loses records keeps its columns, except that it may need an offset column now.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records import (
    OPAQUE_SCHEMA_ID,
    BatchHeader,
    ColumnFlags,
    ColumnsHeader,
    SchemaOf,
    TimestampType,
    attributes_of,
    read_columns_header,
)
from millrace.records.columnar import (
    OFFSET_COLUMN,
    TIMESTAMP_COLUMN,
    TOMBSTONE_COLUMN,
    opaque_body_schema,
    typed_body_schema,
)
from millrace.records.statistics import entries_of, seal_columnar
from millrace_broker.log.cleaning.key_hashes import mask_of_bits, valid_mask

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool]

_BUFFER_ALIGNMENT: Final = 8


class ColumnarBody:
    """The columns of a columnar batch. ``offsets`` are absolute, ``has_value`` is false for tombstones."""

    def __init__(
        self,
        header: BatchHeader,
        layout: ColumnsHeader,
        columns: pa.RecordBatch,
        schema: pa.Schema | None,
        statistics: bytes,
    ) -> None:
        self._header: Final = header
        self._layout: Final = layout
        self._columns: Final = columns
        self._schema: Final = schema
        self._statistics: Final = statistics

    @property
    def size_bytes(self) -> int:
        """The size of the columns in memory."""
        return int(self._columns.get_total_buffer_size())

    @cached_property
    def offsets(self) -> Longs:
        """The offset of each record."""
        header = self._header
        if self._layout.flags & ColumnFlags.OFFSETS:
            return header.base_offset + numbers_of(self._columns.column(OFFSET_COLUMN), np.int32).astype(np.int64)
        return np.arange(header.base_offset, header.base_offset + header.count)

    @property
    def has_value(self) -> Mask:
        """The records that are not tombstones."""
        if self._schema is None:
            return valid_mask(self._columns.column("value"))
        if not self._layout.flags & ColumnFlags.TOMBSTONES:
            return np.ones(self._header.count, bool)
        tombstones = self._columns.column(TOMBSTONE_COLUMN)
        return ~mask_of_bits(tombstones.buffers()[1], tombstones.offset, len(tombstones))

    def key_columns(self, names: tuple[str, ...]) -> tuple[pa.Array, ...]:
        """Return the column ``key``, or the key columns of a typed topic."""
        if self._schema is not None:
            if not names:
                raise CorruptBatchError("a batch of a typed topic without key columns cannot be compacted")
            return tuple(self._columns.column(name) for name in names)
        if self._layout.flags & ColumnFlags.KEY:
            return (self._columns.column("key"),)
        return (pa.nulls(self._header.count, pa.binary()),)

    def can_be_thinned(self, delete_horizon_ms: int | None) -> bool:
        """Return whether ``thinned`` works.

        The batch must be uncompressed, and a new delete horizon must not need a new timestamp column.
        """
        is_stamped = self._header.timestamp_type is TimestampType.LOG_APPEND_TIME
        has_times = bool(self._layout.flags & ColumnFlags.TIMESTAMPS) or is_stamped
        return not self._header.compression and (delete_horizon_ms is None or has_times)

    def thinned(self, kept: Mask | None, delete_horizon_ms: int | None) -> bytes:
        """Return the batch with only the records of ``kept`` (None: all), and with a new delete horizon unless None.

        Its statistics stay, because their bounds for all records also hold for the remaining ones.
        """
        columns, deltas = self._columns, self.offsets - self._header.base_offset
        if kept is not None:
            rows = np.flatnonzero(kept)
            columns = columns.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)]))
            deltas = deltas[rows]
        arrays, flags = columns.columns, self._layout.flags
        if flags & ColumnFlags.OFFSETS:
            arrays, flags = arrays[1:], flags & ~ColumnFlags.OFFSETS
        if deltas[-1] != len(deltas) - 1:
            stored = pa.py_buffer(deltas.astype(np.int32))
            arrays = [pa.Array.from_buffers(pa.int32(), len(deltas), [None, stored]), *arrays]
            flags |= ColumnFlags.OFFSETS
        message = pa.RecordBatch.from_arrays(arrays, schema=_body_schema(self._schema, flags)).serialize()
        thinned = self._new_header(columns, delete_horizon_ms, len(deltas))
        return seal_columnar(thinned, flags, self._layout.schema_id, [message], self._statistics)

    def _new_header(self, columns: pa.RecordBatch, delete_horizon_ms: int | None, count: int) -> BatchHeader:
        header = self._header
        base_ms, max_ms = header.base_timestamp, header.max_timestamp
        has_times = self._layout.flags & ColumnFlags.TIMESTAMPS
        if has_times and header.timestamp_type is TimestampType.CREATE_TIME:
            times = numbers_of(columns.column(TIMESTAMP_COLUMN), np.int64)
            max_ms = int(times.max())
            if not header.has_delete_horizon:
                base_ms = int(times[0])
        has_horizon = header.has_delete_horizon or delete_horizon_ms is not None
        attributes = attributes_of(
            timestamp_type=header.timestamp_type,
            is_transactional=header.is_transactional,
            has_delete_horizon=has_horizon,
            is_columnar=True,
        )
        return header._replace(
            attributes=attributes,
            base_timestamp=base_ms if delete_horizon_ms is None else delete_horizon_ms,
            max_timestamp=max_ms,
            count=count,
        )


def read_columnar_body(buffer: pa.Buffer, position: int, header: BatchHeader, schema_of: SchemaOf) -> ColumnarBody:
    """Read the body of the columnar batch at ``position``, whose checksum has been verified.

    Raises ``CorruptBatchError``, and the errors of ``schema_of``.
    """
    layout = read_columns_header(buffer, position, header)
    schema = None if layout.schema_id == OPAQUE_SCHEMA_ID else schema_of(layout.schema_id)
    message = buffer.slice(position + layout.message_position, layout.message_length)
    if message.address % _BUFFER_ALIGNMENT:
        message = pa.py_buffer(message.to_pybytes())
    try:
        columns = pa.ipc.read_record_batch(message, _body_schema(schema, layout.flags))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptBatchError(f"columnar batch with base offset {header.base_offset}: {error}") from error
    if columns.num_rows != header.count:
        raise CorruptBatchError(
            f"the columnar batch with base offset {header.base_offset} has {columns.num_rows} rows, but its header "
            f"counts {header.count}"
        )
    return ColumnarBody(header, layout, columns, schema, entries_of(buffer, position, header))


def _body_schema(schema: pa.Schema | None, flags: int) -> pa.Schema:
    return opaque_body_schema(int(flags)) if schema is None else typed_body_schema(schema, int(flags))


def numbers_of(array: pa.Array, type_: type[Any]) -> npt.NDArray[Any]:
    """Return the values of an array that has some, and no nulls, without a copy."""
    return np.frombuffer(array.buffers()[1], type_)[array.offset : array.offset + len(array)]
