"""A ``World``'s record of its partitions, with appended and promised records."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Entry:
    """One appended record. ``sequence`` is -1 unless an idempotent producer sent it."""

    key: bytes
    value: bytes | None
    time_ms: int
    epoch: int
    sequence: int


@dataclass(slots=True)
class Partition:
    """The state of one partition. ``end`` follows the last acknowledged record, ``synced`` the last durable one."""

    topic: str
    topic_id: UUID
    is_compacted: bool
    records: dict[int, Entry] = field(default_factory=dict)
    markers: set[int] = field(default_factory=set)
    """Offsets of transaction markers."""
    transactional_sequence: int = 0
    end: int = 0
    end_max: int = 0
    """The log end offset before a truncation, while that is in progress."""
    synced: int = 0
    start: int = 0
    sequence: int = 0
    epoch: int = 0
    is_settled: bool = False
    """True if its creation was acknowledged and its deletion has not begun."""
