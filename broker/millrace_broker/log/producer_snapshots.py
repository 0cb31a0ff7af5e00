"""Snapshot files of producer states, Kafka's ``<offset>.snapshot``.

After a restart only the batches after a snapshot are read again. The snapshot covers the log up to the offset in its
name (exclusive). Of a producer's five batches only the last is stored.

The format is big-endian. The file begins with i16 version (1), u32 CRC-32C of the rest, i32 count. Each producer has
these fields:

- i64 id, i16 epoch, i32 last sequence, i64 last offset, i32 offset delta of the last batch, i64 timestamp,
- i32 coordinator epoch, i64 first offset of the open transaction (-1: none).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from millrace.errors import StorageError
from millrace.records.header import NO_SEQUENCE, checksum
from millrace_broker.log.producer_states import ProducedBatch, ProducerEntry

_VERSION: Final = 1
_PREFIX: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


def write_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Return the content of a snapshot file."""
    packed = [_pack(entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _PREFIX.pack(_VERSION, checksum(body)) + body


def read_snapshot(data: bytes) -> list[ProducerEntry]:
    """Read the content of a snapshot file.

    Raises ``StorageError`` if it is damaged; the caller then reads the log instead.
    """
    if len(data) < _PREFIX.size + _COUNT.size:
        raise StorageError(f"producer snapshot of {len(data)} bytes: too short")
    version, crc = _PREFIX.unpack_from(data)
    body = data[_PREFIX.size :]
    if version != _VERSION:
        raise StorageError(f"producer snapshot has version {version}, expected {_VERSION}")
    if checksum(body) != crc:
        raise StorageError("producer snapshot fails its checksum")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise StorageError(f"producer snapshot announces {count} producers in {len(body)} bytes")
    return [_unpack(fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size :])]


def _pack(entry: ProducerEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else None
    return _ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.last_offset,
        last.offset_delta if last else 0,
        entry.last_timestamp_ms,
        entry.coordinator_epoch,
        -1 if entry.open_transaction_offset is None else entry.open_transaction_offset,
    )


def _unpack(fields: tuple[int, ...]) -> ProducerEntry:
    producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp_ms, coordinator_epoch, transaction = fields
    last = ProducedBatch(
        last_sequence=last_sequence, last_offset=last_offset, offset_delta=offset_delta, timestamp_ms=timestamp_ms
    )
    return ProducerEntry(
        producer_id=producer_id,
        epoch=epoch,
        batches=() if last_sequence == NO_SEQUENCE else (last,),
        last_timestamp_ms=timestamp_ms,
        coordinator_epoch=coordinator_epoch,
        open_transaction_offset=None if transaction < 0 else transaction,
    )
