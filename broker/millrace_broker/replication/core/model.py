"""What replicas are told and tell of themselves: frozen data that leader, follower and partition share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

from millrace_broker.log.leader_epochs import LeaderEpochs

UNKNOWN_OFFSET: Final = -1
"""Of a replica that has not fetched yet."""


class LogView(Protocol):
    """What the machines look at of this broker's log of the partition. Only the edge changes it."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""

    @property
    def epochs(self) -> LeaderEpochs:
        """Which leader epoch begins where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Options of replication. Times in ms; names and defaults are Kafka's.

    ``does_truncate_on_fetch`` is false towards leaders that do not compare epochs when they are fetched from (before
    Kafka 2.7): ends of epochs are asked for then.
    """

    replica_lag_time_max_ms: int = 30_000
    min_insync_replicas: int = 1
    replica_fetch_backoff_ms: int = 1_000
    does_truncate_on_fetch: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd:
    """Where an epoch ends in somebody's log, exclusive. The epoch is the one asked for or the last before it."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgress:
    """What a leader knows of a follower, by its fetches. Times in ms of the leader's clock.

    ``last_fetch_leader_end`` is where the leader's log ended when it fetched last: having got there later shows that
    it had caught up at the time of that fetch, though the leader has gone on since.
    """

    log_start_offset: int = UNKNOWN_OFFSET
    log_end_offset: int = UNKNOWN_OFFSET
    last_fetch_leader_end: int = UNKNOWN_OFFSET
    last_fetch_ms: int = 0
    last_caught_up_ms: int = 0

    def after_fetch(self, fetch_offset: int, log_start_offset: int, leader_end: int, now_ms: int) -> ReplicaProgress:
        """What is known after it has fetched from ``fetch_offset``."""
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
        )

    def in_new_epoch(self, leader_end: int, now_ms: int, *, is_in_sync: bool, is_new_leader: bool) -> ReplicaProgress:
        """What is known when the leader begins an epoch: nothing to a new one, the offsets to the same one.

        Replicas in sync have the whole time to come anew.
        """
        since = now_ms if is_in_sync else 0
        if is_new_leader:
            return ReplicaProgress(last_caught_up_ms=since)
        return replace(self, last_fetch_leader_end=leader_end, last_fetch_ms=since, last_caught_up_ms=since)

    def is_caught_up(self, leader_end: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it has all, or had all not too long ago."""
        return self.log_end_offset == leader_end or now_ms - self.last_caught_up_ms <= lag_time_max_ms
