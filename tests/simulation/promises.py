"""What a ``World`` knows of its partitions: what was appended, and what of it was promised."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as it was appended. ``sequence`` is -1 unless an idempotent producer sent it."""

    key: bytes
    value: bytes | None
    time_ms: int
    epoch: int
    sequence: int


@dataclass(slots=True)
class Partition:
    """What is known of one partition: ``end`` follows the last acknowledged record, ``synced`` the last safe one."""

    topic: str
    topic_id: UUID
    is_compacted: bool
    records: dict[int, Entry] = field(default_factory=dict)
    markers: set[int] = field(default_factory=set)
    """Offsets of what ends transactions."""
    transactional_sequence: int = 0
    end: int = 0
    end_max: int = 0
    """While a truncation goes on: where the log ended before it."""
    synced: int = 0
    start: int = 0
    sequence: int = 0
    epoch: int = 0
    is_settled: bool = False
    """Whether its creation was acknowledged, and its deletion has not begun."""
