"""The batches of a segment as the cleaner reads and thins them.

``V2Batch`` is a batch of either body. ``MessageBatch`` is a message of magic 0 or 1, as in old segments from Kafka.
Both are checked against their checksums when they are read, because a damaged batch must not be copied with a new
checksum.

A batch that loses records keeps its base offset, last offset, producer fields, compression and timestamp type. So it
keeps its sequence numbers (Kafka's ``MemoryRecords.filterTo``). A rows batch is rewritten as Kafka does; a columnar
batch gets explicit offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import CorruptBatchError
from millrace.records import (
    DECOMPRESSED_BYTES_MAX,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    Compression,
    ControlType,
    DecodedBatch,
    MessageEntry,
    Record,
    SchemaOf,
    TimestampType,
    attributes_of,
    build_columnar_batch,
    build_entries,
    build_rows_batch,
    build_rows_batch_of_columns,
    decode_batch,
    decompress,
    read_control_type,
    read_header,
    read_rows,
    seal,
    verify_crc,
)
from millrace.records.arrays import binary_array
from millrace.records.message_set import MAGIC_POSITION
from millrace.records.recompression import carried_over
from millrace_broker.log.cleaning.columnar_bodies import ColumnarBody, numbers_of, read_columnar_body
from millrace_broker.log.cleaning.key_hashes import valid_mask

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool]

_THROUGH_MAGIC_BYTES: Final = 17
_LENGTH_MIN: Final = 14
_CHUNK_RECORDS_MAX: Final = 32_768
"""The limit on the records of a chunk, because compressed batches hold far more than their size suggests."""
_DECOMPRESSED_FACTOR: Final = 4
"""The limit on the decompressed bytes of a chunk, in sizes of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKeys:
    """The columns that hold the keys of a topic's records.

    These are the ``key_columns`` of a typed topic, else the column ``key``. ``encode`` returns the canonical bytes of
    key columns (``millrace.schemas.encode_keys``).
    """

    schema_of: SchemaOf
    key_columns: tuple[str, ...]
    encode: Callable[[pa.RecordBatch, Sequence[str]], pa.LargeBinaryArray]

    def of(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the key of every record as bytes, null if it has none, from the columns of ``RecordKeys``."""
        if not self.key_columns:
            return columns[0]
        return self.encode(pa.RecordBatch.from_arrays(columns, names=list(self.key_columns)), self.key_columns)


class RecordKeys(NamedTuple):
    """The fields of a batch's records that decide about compaction."""

    offsets: Longs
    keys: tuple[pa.Array, ...]
    """One column of bytes, or the key columns of a typed topic."""
    has_value: Mask
    """False for tombstones."""


class CleanableBatch(Protocol):
    """A batch of any format."""

    @property
    def magic(self) -> int:
        """The version of the format."""

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch."""

    @property
    def decompressed_bytes(self) -> int:
        """About the memory of the decompressed batch. A compressed batch is decompressed, and stays so."""

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the batch once had."""

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp, -1 for none."""

    @property
    def count(self) -> int:
        """The number of records. A compressed message of magic 0 or 1 is decompressed to count them."""

    @property
    def is_control(self) -> bool:
        """True if the batch holds a transaction marker."""

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""

    @property
    def producer_id(self) -> int:
        """The producer's id, -1 for none."""

    @property
    def producer_epoch(self) -> int:
        """The producer's epoch, -1 for none."""

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which tombstones may be removed; None while the batch has none."""

    def control_type(self) -> ControlType | None:
        """Return the type of the marker; None if cleaning has removed the marker."""

    def keys(self) -> RecordKeys:
        """Return the records' offsets, keys, and presence of values."""

    def original(self) -> memoryview:
        """Return the unchanged batch."""

    def thinned(self, kept: Mask | None, delete_horizon_ms: int | None) -> bytes:
        """Return the batch with only the records of ``kept`` (None: all), and with a new delete horizon unless None."""

    def emptied(self) -> bytes:
        """Return the batch without records; it preserves its producer's last sequence number."""


class V2Batch:
    """A batch with Kafka's v2 header, rows or columnar."""

    magic: Final = 2

    def __init__(self, buffer: pa.Buffer, position: int, header: BatchHeader, keys: TopicKeys) -> None:
        self._buffer = buffer
        self._position = position
        self._keys = keys
        self.header = header
        self.size_bytes = header.size_bytes
        self.last_offset = header.last_offset
        self.max_timestamp = header.max_timestamp
        self.count = header.count
        self.is_control = header.is_control
        self.is_transactional = header.is_transactional
        self.producer_id = header.producer_id
        self.producer_epoch = header.producer_epoch
        self.delete_horizon_ms = header.base_timestamp if header.has_delete_horizon else None

    @property
    def is_rows(self) -> bool:
        """True if the batch can be part of a ``RowRun``, because it has records in rows and is no marker."""
        return not self.header.is_columnar and not self.is_control and bool(self.count)

    @property
    def decompressed_bytes(self) -> int:
        """See ``CleanableBatch``."""
        if not self.header.compression or self.is_control:
            return self.size_bytes
        return self._columns.size_bytes if self.header.is_columnar else len(self.body)

    @cached_property
    def body(self) -> bytes | memoryview:
        """The records of a rows batch."""
        stored = self.original()[HEADER_BYTES:]
        if not self.header.compression:
            return stored
        return decompress(stored.tobytes(), Compression.of(self.header.compression), max_bytes=DECOMPRESSED_BYTES_MAX)

    @cached_property
    def _columns(self) -> ColumnarBody:
        return read_columnar_body(self._buffer, self._position, self.header, self._keys.schema_of)

    @cached_property
    def _decoded(self) -> DecodedBatch:
        return decode_batch(self._buffer, self._position, self.header, self._keys.schema_of)

    def control_type(self) -> ControlType | None:
        """See ``CleanableBatch``."""
        for record in read_rows(self._buffer, self._position, self.header):
            return read_control_type(record.key)
        return None

    def keys(self) -> RecordKeys:
        """See ``CleanableBatch``."""
        if self.header.is_columnar:
            body = self._columns
            return RecordKeys(body.offsets, body.key_columns(self._keys.key_columns), body.has_value)
        columns, offsets = self._decoded.columns, numbers_of(self._decoded.offsets(), np.int64)
        return RecordKeys(offsets, (columns.column("key"),), valid_mask(columns.column("value")))

    def original(self) -> memoryview:
        """See ``CleanableBatch``."""
        return memoryview(self._buffer)[self._position : self._position + self.size_bytes]

    def thinned(self, kept: Mask | None, delete_horizon_ms: int | None) -> bytes:
        """See ``CleanableBatch``."""
        if self.header.is_columnar and self._columns.can_be_thinned(delete_horizon_ms):
            return self._columns.thinned(kept, delete_horizon_ms)
        carried = carried_over(self.header)
        if delete_horizon_ms is not None:
            carried["delete_horizon_ms"] = delete_horizon_ms
        if self.is_control:
            records = list(read_rows(self._buffer, self._position, self.header))
            return build_rows_batch(
                records,
                compression=Compression.of(self.header.compression),
                last_offset=self.last_offset,
                is_control=True,
                **carried,
            )
        batch = self._decoded
        rows = None if kept is None else _row_numbers(kept)
        columns, offsets, timestamps_ms, headers, tombstones = (
            array if rows is None or array is None else array.take(rows)
            for array in (batch.columns, batch.offsets(), batch.timestamps_ms(), batch.headers, batch.tombstones)
        )
        if self.header.is_columnar:
            return build_columnar_batch(
                columns,
                schema_id=batch.schema_id,
                timestamps_ms=timestamps_ms,
                headers=headers,
                tombstones=tombstones,
                offsets=offsets,
                last_offset_delta=self.header.last_offset_delta,
                compression=Compression.of(self.header.compression),
                **carried,
            )
        return build_rows_batch_of_columns(
            columns,
            timestamps_ms=timestamps_ms,
            headers=headers,
            offsets=offsets,
            last_offset=self.last_offset,
            compression=Compression.of(self.header.compression),
            **carried,
        )

    def emptied(self) -> bytes:
        """See ``CleanableBatch``; a columnar batch stays columnar, so that the batches after it stay aligned."""
        if self.header.is_columnar:
            batch, carried = self._decoded, carried_over(self.header)
            carried["delete_horizon_ms"] = None
            return build_columnar_batch(
                batch.columns.slice(0, 0),
                schema_id=batch.schema_id,
                timestamps_ms=self.max_timestamp,
                last_offset_delta=self.header.last_offset_delta,
                **carried,
            )
        attributes = attributes_of(
            timestamp_type=self.header.timestamp_type,
            is_transactional=self.is_transactional,
            is_control=self.is_control,
        )
        return seal(self.header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, count=0))


