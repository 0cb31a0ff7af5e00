"""Replication quotas in bytes per second (KIP-73), for leaders and for followers.

Bytes are counted over the last eleven seconds, as in Kafka's quotas. A rate that was not used may be used a little
later. A quota applies only to replicas that a topic's option names and that are not in sync. So a quota never removes a
replica from the ISR. Fetches of a named replica in sync still count on the follower, as in Kafka; the other replicas
share the rest.
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
    """Return whether a topic's ``leader.`` or ``follower.replication.throttled.replicas`` names a replica.

    The option is ``*``, or ``partition:broker`` pairs separated by commas.
    """
    return replicas == ALL or f"{partition}:{broker_id}" in replicas.split(",")


class ReplicationQuota:
    """The quota of all throttled replicas together, Kafka's ``ReplicationQuotaManager``.

    ``bytes_per_s`` is the allowed rate. It is infinite until it is set.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic: Final = monotonic
        self._samples: Final[deque[tuple[float, int]]] = deque()
        self._used_bytes = 0
        self.bytes_per_s = math.inf

    def used(self, size_bytes: int) -> None:
        """Count bytes that were sent to, or fetched for, throttled replicas."""
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
        """True if throttled replicas have to wait."""
        if self.bytes_per_s == math.inf:
            return False
        now = self._monotonic()
        self._forget(now)
        if not self._samples:
            return False
        # Divide by at least all full windows but one, as Kafka does. Otherwise the first bytes after a pause would
        # exceed the rate.
        elapsed_s = max(now - self._samples[0][0], (_SAMPLES - 1) * _SAMPLE_S)
        return self._used_bytes / elapsed_s > self.bytes_per_s

    def _forget(self, now: float) -> None:
        while self._samples and now - self._samples[0][0] > _SAMPLES * _SAMPLE_S:
            self._used_bytes -= self._samples.popleft()[1]


class Throttles:
    """The replication quotas of a broker.

    ``to_followers`` is for the partitions that it leads, ``from_leaders`` for the partitions that it follows.
    """

    def __init__(self, broker_id: int, monotonic: Callable[[], float]) -> None:
        self._broker_id: Final = broker_id
        self.to_followers: Final = ReplicationQuota(monotonic)
        self.from_leaders: Final = ReplicationQuota(monotonic)

    def limits_leader(self, replica: HostedReplica, follower: int) -> bool:
        """Return whether the option names this replica and the follower is not in sync, so that the quota applies."""
        option = replica.log.config.leader_replication_throttled_replicas
        if not option or not replica.leads or follower in replica.leader.isr:
            return False
        return is_throttled(option, replica.key[1], self._broker_id)

    def counts_follower(self, replica: HostedReplica) -> bool:
        """Return whether the option names a replica, so that its fetches count."""
        option = replica.log.config.follower_replication_throttled_replicas
        return bool(option) and is_throttled(option, replica.key[1], self._broker_id)

    def limits_follower(self, replica: HostedReplica) -> bool:
        """Return whether a replica may have to wait, because the option names it and it lacks records."""
        is_behind = replica.follower is not None and not replica.follower.has_caught_up
        return is_behind and self.counts_follower(replica)
