"""Delivery states as records of ``__share_group_state``: Kafka's ``ShareSnapshot`` and ``ShareUpdate``.

Kafka writes a snapshot now and then and updates in between, into a topic that it prunes itself. Here the topic is
compacted, and each record is a snapshot. ``group.share.partition.max.record.locks`` bounds its size. Updates are read,
for a partition that Kafka wrote. Values are flexible (KIP-482), keys are not.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace_broker.coordinators import StateRecord
from millrace_broker.share_groups.in_flight import InFlightBatch, RecordState, Snapshot

SNAPSHOT_KEY: Final = 0
UPDATE_KEY: Final = 1
_VALUE_VERSION: Final = 0
_NO_START: Final = -1

_KEY_HEAD: Final = struct.Struct(">hh")
_KEY_TAIL: Final = struct.Struct(">16si")
_SNAPSHOT_HEAD: Final = struct.Struct(">hiiiqqq")
_UPDATE_HEAD: Final = struct.Struct(">hiiq")
_BATCH: Final = struct.Struct(">qqbh")


class SharePartitionKey(NamedTuple):
    """Partition in a share group (Kafka's class)."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ShareGroupOffset:
    """State of a share partition in the log (Kafka's class); each snapshot has a greater ``snapshot_epoch``."""

    snapshot_epoch: int
    leader_epoch: int
    snapshot: Snapshot


def snapshot_record(key: SharePartitionKey, state: ShareGroupOffset, now_ms: int) -> StateRecord:
    """Return the record of a share partition; ``now_ms`` is the time since 1970."""
    snapshot = state.snapshot
    head = _SNAPSHOT_HEAD.pack(
        _VALUE_VERSION, state.snapshot_epoch, 0, state.leader_epoch, snapshot.start_offset, now_ms, now_ms
    )
    batches = b"".join(
        _BATCH.pack(batch.first, batch.last, batch.state.value, batch.delivery_count) + b"\0"
        for batch in snapshot.batches
    )
    return StateRecord(_key(key), head + _varint(len(snapshot.batches) + 1) + batches + b"\0")


def tombstone(key: SharePartitionKey) -> StateRecord:
    """Return the record that deletes a share partition."""
    return StateRecord(_key(key), None)


def _key(key: SharePartitionKey, version: int = SNAPSHOT_KEY) -> bytes:
    group = key.group_id.encode()
    return _KEY_HEAD.pack(version, len(group)) + group + _KEY_TAIL.pack(key.topic_id.bytes, key.partition)


def read_key(data: bytes) -> tuple[int, SharePartitionKey]:
    """Read a key: the type of its record (``SNAPSHOT_KEY``, ``UPDATE_KEY``), and its share partition.

    Raises ``InvalidRecordError``.
    """
    if len(data) < _KEY_HEAD.size:
        raise InvalidRecordError(f"a key of a share partition has at least {_KEY_HEAD.size} bytes, not {len(data)}")
    kind, size = _KEY_HEAD.unpack_from(data)
    if size < 0 or len(data) != _KEY_HEAD.size + size + _KEY_TAIL.size:
        raise InvalidRecordError(
            f"a share partition's key with a group id of {size} bytes has another size than {len(data)}"
        )
    group = data[_KEY_HEAD.size : _KEY_HEAD.size + size].decode("utf-8", "replace")
    topic_id, partition = _KEY_TAIL.unpack_from(data, _KEY_HEAD.size + size)
    return kind, SharePartitionKey(group, uuid.UUID(bytes=topic_id), partition)


def read_shared_state(data: bytes) -> ShareGroupOffset:
    """Read a snapshot. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    head = _head(_SNAPSHOT_HEAD, data)
    return ShareGroupOffset(head[1], head[3], Snapshot(head[4], _read_batches(data, _SNAPSHOT_HEAD.size)))


def apply_update(before: ShareGroupOffset, data: bytes) -> ShareGroupOffset:
    """Return a snapshot with an update applied. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    _, snapshot_epoch, leader_epoch, start_offset = _head(_UPDATE_HEAD, data)
    if snapshot_epoch != before.snapshot_epoch:
        return before  # the update belongs to an older snapshot
    start_offset = max(before.snapshot.start_offset, start_offset)
    changed = _read_batches(data, _UPDATE_HEAD.size)
    batches = [part for batch in before.snapshot.batches for part in _outside(batch, changed)]
    merged = sorted([*batches, *changed], key=lambda batch: batch.first)
    kept = tuple(replace(batch, first=max(batch.first, start_offset)) for batch in merged if batch.last >= start_offset)
    return ShareGroupOffset(snapshot_epoch, max(leader_epoch, before.leader_epoch), Snapshot(start_offset, kept))


def _outside(batch: InFlightBatch, others: tuple[InFlightBatch, ...]) -> list[InFlightBatch]:
    """Return the parts of a batch that no other batch covers."""
    parts, first = [], batch.first
    for other in others:
        if other.last < first or other.first > batch.last:
            continue
        if other.first > first:
            parts.append(InFlightBatch(first, other.first - 1, batch.state, batch.delivery_count))
        first = other.last + 1
    if first <= batch.last:
        parts.append(InFlightBatch(first, batch.last, batch.state, batch.delivery_count))
    return parts


def _head(layout: struct.Struct, data: bytes) -> tuple[int, ...]:
    if len(data) < layout.size:
        raise InvalidRecordError(f"a state of a share partition has at least {layout.size} bytes, not {len(data)}")
    head: tuple[int, ...] = layout.unpack_from(data)
    if head[0] != _VALUE_VERSION:
        raise UnsupportedVersionError(
            f"the state of a share partition has version {head[0]}, and this broker reads version {_VALUE_VERSION}: "
            "use the broker version that wrote it"
        )
    return head


def _read_batches(data: bytes, at: int) -> tuple[InFlightBatch, ...]:
    count, at = _read_varint(data, at)
    batches = []
    for _ in range(count - 1):
        if at + _BATCH.size > len(data):
            raise InvalidRecordError("the state of a share partition ends within a batch")
        first, last, state, delivery_count = _BATCH.unpack_from(data, at)
        try:
            batches.append(InFlightBatch(first, last, RecordState(state), delivery_count))
        except ValueError:
            raise InvalidRecordError(f"offsets {first}..{last} have unknown state {state}") from None
        at = _skip_tagged(data, at + _BATCH.size)
    return tuple(batches)


def _skip_tagged(data: bytes, at: int) -> int:
    count, at = _read_varint(data, at)
    for _ in range(count):
        _, at = _read_varint(data, at)
        size, at = _read_varint(data, at)
        at += size
    return at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while shift < 35:
        if at >= len(data):
            raise InvalidRecordError("the state of a share partition ends within a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise InvalidRecordError("the state of a share partition has a number of more than 5 bytes")
