"""Checks that this broker still leads a partition.

Reads that must see all earlier writes need such a check. A leader that is cut off from the controller does not learn of
its successor. The successor is one of the replicas in sync, and it stops following before it leads. A check therefore
waits for another fetch of each replica in sync, in the leader's epoch. The replica must have sent this fetch after an
answer that the leader sent after the check began. Then no other broker led the partition when the check began.

Invariants: At most one check of a partition runs. Calls that come while a check runs wait for the next one, which
begins after them. Turns number the checks of all partitions.

Source: the reads without log entries of Raft (Ongaro, "Consensus", section 6.4). Kafka has no such check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from millrace.errors import NotLeaderError
from millrace_broker.purgatory import PartitionKey
from millrace_broker.quotas import parked
from millrace_broker.replication.core import Leader
from millrace_broker.replication.runtime.fetch_sessions import FetchSessions, FollowerSession
from millrace_broker.replication.runtime.hosted import HostedReplica


class LeadershipChecks:
    """The checks of all partitions that this broker leads. For the event loop's thread."""

    def __init__(self, broker_id: int, sessions: FetchSessions, wake: Callable[[Collection[int]], None]) -> None:
        """``wake`` answers the waiting fetches of these followers at once."""
        self._broker_id: Final = broker_id
        self._sessions: Final = sessions
        self._wake: Final = wake
        self._turn = 0
        self._running: Final[dict[PartitionKey, asyncio.Task[None]]] = {}
        self._next: Final[dict[PartitionKey, asyncio.Task[None]]] = {}
        self._news: Final[set[asyncio.Future[None]]] = set()
        """The checks that wait for fetches."""
        self._is_closed = False

    async def check(self, replica: HostedReplica) -> None:
        """Return when it is known that no other broker led the partition when the call began.

        The call waits as long as a replica in sync does not fetch. Raises ``NotLeaderError``.
        """
        key = replica.key
        if replica.leader.maximal_isr == {self._broker_id}:
            return
        if key not in self._next:
            check = asyncio.create_task(self._after(self._running.get(key), replica))
            check.add_done_callback(_retrieve)
            self._next[key] = check
        with parked():
            await asyncio.shield(self._next[key])

    def asked(self, session: FollowerSession) -> None:
        """Take note of a follower's request, after its changes of the session."""
        session.asked_after = session.answered_in
        self.look_again()

    def answered(self, session: FollowerSession) -> None:
        """Take note that the answer to a follower is about to be sent."""
        session.answered_in = self._turn

    def look_again(self) -> None:
        """Have all checks look at the roles, the ISR and the fetches again."""
        for each in self._news:
            if not each.done():
                each.set_result(None)

    def close(self) -> None:
        """End all checks with an error, because the broker stops."""
        self._is_closed = True
        self.look_again()

    async def _after(self, before: asyncio.Task[None] | None, replica: HostedReplica) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running[replica.key] = self._next.pop(replica.key)
        try:
            await self._run(replica)
        finally:
            del self._running[replica.key]

    async def _run(self, replica: HostedReplica) -> None:
        leader, epoch = replica.leader, replica.leader.epoch
        self._turn += 1
        turn = self._turn
        self._wake(leader.maximal_isr)
        while self._missing(replica, leader, epoch, turn):
            news = asyncio.get_running_loop().create_future()
            self._news.add(news)
            try:
                await news
            finally:
                self._news.discard(news)

    def _missing(self, replica: HostedReplica, leader: Leader, epoch: int, turn: int) -> bool:
        """Return whether a replica in sync has not fetched since the turn. Raises ``NotLeaderError``."""
        if self._is_closed or replica.machine.role is not leader or leader.epoch != epoch:
            raise NotLeaderError(f"{replica.name} is no longer led by this broker in epoch {epoch}")
        others = leader.maximal_isr - {self._broker_id}
        return not all(self._sessions.follows_since(each, replica.key, epoch, turn) for each in others)


def _retrieve(check: asyncio.Task[None]) -> None:
    """Mark the error of a check as retrieved, because its callers may have been cancelled."""
    if not check.cancelled():
        check.exception()
