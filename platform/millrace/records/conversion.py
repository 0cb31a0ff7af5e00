"""Conversion of a log between record formats.

The formats are messages of magic 0 or 1, rows and columnar. Every format converts to every other through rows, the
format that holds nearly everything::

    messages of magic 0, 1  <->  rows  <->  columnar (opaque)

Every conversion keeps keys, values, offsets and order, and therefore the gaps from compaction. If a target cannot
hold data, the conversion raises ``UnsupportedForFormatError``. On request it drops that data instead, as Kafka does
for old consumers (``RecordsUtil.downConvert``):

- messages hold no headers, producer ids, sequence numbers, transactions or control batches;
- only columnar batches hold the columns of a typed topic; this loss is always refused.

Magic 0 has no timestamps, but conversion to it is allowed because Kafka's writer drops them as well. Leader epochs
and delete horizons are internal to the log, and messages do not have them. Records from messages of magic 0 have
timestamp -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from typing import Final

import pyarrow as pa

from millrace.errors import CorruptBatchError, UnknownSchemaError, UnsupportedForFormatError
from millrace.records.columnar import OPAQUE_SCHEMA_ID, read_columns_header
from millrace.records.columnar_writing import build_columnar_batch
from millrace.records.compression import DECOMPRESSED_BYTES_MAX, Compression
from millrace.records.decoding import DecodedBatch, SchemaOf, decode_batch
from millrace.records.header import (
    NO_PRODUCER_ID,
    BatchHeader,
    ReadableBuffer,
    TimestampType,
    as_arrow_buffer,
    read_header,
)
from millrace.records.legacy import unwrap
from millrace.records.message_set import BatchEntry, MessageEntry, build_entries, read_entries
from millrace.records.recompression import carried_over, recompress_batch
from millrace.records.row_columns_writing import build_rows_batch_of_columns
from millrace.records.rows import Record, read_rows, sequence_at
from millrace.records.usual_conversion import usual_rows_of
from millrace.records.validation import validate_batch

GROUP_BYTES_MAX: Final = 2**20
ROWS_BYTES_MAX: Final = 17 * 2**16
"""Size of the batches of rows that a columnar batch becomes for a reader.

The rows of a batch that fills the default ``batch.size`` of 1 MiB are not split.
"""
_PART_BYTES: Final = 2**19
"""Size of the parts of a larger batch, so that readers with smaller limits can read them too."""
_PART_BYTES_MAX: Final = 4 * _PART_BYTES
"""Size of keys and values from which a part is divided again, because its rows are larger than those of the others."""
_ROW_BYTES: Final = 3
"""A row's bytes beside its key, value and headers, without the 8 that Arrow's offsets of key and value have too."""
_INT_MAX: Final = 2**31 - 1


class RecordFormat(IntEnum):
    """Formats of records; the numbers of the first three are Kafka's magic."""

    MAGIC_0 = 0
    MAGIC_1 = 1
    ROWS = 2
    COLUMNAR = 3

    @property
    def has_messages(self) -> bool:
        """True if the format is one of those before Kafka 0.11."""
        return self <= RecordFormat.MAGIC_1


