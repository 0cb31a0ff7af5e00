"""Deliveries as records of ``__share_group_state``: Kafka's ``ShareSnapshot`` and ``ShareUpdate``.

Kafka writes a snapshot now and then and what changed in between, into a topic that it prunes by itself. Here the topic
is compacted, and every record is a snapshot: what is in it is bounded by ``group.share.partition.max.record.locks``.
Updates are read, for a partition that Kafka wrote. Values are flexible (KIP-482), keys are not.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from millrace.errors import InvalidRecordError, UnsupportedVersionError
from millrace_broker.coordinators import StateRecord
from millrace_broker.share_groups.delivery import RecordState, Run, Snapshot

SNAPSHOT_KEY: Final = 0
UPDATE_KEY: Final = 1
_VALUE_VERSION: Final = 0
_NO_START: Final = -1

_KEY_HEAD: Final = struct.Struct(">hh")
_KEY_TAIL: Final = struct.Struct(">16si")
_SNAPSHOT_HEAD: Final = struct.Struct(">hiiiqqq")
_UPDATE_HEAD: Final = struct.Struct(">hiiq")
_RUN: Final = struct.Struct(">qqbh")


class ShareKey(NamedTuple):
    """A partition in a share group."""

    group_id: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class SharedState:
    """What is written down of a partition; ``snapshot_epoch`` grows with every snapshot."""

    snapshot_epoch: int
    leader_epoch: int
    snapshot: Snapshot


def snapshot_record(key: ShareKey, state: SharedState, now_ms: int) -> StateRecord:
    """A partition as it is; ``now_ms`` is the time since 1970."""
    snapshot = state.snapshot
    head = _SNAPSHOT_HEAD.pack(
        _VALUE_VERSION, state.snapshot_epoch, 0, state.leader_epoch, snapshot.start_offset, now_ms, now_ms
    )
    runs = b"".join(
        _RUN.pack(run.first, run.last, run.state.value, run.delivery_count) + b"\0" for run in snapshot.runs
    )
    return StateRecord(_key(key), head + _varint(len(snapshot.runs) + 1) + runs + b"\0")


def tombstone(key: ShareKey) -> StateRecord:
    """A partition that the group has nothing to do with any more."""
    return StateRecord(_key(key), None)


def _key(key: ShareKey, version: int = SNAPSHOT_KEY) -> bytes:
    group = key.group_id.encode()
    return _KEY_HEAD.pack(version, len(group)) + group + _KEY_TAIL.pack(key.topic_id.bytes, key.partition)


def read_key(data: bytes) -> tuple[int, ShareKey]:
    """Read a key: what its record is (``SNAPSHOT_KEY``, ``UPDATE_KEY``), and of what. Raises ``InvalidRecordError``."""
    if len(data) < _KEY_HEAD.size:
        raise InvalidRecordError(f"a key of {len(data)} bytes")
    kind, size = _KEY_HEAD.unpack_from(data)
    if size < 0 or len(data) != _KEY_HEAD.size + size + _KEY_TAIL.size:
        raise InvalidRecordError(f"a key of {len(data)} bytes with a group id of {size}")
    group = data[_KEY_HEAD.size : _KEY_HEAD.size + size].decode("utf-8", "replace")
    topic_id, partition = _KEY_TAIL.unpack_from(data, _KEY_HEAD.size + size)
    return kind, ShareKey(group, uuid.UUID(bytes=topic_id), partition)


def read_shared_state(data: bytes) -> SharedState:
    """Read a snapshot. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    head = _head(_SNAPSHOT_HEAD, data)
    return SharedState(head[1], head[3], Snapshot(head[4], _runs(data, _SNAPSHOT_HEAD.size)))


def apply_update(before: SharedState, data: bytes) -> SharedState:
    """A snapshot, and an update of it. Raises ``InvalidRecordError``, ``UnsupportedVersionError``."""
    _, snapshot_epoch, leader_epoch, start_offset = _head(_UPDATE_HEAD, data)
    if snapshot_epoch != before.snapshot_epoch:
        return before  # of an older snapshot
    start_offset = max(before.snapshot.start_offset, start_offset)
    changed = _runs(data, _UPDATE_HEAD.size)
    runs = [part for run in before.snapshot.runs for part in _outside(run, changed)]
    merged = sorted([*runs, *changed], key=lambda run: run.first)
    kept = tuple(replace(run, first=max(run.first, start_offset)) for run in merged if run.last >= start_offset)
    return SharedState(snapshot_epoch, max(leader_epoch, before.leader_epoch), Snapshot(start_offset, kept))


def _outside(run: Run, others: tuple[Run, ...]) -> list[Run]:
    """The parts of a run that none of the others covers."""
    parts, first = [], run.first
    for other in others:
        if other.last < first or other.first > run.last:
            continue
        if other.first > first:
            parts.append(Run(first, other.first - 1, run.state, run.delivery_count))
        first = other.last + 1
    if first <= run.last:
        parts.append(Run(first, run.last, run.state, run.delivery_count))
    return parts


def _head(layout: struct.Struct, data: bytes) -> tuple[int, ...]:
    if len(data) < layout.size:
        raise InvalidRecordError(f"a value of {len(data)} bytes: it has at least {layout.size}")
    head: tuple[int, ...] = layout.unpack_from(data)
    if head[0] != _VALUE_VERSION:
        raise UnsupportedVersionError(f"a state of share groups of version {head[0]}")
    return head


def _runs(data: bytes, at: int) -> tuple[Run, ...]:
    count, at = _read_varint(data, at)
    runs = []
    for _ in range(count - 1):
        if at + _RUN.size > len(data):
            raise InvalidRecordError("a state of share groups ends within a batch")
        first, last, state, delivery_count = _RUN.unpack_from(data, at)
        try:
            runs.append(Run(first, last, RecordState(state), delivery_count))
        except ValueError:
            raise InvalidRecordError(f"offsets {first}..{last} are in state {state}, which is not known") from None
        at = _skip_tagged(data, at + _RUN.size)
    return tuple(runs)


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
            raise InvalidRecordError("a state of share groups ends within a number")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise InvalidRecordError("a number of more than 5 bytes")