def _row_numbers(kept: Mask) -> pa.Int64Array:
    rows = np.flatnonzero(kept)
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


class MessageBatch:
    """A message of magic 0 or 1.

    The message is one record, or a wrapper around compressed records.
    """

    is_control: Final = False
    is_transactional: Final = False
    producer_id: Final = NO_PRODUCER_ID
    producer_epoch: Final = NO_PRODUCER_EPOCH
    delete_horizon_ms: Final = None

    def __init__(self, entry: MessageEntry, original: memoryview) -> None:
        self._entry = entry
        self._original = original
        self.magic = entry.magic
        self.size_bytes = entry.size_bytes
        self.last_offset = entry.last_offset
        self.max_timestamp = entry.max_timestamp_ms

    @property
    def decompressed_bytes(self) -> int:
        """See ``CleanableBatch``."""
        if self._entry.compression is Compression.NONE:
            return self.size_bytes
        return sum(len(record.key or b"") + len(record.value or b"") for record in self._records)

    @cached_property
    def _records(self) -> list[Record]:
        return list(self._entry.records())

    @property
    def count(self) -> int:
        """See ``CleanableBatch``."""
        return len(self._records)

    def control_type(self) -> ControlType | None:
        """See ``CleanableBatch``."""
        return None

    def keys(self) -> RecordKeys:
        """See ``CleanableBatch``."""
        records = self._records
        return RecordKeys(
            np.array([record.offset for record in records], np.int64),
            (binary_array([record.key for record in records]),),
            np.array([record.value is not None for record in records], bool),
        )

    def original(self) -> memoryview:
        """See ``CleanableBatch``."""
        return self._original

    def thinned(self, kept: Mask | None, delete_horizon_ms: int | None) -> bytes:
        """See ``CleanableBatch``; these formats have no field for a delete horizon."""
        records = [record for number, record in enumerate(self._records) if kept is None or kept[number]]
        return build_entries(
            records,
            magic=self.magic,
            compression=self._entry.compression,
            timestamp_type=self._entry.timestamp_type or TimestampType.CREATE_TIME,
        )

    def emptied(self) -> bytes:
        """Raise ``CorruptBatchError``, because these formats have no producers."""
        raise CorruptBatchError(
            f"the message at offset {self.last_offset} has magic {self.magic}, whose batches cannot be empty"
        )


