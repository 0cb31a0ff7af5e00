"""Frozen data that leader, follower and partition share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from millrace_broker.log.leader_epochs import LeaderEpochs

UNKNOWN_OFFSET: Final = -1
"""The offset of a replica that has not fetched yet."""
UNKNOWN_EPOCH: Final = -1
"""The broker epoch of a replica that has not fetched yet, or that has an earlier version."""


class LogView(Protocol):
    """A read-only view of this broker's log of the partition. Only the runtime changes the log."""

    @property
    def log_start_offset(self) -> int:
        """The first readable offset."""

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""

    @property
    def epochs(self) -> LeaderEpochs:
        """The start offsets of the leader epochs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Options of replication. Times are in ms; names and defaults are Kafka's.

    ``does_truncate_on_fetch`` is false for leaders that do not compare epochs in a fetch (before Kafka 2.7). The
    follower then asks such a leader for the ends of epochs.
    """

    replica_lag_time_max_ms: int = 30_000
    min_insync_replicas: int = 1
    replica_fetch_backoff_ms: int = 1_000
    does_truncate_on_fetch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """The end offset of an epoch in a replica's log, exclusive.

    The epoch is the requested one, or the last epoch before it.
    """

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgress:
    """The progress of a follower as the leader knows it from fetches. Times are in ms of the leader's clock.

    ``last_fetch_leader_end`` is the leader's log end offset at the follower's previous fetch. A follower that fetches
    from there later had caught up at the time of that fetch, even if the leader has appended since. ``broker_epoch`` is
    the follower's registration at its last fetch. A follower that restarts has another one, and perhaps lost records.
    """

    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset: int = UNKNOWN_OFFSET
    last_fetch_leader_end: int = UNKNOWN_OFFSET
    last_fetch_ms: int = 0
    last_caught_up_ms: int = 0
    broker_epoch: int = UNKNOWN_EPOCH

    def after_fetch(
        self, fetch_offset: int, log_start_offset: int, leader_end: int, now_ms: int, broker_epoch: int
    ) -> ReplicaProgress:
        """Return the progress after a fetch from ``fetch_offset``."""
        caught_up_ms = self.last_caught_up_ms
        if fetch_offset >= leader_end:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end:
            caught_up_ms = max(caught_up_ms, self.last_fetch_ms)
        return ReplicaProgress(
            log_start_offset=log_start_offset,
            log_end_offset=fetch_offset,
            last_fetch_leader_end=max(leader_end, self.last_fetch_leader_end),
            last_fetch_ms=now_ms,
            last_caught_up_ms=caught_up_ms,
            broker_epoch=broker_epoch,
        )

    def in_new_epoch(self, leader_end: int, now_ms: int, *, is_in_sync: bool) -> ReplicaProgress:
        """Return the progress at the start of a leader epoch.

        A leader that stays keeps the offsets of its followers. Replicas in sync have the whole
        ``replica.lag.time.max.ms`` to fetch again.
        """
        since = now_ms if is_in_sync else 0
        return replace(self, last_fetch_leader_end=leader_end, last_fetch_ms=since, last_caught_up_ms=since)

    def is_caught_up(self, leader_end: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Return whether the follower has the whole log, or had it at most ``lag_time_max_ms`` ago."""
        return self.log_end_offset == leader_end or now_ms - self.last_caught_up_ms <= lag_time_max_ms
