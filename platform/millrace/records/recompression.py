"""Recompression of a batch for topics whose ``compression.type`` is not the producer's."""

from __future__ import annotations

from typing import TypedDict

from millrace.records.columnar_writing import build_columnar_batch
from millrace.records.compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompress
from millrace.records.decoding import SchemaOf, decode_batch
from millrace.records.header import (
    COMPRESSION_MASK,
    HEADER_BYTES,
    BatchHeader,
    ReadableBuffer,
    TimestampType,
    as_arrow_buffer,
    seal,
)


def recompress_batch(
    buffer: ReadableBuffer,
    position: int,
    header: BatchHeader,
    schema_of: SchemaOf,
    compression: Compression,
    *,
    level: int | None = None,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> bytes:
    """Write the batch at ``position`` again with ``compression``; the caller has verified its checksum.

    Only the compression changes. ``level`` is for batches of rows. Raises ``CorruptBatchError``, and
    ``UnsupportedCompressionError`` for gzip and snappy on a columnar batch.
    """
    whole = as_arrow_buffer(buffer)
    if not header.is_columnar:
        body = whole.slice(position + HEADER_BYTES, header.size_bytes - HEADER_BYTES).to_pybytes()
        if body or header.count:
            plain = decompress(body, Compression.of(header.compression), max_bytes=max_bytes)
            body = compress(plain, compression, level=level)
        return seal(header._replace(attributes=header.attributes & ~COMPRESSION_MASK | compression), body)
    batch = decode_batch(whole, position, header, schema_of, max_bytes=max_bytes)
    return build_columnar_batch(
        batch.columns,
        schema_id=batch.schema_id,
        timestamps_ms=batch.timestamps_ms(),
        headers=batch.headers,
        tombstones=batch.tombstones,
        offsets=batch.offsets(),
        last_offset_delta=header.last_offset_delta,
        compression=compression,
        **carried_over(header),
    )


class CarriedOver(TypedDict):
    """Header fields of a batch that its recompressed copy keeps.

    They are arguments of the functions that build batches.
    """

    timestamp_type: TimestampType
    delete_horizon_ms: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    base_offset: int
    leader_epoch: int


def carried_over(header: BatchHeader) -> CarriedOver:
    """Return the header fields to pass on when the body of a batch is rebuilt."""
    return CarriedOver(
        timestamp_type=header.timestamp_type,
        delete_horizon_ms=header.base_timestamp if header.has_delete_horizon else None,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
    )
