"""Validation of a batch's body before the broker stores it.

Readers can then trust the checksum alone. A reader of a mapped segment does not check every offset within a
variable-length column. An offset outside its buffer would crash the reading process. Therefore the broker checks each
value once, at append.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import CorruptBatchError, InvalidRecordError, InvalidTimestampError, SchemaMismatchError
from millrace.records.columnar import OPAQUE_SCHEMA_ID
from millrace.records.compression import DECOMPRESSED_BYTES_MAX
from millrace.records.decoding import DecodedBatch, SchemaOf, decode_batch
from millrace.records.header import NO_TIMESTAMP, BatchHeader, ReadableBuffer, TimestampType, as_arrow_buffer
from millrace.records.statistics import covers, read_statistics, section_of


def validate_batch(
    buffer: ReadableBuffer,
    position: int,
    header: BatchHeader,
    schema_of: SchemaOf,
    *,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
    with_any_max_timestamp: bool = False,
) -> DecodedBatch:
    """Check every value of the batch at ``position`` and return it decoded; the caller has verified its checksum.

    ``with_any_max_timestamp`` allows a maximum timestamp in the header that is not the records' largest one. The leader
    corrects it in a batch of a Kafka producer.

    Raises the errors of ``decode_batch``, and:

    - ``CorruptBatchError`` for a body that cannot be decoded or holds impossible values (UTF-8, list offsets);
    - ``InvalidRecordError`` if offsets or count contradict the header;
    - ``InvalidTimestampError`` if timestamps contradict the header;
    - ``SchemaMismatchError`` with column and row for a null in a column that is not nullable.
    """
    batch = decode_batch(as_arrow_buffer(buffer), position, header, schema_of, max_bytes=max_bytes)
    try:
        batch.columns.validate(full=True)
        for beside in (batch.headers, batch.tombstones):
            if beside is not None:
                beside.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise CorruptBatchError(f"batch with base offset {header.base_offset}: {error}") from error
    _check_offsets(batch)
    _check_timestamps(batch, with_any_max=with_any_max_timestamp)
    if header.is_columnar and batch.schema_id != OPAQUE_SCHEMA_ID:
        _check_nulls(batch)
    if header.is_columnar:
        _check_statistics(batch, buffer, position)
    return batch


def _check_offsets(batch: DecodedBatch) -> None:
    header = batch.header
    if not batch.num_rows:
        return
    if batch.has_gaps:
        offsets = batch.offsets()
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        ascending = pc.all(pc.greater(offsets[1:], offsets[:-1]), min_count=0).as_py()
    else:
        first, last, ascending = header.base_offset, header.base_offset + batch.num_rows - 1, True
    if not ascending or first < header.base_offset or last > header.last_offset:
        raise InvalidRecordError(
            f"batch with offsets {header.base_offset}..{header.last_offset}: "
            f"its records' offsets {first}..{last} do not ascend within that range"
        )


def _check_timestamps(batch: DecodedBatch, *, with_any_max: bool) -> None:
    header = batch.header
    if not batch.num_rows or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return
    smallest, largest = batch.time_range_ms()
    if smallest < NO_TIMESTAMP:
        raise InvalidTimestampError(
            f"timestamp {smallest} is invalid: timestamps are milliseconds from 0, or -1 for none"
        )
    if largest != header.max_timestamp and not with_any_max:
        raise InvalidTimestampError(
            f"batch with base offset {header.base_offset}: the header has the maximum timestamp "
            f"{header.max_timestamp}, but the records have {largest}"
        )


def _check_nulls(batch: DecodedBatch) -> None:
    tombstones = batch.tombstones
    for column in batch.columns.schema:
        if column.nullable:
            continue
        nulls = batch.columns.column(column.name).is_null()
        if tombstones is not None:  # a deletion has only its key columns
            nulls = pc.and_not(nulls, tombstones)
        if pc.any(nulls).as_py():
            row = nulls.to_pylist().index(True)
            raise SchemaMismatchError(f"row {row}, column {column.name}: null, but the column is NOT NULL")


def _check_statistics(batch: DecodedBatch, buffer: ReadableBuffer, position: int) -> None:
    """Raise ``InvalidRecordError`` for wrong statistics, because readers would skip records by them."""
    header = batch.header
    if section_of(buffer, position, header) is None:
        return
    found = read_statistics(buffer, position, header)
    where = f"batch with base offset {header.base_offset}: the statistics"
    if found is None:
        raise InvalidRecordError(f"{where} are damaged, or belong to another batch")
    names = batch.columns.schema.names
    for number, stored in found.columns.items():
        name = names[number] if number < len(names) else None
        if name is None or not covers(stored, batch.columns.column(name)):
            raise InvalidRecordError(f"{where} of column {name or number} do not match its values")
    if found.timestamps_ms is not None and batch.constant_timestamp_ms is None and batch.num_rows:
        smallest, largest = batch.time_range_ms()
        if found.timestamps_ms[0] > smallest or found.timestamps_ms[1] < largest:
            raise InvalidRecordError(f"{where} of the timestamps do not match the records")
