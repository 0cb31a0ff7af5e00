"""Calls that wait for replicas, Kafka's ``DelayedProduce`` and ``DelayedDeleteRecords``.

Appends with acks=all wait here, coordinators that read their state, and deletions of records. Each operation waits for
one partition; a request with several partitions has an operation for each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from millrace.errors import (
    MillraceError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderError,
    RequestTimedOutError,
)
from millrace_broker.purgatory import DelayedOperation, PartitionKey, Purgatory, PurgatoryStatistics, Timer
from millrace_broker.quotas import parked
from millrace_broker.replication.core import Leader
from millrace_broker.replication.runtime.hosted import HostedReplica

_LOOKS_AGAIN_S: Final = 10.0


class DelayedProduce:
    """The calls that wait for replicas of partitions that this broker leads. For the event loop's thread."""

    def __init__(self, timer: Timer) -> None:
        self._appends: Final[Purgatory[PartitionKey]] = Purgatory("produce", timer)
        self._deletions: Final[Purgatory[PartitionKey]] = Purgatory("delete records", timer)

    def check(self, key: PartitionKey) -> None:
        """Check the calls that wait for a partition, because its high watermark, its ISR or its leader has changed."""
        self._appends.check(key)
        self._deletions.check(key)

    def fetched(self, key: PartitionKey) -> None:
        """Check deletions of records, because a follower has reported its log start offset."""
        self._deletions.check(key)

    def close(self) -> None:
        """End all waits, because the broker stops."""
        self._appends.close()
        self._deletions.close()

    def statistics(self) -> PurgatoryStatistics:
        """Return how many appends wait for replicas."""
        return self._appends.statistics()

    async def acknowledged(
        self, replica: HostedReplica, end_offset: int, timeout_s: float, *, waits_for_isr: bool = False
    ) -> None:
        """Wait until all replicas in sync have the records before an offset.

        Raises ``RequestTimedOutError``, ``NotLeaderError`` if another broker becomes the leader, and
        ``NotEnoughReplicasAfterAppendError`` if the ISR has become too small, unless the call waits for that too.
        """

        def is_acknowledged(leader: Leader) -> bool:
            try:
                return leader.is_acknowledged(end_offset)
            except NotEnoughReplicasAfterAppendError:
                if not waits_for_isr:
                    raise
                return False

        late = f"the records were appended to {replica.name}, but not all replicas in sync received them in time"
        await _wait(self._appends, _Waiting(replica, is_acknowledged, timeout_s, late))

    async def committed(self, replica: HostedReplica, end_offset: int) -> None:
        """Wait without a time limit until the records before an offset are readable. Raises ``NotLeaderError``."""
        while replica.leader and replica.log.high_watermark < end_offset:
            with contextlib.suppress(RequestTimedOutError, NotEnoughReplicasAfterAppendError):
                await self.acknowledged(replica, end_offset, _LOOKS_AGAIN_S)

    async def deleted(
        self, replica: HostedReplica, before_offset: int, is_alive: Callable[[int], bool], timeout_s: float
    ) -> None:
        """Wait until the logs of all replicas on live brokers start at an offset or later.

        Raises ``RequestTimedOutError``, ``NotLeaderError``.
        """

        def is_deleted(leader: Leader) -> bool:
            followers = leader.followers.items()
            return all(each.log_start_offset >= before_offset for id_, each in followers if is_alive(id_))

        late = f"the records of {replica.name} before {before_offset} were deleted, but not on all replicas in time"
        await _wait(self._deletions, _Waiting(replica, is_deleted, timeout_s, late))


async def _wait(purgatory: Purgatory[PartitionKey], waiting: _Waiting) -> None:
    try:
        if not purgatory.complete_or_watch(waiting, [waiting.replica.key]):
            with parked():
                await waiting.ended
    finally:
        waiting.force_complete()
    waiting.check()


class _Waiting(DelayedOperation):
    """A wait for a condition of the leader.

    The wait also ends when this broker stops leading.
    """

    def __init__(
        self, replica: HostedReplica, condition: Callable[[Leader], bool], timeout_s: float, late: str
    ) -> None:
        super().__init__(max(0, round(timeout_s * 1000)))
        self.replica: Final = replica
        self._leader: Final = replica.leader
        self._condition: Final = condition
        self._late: Final = late
        self._error: MillraceError | None = NotLeaderError(
            f"the broker of {replica.name} is stopping: fetch the metadata again"
        )
        self.ended: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def try_complete(self) -> bool:
        """Check the condition on the leader's state machine."""
        if self.replica.machine.role is not self._leader:
            self._error = NotLeaderError(f"{self.replica.name} has a new leader: fetch the metadata again")
            return self.force_complete()
        try:
            if not self._condition(self._leader):
                return False
            self._error = None
        except MillraceError as error:
            self._error = error
        return self.force_complete()

    def on_complete(self) -> None:
        """Let the caller continue."""
        if not self.ended.done():
            self.ended.set_result(None)

    def on_expiration(self) -> None:
        """End with a time-out error. The append or deletion stays in the log, and may still be replicated."""
        self._error = RequestTimedOutError(f"{self._late} (in sync: {sorted(self._leader.isr)})")

    def check(self) -> None:
        """Raise the error unless the condition holds; call it after the end."""
        if self._error is not None:
            raise self._error
