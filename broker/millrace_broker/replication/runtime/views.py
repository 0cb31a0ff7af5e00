"""Views of replicas, for metrics and for administrators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from millrace_broker.purgatory import PartitionKey, PurgatoryStatistics
from millrace_broker.replication.core import Leader
from millrace_broker.replication.runtime.hosted import HostedReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class LedPartition:
    """The present state of a partition that this broker leads."""

    leader_epoch: int
    partition_epoch: int
    isr: frozenset[int]
    followers: tuple[int, ...]
    min_in_sync: int
    high_watermark: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationStatistics:
    """Numbers of led and followed partitions, and of ISR changes.

    ``under_replicated`` are the led partitions whose ISR lacks a replica. ``under_min_isr`` are those whose ISR is
    smaller than ``min.insync.replicas``. ``isr_shrinks`` and ``isr_expands`` count since the start, as Kafka's
    ``IsrShrinksPerSec`` and ``IsrExpandsPerSec``.
    """

    led: int
    followed: int
    under_replicated: int
    under_min_isr: int
    isr_shrinks: int
    isr_expands: int
    waiting: PurgatoryStatistics


def leaderships_of(hosted: Mapping[PartitionKey, HostedReplica]) -> dict[PartitionKey, LedPartition]:
    """Return the state of the hosted partitions that this broker leads."""
    return {
        key: LedPartition(
            leader_epoch=leader.epoch,
            partition_epoch=leader.partition_epoch,
            isr=leader.isr,
            followers=replica.followers,
            min_in_sync=leader.min_in_sync,
            high_watermark=replica.log.high_watermark,
            log_end_offset=replica.log.log_end_offset,
        )
        for key, replica in hosted.items()
        if isinstance(leader := replica.machine.role, Leader)
    }


def statistics_of(
    hosted: Mapping[PartitionKey, HostedReplica], *, shrinks: int, expands: int, waiting: PurgatoryStatistics
) -> ReplicationStatistics:
    """Count the hosted replicas."""
    led = list(leaderships_of(hosted).values())
    return ReplicationStatistics(
        led=len(led),
        followed=sum(1 for replica in hosted.values() if replica.follower is not None),
        under_replicated=sum(1 for each in led if len(each.isr) < len(each.followers) + 1),
        under_min_isr=sum(1 for each in led if len(each.isr) < each.min_in_sync),
        isr_shrinks=shrinks,
        isr_expands=expands,
        waiting=waiting,
    )
