"""Delivery states as records of ``__share_group_state``.

The records are Kafka's ``ShareSnapshot`` and ``ShareUpdate``. Kafka writes a snapshot now and then and updates in
between, into a topic that it prunes itself. Here the topic is compacted, and each record is a snapshot.
``group.share.partition.max.record.locks`` bounds its size. Updates are read too, because Kafka may have written the
topic. Values are flexible (KIP-482), keys are not.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from millrace.coordinator_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
    UnknownKey,
    UpdatedBatch,
    read_share_state_key,
    read_versioned,
    write_key,
)
from millrace.errors import InvalidRecordError
from millrace.kafka_protocol.wire import varint_bytes
from millrace_broker.coordinators import StateRecord
from millrace_broker.share_groups.in_flight import InFlightBatch, RecordState, Snapshot

SNAPSHOT_KEY: Final = ShareSnapshotKey.API_KEY
UPDATE_KEY: Final = ShareUpdateKey.API_KEY
_VALUE_VERSION: Final = 0

_SNAPSHOT_HEAD: Final = struct.Struct(">hiiiqqq")
_BATCH: Final = struct.Struct(">qqbhx")


class SharePartitionKey(NamedTuple):
    """Partition in a share group (Kafka's class)."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class ShareGroupOffset:
    """State of a share partition in the log (Kafka's class).

    Each snapshot has a greater ``snapshot_epoch`` than the one before.
    """

    snapshot_epoch: int
    leader_epoch: int
    snapshot: Snapshot


def snapshot_record(key: SharePartitionKey, state: ShareGroupOffset, now_ms: int) -> StateRecord:
    """Return the record of a share partition; ``now_ms`` is the time since 1970."""
    snapshot = state.snapshot
    head = _SNAPSHOT_HEAD.pack(
        _VALUE_VERSION, state.snapshot_epoch, 0, state.leader_epoch, snapshot.start_offset, now_ms, now_ms
    )
    # The same bytes as ``ShareSnapshotValue.encode``, several times as fast: each acknowledgement writes a snapshot.
    batches = b"".join(
        _BATCH.pack(batch.first, batch.last, batch.state.value, batch.delivery_count) for batch in snapshot.batches
    )
    return StateRecord(_key(key), head + varint_bytes(len(snapshot.batches) + 1) + batches + b"\0")


def tombstone(key: SharePartitionKey) -> StateRecord:
    """Return the record that deletes a share partition."""
    return StateRecord(_key(key), None)


def _key(key: SharePartitionKey) -> bytes:
    return write_key(ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition))


def read_key(data: bytes) -> tuple[int, SharePartitionKey | None]:
    """Read a key: the type of its record, and its share partition (None if the type is unknown).

    Raises ``InvalidRecordError``.
    """
    key = read_share_state_key(data)
    if isinstance(key, UnknownKey):
        return key.version, None
    return key.API_KEY, SharePartitionKey(key.group_id, key.topic_id, key.partition)


def read_shared_state(data: bytes) -> ShareGroupOffset:
    """Read a snapshot. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    _, value = read_versioned(ShareSnapshotValue, data)
    return ShareGroupOffset(
        value.snapshot_epoch, value.leader_epoch, Snapshot(value.start_offset, _batches(value.state_batches))
    )


def apply_update(before: ShareGroupOffset, data: bytes) -> ShareGroupOffset:
    """Return a snapshot with an update applied. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    _, value = read_versioned(ShareUpdateValue, data)
    if value.snapshot_epoch != before.snapshot_epoch:
        return before  # the update belongs to an older snapshot
    start_offset = max(before.snapshot.start_offset, value.start_offset)
    changed = _batches(value.state_batches)
    batches = [part for batch in before.snapshot.batches for part in _outside(batch, changed)]
    merged = sorted([*batches, *changed], key=lambda batch: batch.first)
    kept = tuple(replace(batch, first=max(batch.first, start_offset)) for batch in merged if batch.last >= start_offset)
    return ShareGroupOffset(
        value.snapshot_epoch, max(value.leader_epoch, before.leader_epoch), Snapshot(start_offset, kept)
    )


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


def _batches(stored: Iterable[StateBatch | UpdatedBatch]) -> tuple[InFlightBatch, ...]:
    return tuple(
        InFlightBatch(batch.first_offset, batch.last_offset, _state(batch), batch.delivery_count) for batch in stored
    )


def _state(batch: StateBatch | UpdatedBatch) -> RecordState:
    try:
        return RecordState(batch.delivery_state)
    except ValueError:
        raise InvalidRecordError(
            f"offsets {batch.first_offset}..{batch.last_offset} have unknown state {batch.delivery_state}"
        ) from None
