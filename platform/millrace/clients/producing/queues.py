"""Queues of the sender's batches by partition.

Invariants: at most one batch of a partition is in flight. Batches of a partition get their outcomes in the order of
their queue. Therefore waiting batches expire only while no batch is in flight that still awaits its outcome. A request
blocks the queues of its batches until it ends, also if a batch has expired before.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.clients.model import TopicPartition
from millrace.clients.producing.outgoing import Outgoing


@dataclass(slots=True)
class Queue:
    """Waiting batches of a partition, without the batch in flight."""

    waiting: deque[Outgoing] = field(default_factory=deque)
    in_flight: bool = False
    expiring: Outgoing | None = None
    """Batch in flight that expires before its request ends."""
    is_overdue: bool = False
    """True if the batch in flight has expired. Its answer is ignored."""
    is_leader_in_doubt: bool = False
    retry_at: float = 0.0

    @property
    def can_expire(self) -> bool:
        """True if the first waiting batch may get its outcome now."""
        return bool(self.waiting) and (self.is_overdue or not self.in_flight)


class Queues(defaultdict[TopicPartition, Queue]):
    """Queues by partition. The sender's lock guards them."""

    def __init__(self) -> None:
        super().__init__(Queue)

    def ready(self, now: float) -> list[TopicPartition]:
        """Return the partitions whose first batch can be sent."""
        return [
            partition
            for partition, queue in self.items()
            if queue.waiting and not queue.in_flight and queue.retry_at <= now
        ]

    def is_busy(self, topic: str) -> bool:
        """Return whether batches of a topic wait for one in flight."""
        return any(queue.in_flight and queue.waiting for partition, queue in self.items() if partition.topic == topic)

    def times(self, now: float) -> list[float]:
        """Return the times at which a batch can be sent or expires."""
        times = []
        for queue in self.values():
            if queue.expiring is not None:
                times.append(queue.expiring.deadline)
            elif queue.can_expire:
                deadline = queue.waiting[0].deadline
                times.append(deadline if queue.in_flight else min(max(queue.retry_at, now + 0.001), deadline))
        return times

    def begin(self, batches: Iterable[Outgoing], request_end: float) -> None:
        """Note that a request with these batches begins, which ends at ``request_end`` at the latest."""
        for outgoing in batches:
            self[outgoing.partition].expiring = outgoing if outgoing.deadline < request_end else None

    def end(self, outgoing: Outgoing) -> bool:
        """Note that the request of a batch has ended; returns false if the batch has expired before."""
        queue = self[outgoing.partition]
        queue.expiring = None
        if queue.is_overdue:
            queue.in_flight = queue.is_overdue = False
            return False
        return True

    def expire(self, now: float) -> list[Outgoing]:
        """Take the batches whose deadline has passed, in the order of each queue."""
        expired = []
        for queue in self.values():
            if queue.expiring is not None and queue.expiring.deadline <= now:
                queue.expiring.outcome_unknown = True
                expired.append(queue.expiring)
                queue.expiring, queue.is_overdue = None, True
            while queue.can_expire and queue.waiting[0].deadline <= now:
                expired.append(queue.waiting.popleft())
        return expired

    def requeue(self, outgoing: Outgoing, retry_at: float) -> None:
        """Queue a batch again, first, after an attempt that failed."""
        queue = self[outgoing.partition]
        queue.in_flight, queue.is_leader_in_doubt = False, True
        queue.waiting.appendleft(outgoing)
        queue.retry_at = retry_at

    def replace(self, halves: list[Outgoing]) -> None:
        """Queue the halves of a batch that was in flight, first."""
        queue = self[halves[0].partition]
        queue.in_flight = False
        queue.waiting.extendleft(reversed(halves))
