"""Limits on the bytes a second that go to replicas that are catching up, or come to them (KIP-73).

Bytes are counted over the last eleven seconds, as Kafka's quotas are: what was not used may be used a little later.
Only replicas that topics name are limited, and only those that are not in sync: a limit never keeps one in sync from
staying so. What one in sync fetches counts for the follower all the same, as in Kafka: the others get what is left.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from millrace_broker.replication.runtime.hosted import HostedReplica

_SAMPLES: Final = 11
_SAMPLE_S: Final = 1.0
ALL: Final = "*"


def is_throttled(replicas: str, partition: int, broker_id: int) -> bool:
    """Whether a topic's ``leader.`` or ``follower.replication.throttled.replicas`` names a replica.

    The option is ``*``, or ``partition:broker`` pairs with commas between.
    """
    return replicas == ALL or f"{partition}:{broker_id}" in replicas.split(",")


class ReplicationQuota:
    """Bytes a second of all throttled replicas together; infinite until it is set."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic: Final = monotonic
        self._samples: Final[deque[tuple[float, int]]] = deque()
        self._used_bytes = 0
        self.bytes_per_s = math.inf

    def used(self, size_bytes: int) -> None:
        """Bytes of throttled replicas have gone, or come."""
        now = self._monotonic()
        self._forget(now)
        if self._samples and now - self._samples[-1][0] < _SAMPLE_S:
            since, before = self._samples.pop()
            self._samples.append((since, before + size_bytes))
        else:
            self._samples.append((now, size_bytes))
        self._used_bytes += size_bytes

    @property
    def is_exceeded(self) -> bool:
        """Whether throttled replicas have to wait."""
        if self.bytes_per_s == math.inf:
            return False
        now = self._monotonic()
        self._forget(now)
        if not self._samples:
            return False
        # As Kafka, at least all full windows but one: else the first bytes after a pause would count as a burst.
        elapsed_s = max(now - self._samples[0][0], (_SAMPLES - 1) * _SAMPLE_S)
        return self._used_bytes / elapsed_s > self.bytes_per_s

    def _forget(self, now: float) -> None:
        while self._samples and now - self._samples[0][0] > _SAMPLES * _SAMPLE_S:
            self._used_bytes -= self._samples.popleft()[1]


class Throttles:
    """The limits of a broker: ``to_followers`` of what it leads, and ``from_leaders`` of what it follows."""

    def __init__(self, broker_id: int, monotonic: Callable[[], float]) -> None:
        self._broker_id: Final = broker_id
        self.to_followers: Final = ReplicationQuota(monotonic)
        self.from_leaders: Final = ReplicationQuota(monotonic)

    def limits_leader(self, replica: HostedReplica, follower: int) -> bool:
        """Whether what a follower gets of a partition is limited: it is not in sync, and the replica here is named."""
        option = replica.log.config.leader_replication_throttled_replicas
        if not option or not replica.leads or follower in replica.leader.isr:
            return False
        return is_throttled(option, replica.key[1], self._broker_id)

    def counts_follower(self, replica: HostedReplica) -> bool:
        """Whether what is fetched for a replica here counts: it is named."""
        option = replica.log.config.follower_replication_throttled_replicas
        return bool(option) and is_throttled(option, replica.key[1], self._broker_id)

    def limits_follower(self, replica: HostedReplica) -> bool:
        """Whether a replica here may have to wait: it is named, and has to catch up, as far as it knows."""
        is_behind = replica.follower is not None and not replica.follower.has_caught_up
        return is_behind and self.counts_follower(replica)