def convert(
    buffer: ReadableBuffer,
    target: RecordFormat,
    *,
    compression: Compression | None = None,
    allow_loss: bool = False,
    schema_of: SchemaOf | None = None,
    group_bytes_max: int = GROUP_BYTES_MAX,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[bytes]:
    """Write the entries of a log, of any formats, in the format ``target``; yields the result in pieces.

    ``compression`` is that of the result; the default is each entry's own. An entry that already has the target
    format and compression is copied byte for byte. Batches stay batches. Single messages are joined to batches or
    wrappers of up to ``group_bytes_max`` bytes. Control batches stay rows in a columnar log. An incomplete last entry
    is dropped, as every reader does.

    ``allow_loss`` drops data that the target cannot hold (see above) instead of refusing it. ``schema_of`` is needed
    to recompress typed batches. A compressed body may grow to ``max_bytes``.

    Errors:

    - ``UnsupportedForFormatError`` for data that the target cannot hold;
    - ``UnsupportedCompressionError`` for zstd in messages, and for gzip and snappy in columnar batches;
    - ``CorruptBatchError`` for a wrong checksum (of messages within wrappers too) or an unreadable body;
    - ``InvalidRecordError`` and ``InvalidTimestampError`` for records that can be read but not written, such as offsets
      that do not ascend.
    """
    conversion = _Conversion(target, compression, allow_loss, schema_of or _no_schema, max_bytes)
    whole = as_arrow_buffer(buffer)
    group: _Group | None = None
    for entry in read_entries(whole):
        entry.check()
        if isinstance(entry, MessageEntry) and not conversion.keeps(entry):
            if group is not None and group.takes(entry, group_bytes_max):
                group.add(entry)
                continue
            if group is not None:
                yield from conversion.of_group(group)
            group = _Group(entry, conversion.records_of(entry))
            continue
        if group is not None:
            yield from conversion.of_group(group)
            group = None
        if isinstance(entry, BatchEntry):
            yield from conversion.of_batch(whole, entry.position, entry.header)
        else:
            yield whole.slice(entry.position, entry.size_bytes).to_pybytes()
    if group is not None:
        yield from conversion.of_group(group)


def rows_of_opaque(batch: ReadableBuffer, first_offset: int = 0) -> Iterator[bytes]:
    """Write a columnar batch of an opaque topic as ``split_rows`` does, for a caller that has verified its checksum.

    Raises ``UnsupportedForFormatError`` for a batch of a typed topic, and the errors of ``decode_batch``.
    """
    header = read_header(batch)
    rows = usual_rows_of(batch, header, bytes_max=ROWS_BYTES_MAX)
    if rows is not None:
        yield rows
        return
    _check_is_opaque(batch, 0, header)
    decoded = decode_batch(as_arrow_buffer(batch), 0, header, _no_schema)
    headers = decoded.headers
    size_bytes = decoded.columns.nbytes + (headers.nbytes if headers is not None else 0)
    yield from split_rows(decoded, lambda part: part.columns, size_bytes=size_bytes, first_offset=first_offset)


def split_rows(
    batch: DecodedBatch,
    columns_of: Callable[[DecodedBatch], pa.RecordBatch],
    *,
    size_bytes: int,
    first_offset: int = 0,
) -> Iterator[bytes]:
    """Write a whole decoded batch as one batch of rows, or as several if it has more than ``ROWS_BYTES_MAX``.

    ``size_bytes`` is the size of all keys, values and headers. ``columns_of`` returns the keys and values of a part.
    Batches of rows that end before ``first_offset`` are left out. All parts but the last have the same number of rows,
    until those that are much too large are halved. A batch is divided in the same way whatever the first offset.
    Together the parts cover the batch's offsets, without gaps between them.
    """
    header, count = batch.header, batch.num_rows
    size_bytes += count * _ROW_BYTES
    starts = [header.base_offset]
    if size_bytes > ROWS_BYTES_MAX:
        step = max(1, count * _PART_BYTES // size_bytes)
        offsets = batch.offset_range() or batch.offsets().to_numpy()
        starts += [int(offsets[row]) for row in range(step, count, step)]
    ranges = list(pairwise([*starts, header.next_offset]))[::-1]
    while ranges:
        start, end = ranges.pop()
        if end <= first_offset:
            continue
        part = batch.slice(start, end)
        columns = columns_of(part)
        if columns.nbytes > _PART_BYTES_MAX and part.num_rows > 1:
            middle = part.offsets()[part.num_rows // 2].as_py()
            ranges += [(middle, end), (start, middle)]
        else:
            yield _rows_between(part, columns, start, end, Compression.of(header.compression))


def _rows_between(part: DecodedBatch, columns: pa.RecordBatch, start: int, end: int, compression: Compression) -> bytes:
    """Write keys and values as rows of the offsets from ``start`` to before ``end``, with the batch's other fields."""
    header = part.header
    carried = carried_over(header)
    carried["base_offset"], carried["base_sequence"] = start, sequence_at(header, start)
    return build_rows_batch_of_columns(
        columns,
        timestamps_ms=part.timestamps_ms() if part.num_rows else header.max_timestamp,
        headers=part.headers,
        offsets=part.offsets() if part.has_gaps else None,
        last_offset=end - 1,
        compression=compression,
        **carried,
    )


def _check_is_opaque(buffer: ReadableBuffer, position: int, header: BatchHeader) -> None:
    schema_id = read_columns_header(buffer, position, header).schema_id
    if schema_id != OPAQUE_SCHEMA_ID:
        raise UnsupportedForFormatError(
            f"batch with base offset {header.base_offset} has the columns of schema {schema_id}, but rows have "
            "only key and value: keep it columnar, or read its columns and write them to an opaque topic, for "
            "example as JSON"
        )


def _within_one_batch(records: list[Record]) -> Iterator[list[Record]]:
    """Split records where the span of their offsets exceeds the 31 bits of a batch or segment."""
    start = 0
    for index, record in enumerate(records):
        if record.offset - records[start].offset > _INT_MAX:
            yield records[start:index]
            start = index
    yield records[start:]


def _no_schema(schema_id: int) -> pa.Schema:
    raise UnknownSchemaError(f"schema id {schema_id}: to convert typed batches, pass schema_of")


@dataclass
class _Group:
    """Messages that become one batch.

    They are the messages of a wrapper, or single messages with the same properties.
    """

    first: MessageEntry
    records: list[Record]
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.size_bytes = self.first.size_bytes

    @property
    def timestamp_type(self) -> TimestampType:
        return self.first.timestamp_type or TimestampType.CREATE_TIME

    def takes(self, entry: MessageEntry, bytes_max: int) -> bool:
        """Return whether a message can join the group; a batch with append time has one timestamp for all its
        messages.
        """
        first = self.first
        return (
            entry.compression is first.compression is Compression.NONE
            and entry.timestamp_type is first.timestamp_type
            and (entry.max_timestamp_ms == first.max_timestamp_ms or self.timestamp_type is TimestampType.CREATE_TIME)
            and self.size_bytes + entry.size_bytes <= bytes_max
            and entry.last_offset - self.records[0].offset <= _INT_MAX
        )

    def add(self, entry: MessageEntry) -> None:
        self.records += entry.records()
        self.size_bytes += entry.size_bytes


@dataclass(frozen=True)
class _Conversion:
    """Options of one conversion, and its steps from format to format."""

    target: RecordFormat
    compression: Compression | None
    allow_loss: bool
    schema_of: SchemaOf
    max_bytes: int

    def keeps(self, entry: MessageEntry) -> bool:
        """Return whether a message is copied unchanged; a wrapper whose offsets span more than a segment is not."""
        if entry.magic != self.target or self.compression not in (None, entry.compression):
            return False
        return entry.compression is Compression.NONE or entry.last_offset - entry.base_offset <= _INT_MAX

    def records_of(self, entry: MessageEntry) -> list[Record]:
        """Read a message or wrapper, and verify the checksums within a wrapper.

        Readers ignore those checksums, but the conversion removes the wrapper and would lose them unverified.
        """
        for message in unwrap(entry.message, max_bytes=self.max_bytes):
            if not message.crc_is_valid:
                raise CorruptBatchError(f"message at offset {message.offset} within a wrapper fails its checksum")
        return list(entry.records(max_bytes=self.max_bytes))

    def of_group(self, group: _Group) -> Iterator[bytes]:
        """Write the messages of a group."""
        compression = self._compression(group.first.compression)
        for records in _within_one_batch(group.records):
            if self.target is not RecordFormat.COLUMNAR:
                yield build_entries(
                    records, magic=self.target, compression=compression, timestamp_type=group.timestamp_type
                )
                continue
            rows = build_entries(records, magic=RecordFormat.ROWS, timestamp_type=group.timestamp_type)
            yield self._columnar_of_rows(pa.py_buffer(rows), 0, read_header(rows), compression)

    def of_batch(self, buffer: pa.Buffer, position: int, header: BatchHeader) -> Iterator[bytes]:
        """Write a rows or columnar batch."""
        compression = self._compression(Compression.of(header.compression))
        source = RecordFormat.COLUMNAR if header.is_columnar else RecordFormat.ROWS
        if self.target.has_messages:
            if self._holds_data(header):
                yield self._messages_of_batch(buffer, position, header, compression)
        elif header.is_control or (source is self.target and compression == header.compression):
            yield buffer.slice(position, header.size_bytes).to_pybytes()
        elif source is self.target:
            if header.is_columnar:
                validate_batch(buffer, position, header, self.schema_of, max_bytes=self.max_bytes)
            yield recompress_batch(buffer, position, header, self.schema_of, compression, max_bytes=self.max_bytes)
        elif self.target is RecordFormat.COLUMNAR:
            yield self._columnar_of_rows(buffer, position, header, compression)
        else:
            yield self._rows_of_columnar(buffer, position, header, compression)

    def _compression(self, own: Compression) -> Compression:
        return own if self.compression is None else self.compression

    def _holds_data(self, header: BatchHeader) -> bool:
        """Return whether a batch holds data for messages; raises for data that messages cannot hold."""
        if not self.allow_loss:
            what = "a control batch" if header.is_control else "a batch of a transactional or idempotent producer"
            if header.is_control or header.producer_id != NO_PRODUCER_ID:
                raise self._cannot_hold(f"{what} with base offset {header.base_offset}")
        return header.count > 0 and not header.is_control

    def _messages_of_batch(
        self, buffer: pa.Buffer, position: int, header: BatchHeader, compression: Compression
    ) -> bytes:
        if header.is_columnar:
            rows = pa.py_buffer(self._rows_of_columnar(buffer, position, header, Compression.NONE))
            return self._messages_of_batch(rows, 0, read_header(rows), compression)
        records = list(read_rows(buffer, position, header, max_bytes=self.max_bytes))
        for index, record in enumerate(records):
            if record.headers:
                if not self.allow_loss:
                    raise self._cannot_hold(f"the headers of the record at offset {record.offset}")
                records[index] = replace(record, headers=())
        return build_entries(records, magic=self.target, compression=compression, timestamp_type=header.timestamp_type)

    def _rows_of_columnar(
        self, buffer: pa.Buffer, position: int, header: BatchHeader, compression: Compression
    ) -> bytes:
        _check_is_opaque(buffer, position, header)
        batch = validate_batch(buffer, position, header, self.schema_of, max_bytes=self.max_bytes)
        return _rows_between(batch, batch.columns, header.base_offset, header.next_offset, compression)

    def _columnar_of_rows(
        self, buffer: pa.Buffer, position: int, header: BatchHeader, compression: Compression
    ) -> bytes:
        batch = decode_batch(buffer, position, header, self.schema_of, max_bytes=self.max_bytes)
        return build_columnar_batch(
            batch.columns,
            timestamps_ms=batch.timestamps_ms() if header.count else header.max_timestamp,
            headers=batch.headers,
            offsets=batch.offsets(),
            last_offset_delta=header.last_offset_delta,
            compression=compression,
            **carried_over(header),
        )

    def _cannot_hold(self, what: str) -> UnsupportedForFormatError:
        return UnsupportedForFormatError(
            f"magic {self.target.value} cannot hold {what}: choose a newer format, or allow this data to be dropped"
        )
