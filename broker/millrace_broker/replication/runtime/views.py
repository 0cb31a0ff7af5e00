"""How replicas stand, for metrics and for people."""

from __future__ import annotations

from dataclasses import dataclass

from millrace_broker.purgatory import PurgatoryStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LedPartition:
    """A partition that this broker leads, as it stands."""

    leader_epoch: int
    partition_epoch: int
    isr: frozenset[int]
    followers: tuple[int, ...]
    min_in_sync: int
    high_watermark: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationStatistics:
    """Partitions that are led and followed; of the former, those without all, or without enough, replicas in sync.

    ``isr_shrinks`` and ``isr_expands`` are since the start, as Kafka's ``IsrShrinksPerSec`` and ``IsrExpandsPerSec``.
    """

    led: int
    followed: int
    under_replicated: int
    under_min_isr: int
    isr_shrinks: int
    isr_expands: int
    waiting: PurgatoryStatistics