class ReadableSegment(Protocol):
    """A segment to read batches from."""

    @property
    def size_bytes(self) -> int:
        """The size of the readable bytes."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read bytes."""


def read_chunks(
    segment: ReadableSegment, position: int, chunk_bytes: int, keys: TopicKeys
) -> Iterator[list[CleanableBatch]]:
    """Read the batches from ``position`` on, in chunks of up to ``chunk_bytes`` with at least one batch.

    A chunk ends early with the batch that reaches a limit on its records or its decompressed bytes. Raises
    ``CorruptBatchError`` for a damaged batch, and ``StorageError``.
    """
    wanted = chunk_bytes
    while position < segment.size_bytes:
        buffer = pa.py_buffer(segment.read(position, min(wanted, segment.size_bytes - position)))
        batches, taken, missing = _batches_of(buffer, keys, _DECOMPRESSED_FACTOR * chunk_bytes)
        if not batches:
            if buffer.size < wanted or missing <= wanted:
                raise CorruptBatchError(f"the batch at position {position} is not complete")
            wanted = missing
            continue
        yield batches
        position += taken
        wanted = chunk_bytes


def _batches_of(
    buffer: pa.Buffer, keys: TopicKeys, decompressed_bytes_max: int
) -> tuple[list[CleanableBatch], int, int]:
    """Return the whole batches in ``buffer``, their end, and the size of the incomplete batch after them."""
    view = memoryview(buffer)
    batches: list[CleanableBatch] = []
    position, size, records, decompressed_bytes = 0, buffer.size, 0, 0
    while size - position >= _THROUGH_MAGIC_BYTES:
        length = int.from_bytes(view[position + 8 : position + LOG_OVERHEAD_BYTES], "big", signed=True)
        following = position + LOG_OVERHEAD_BYTES + length
        if length < _LENGTH_MIN:
            raise CorruptBatchError(f"a batch has the invalid length {length}")
        if following > size:
            return batches, position, following - position
        batches.append(_batch_at(buffer, view, position, following, keys))
        position = following
        records += batches[-1].header.count if isinstance(batches[-1], V2Batch) else 1
        decompressed_bytes += batches[-1].decompressed_bytes
        if records >= _CHUNK_RECORDS_MAX or decompressed_bytes >= decompressed_bytes_max:
            break
    return batches, position, HEADER_BYTES


def _batch_at(buffer: pa.Buffer, view: memoryview, position: int, following: int, keys: TopicKeys) -> CleanableBatch:
    if view[position + MAGIC_POSITION] >= V2Batch.magic:
        header = read_header(buffer, position)
        verify_crc(buffer, position, header)
        return V2Batch(buffer, position, header, keys)
    entry = MessageEntry(buffer, position, following - position)
    entry.check()
    return MessageBatch(entry, view[position:following])
