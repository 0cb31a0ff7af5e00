"""Control records that a transaction coordinator or leader writes (KIP-98, KIP-595).

A control batch is a rows batch with the control bit and one record. Readers never return control records. The key is
version i16 and type i16. The value of an end transaction marker is version i16 and coordinator epoch i32.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from millrace.errors import CorruptBatchError
from millrace.records.header import NO_SEQUENCE
from millrace.records.rows import Record, build_rows_batch

_KEY: Final = struct.Struct(">hh")
_END_MARKER: Final = struct.Struct(">hi")
_VERSION: Final = 0


class ControlType(IntEnum):
    """Type of a control record. Unknown types become ``UNKNOWN`` and are skipped."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1

    @classmethod
    def _missing_(cls, value: object) -> ControlType:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionMarker:
    """End of a producer's transaction in one partition."""

    type: ControlType
    coordinator_epoch: int


def read_control_type(key: bytes | None) -> ControlType:
    """Read the key of a control record; later versions may have more fields.

    Raises ``CorruptBatchError`` for a key that is null, too short or of a negative version.
    """
    if key is None or len(key) < _KEY.size:
        raise CorruptBatchError(f"control record key {key!r}: it has at least {_KEY.size} bytes")
    version, type_ = _KEY.unpack_from(key)
    if version < _VERSION:
        raise CorruptBatchError(f"control record key of version {version}")
    return ControlType(type_)


def read_end_marker(record: Record) -> EndTransactionMarker:
    """Read an end transaction marker; raises ``CorruptBatchError`` if the record is damaged or no such marker."""
    type_ = read_control_type(record.key)
    if type_ not in (ControlType.ABORT, ControlType.COMMIT):
        raise CorruptBatchError(f"control record of type {type_.name} is not the end of a transaction")
    if record.value is None or len(record.value) < _END_MARKER.size:
        raise CorruptBatchError(f"end marker {record.value!r}: it has at least {_END_MARKER.size} bytes")
    version, coordinator_epoch = _END_MARKER.unpack_from(record.value)
    if version < _VERSION:
        raise CorruptBatchError(f"end marker of version {version}")
    return EndTransactionMarker(type=type_, coordinator_epoch=coordinator_epoch)


def build_end_marker_batch(
    marker: EndTransactionMarker,
    *,
    base_offset: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    leader_epoch: int = -1,
) -> bytes:
    """Build the control batch that ends a producer's transaction in a partition."""
    record = Record(
        key=_KEY.pack(_VERSION, marker.type),
        value=_END_MARKER.pack(_VERSION, marker.coordinator_epoch),
        timestamp_ms=timestamp_ms,
    )
    return build_rows_batch(
        [record],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        is_transactional=True,
        is_control=True,
        leader_epoch=leader_epoch,
    )
