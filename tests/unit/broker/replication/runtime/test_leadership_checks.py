"""Tests of the check that a broker is still the leader.

The tests cover which followers' fetches count, and when a check ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from millrace.errors import NotLeaderError
from millrace_broker.decisions import PartitionDecision
from millrace_broker.replication.core import Leader, ReplicationSettings
from millrace_broker.replication.runtime.fetch_sessions import FetchSessions, FollowerFetch, FollowerSession
from millrace_broker.replication.runtime.hosted import HostedReplica
from millrace_broker.replication.runtime.leadership_checks import LeadershipChecks

KEY = ("t", 0)
DECISION = PartitionDecision(
    controller_epoch=1, leader=1, leader_epoch=5, partition_epoch=7, isr=(1, 2, 3), replicas=(1, 2, 3, 4)
)


@dataclass(eq=False)
class LedReplica:
    """A replica of t-0. It is its own state machine."""

    role: Leader | None
    key: tuple[str, int] = KEY
    name: str = "t-0"

    @property
    def machine(self) -> LedReplica:
        return self

    @property
    def leader(self) -> Leader:
        if self.role is None:
            raise NotLeaderError("t-0 is not led by this broker")
        return self.role


class Fixture:
    """The leader of t-0, and the fetches of its followers."""

    def __init__(self, decision: PartitionDecision = DECISION) -> None:
        self.leader = Leader("t-0", 1, ReplicationSettings(min_insync_replicas=2), 0)
        self.leader.decided(decision, 0, 0)
        self.sessions = FetchSessions()
        self.woken: list[set[int]] = []
        self.checks = LeadershipChecks(1, self.sessions, lambda each: self.woken.append(set(each)))
        self.replica = LedReplica(self.leader)
        self.of = {follower: self.session(follower) for follower in (2, 3, 4)}

    def session(self, follower: int, epoch: int = 5) -> FollowerSession:
        """Take the first request of a session, which the follower may have sent at any time before."""
        session = self.sessions.of_request(0, 0, follower)
        session.take({KEY: FollowerFetch(b"", 0, epoch, None, 0, 1)}, [])
        self.checks.asked(session)
        return session

    def check(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.checks.check(cast("HostedReplica", self.replica)))

    def fetches(self, *sessions: FollowerSession) -> None:
        """Answer the followers, and take their next requests."""
        for session in sessions:
            self.checks.answered(session)
            self.checks.asked(session)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Callable[[Fixture], Coroutine[Any, Any, None]], fixture: Callable[[], Fixture] = Fixture) -> None:
    async def begin() -> None:
        await test(fixture())

    asyncio.run(begin())


def test_all_replicas_in_sync_must_fetch_after_an_answer() -> None:
    async def test(cluster: Fixture) -> None:
        check = cluster.check()
        await turns()
        assert cluster.woken == [{1, 2, 3}]
        cluster.fetches(cluster.of[2])
        cluster.checks.asked(cluster.of[3])  # it was sent before the check began
        await turns()
        assert not check.done()
        cluster.fetches(cluster.of[3])
        await check

    run(test)


def test_a_follower_of_another_epoch_or_a_new_session_does_not_count_yet() -> None:
    async def test(cluster: Fixture) -> None:
        check = cluster.check()
        await turns()
        cluster.fetches(cluster.of[2])
        cluster.of[3].take({KEY: FollowerFetch(b"", 0, 6, None, 0, 1)}, [])
        cluster.fetches(cluster.of[3])
        again = cluster.session(3)
        await turns()
        assert not check.done()
        cluster.fetches(again)
        await check

    run(test)


def test_a_follower_that_has_forgotten_the_partition_does_not_count() -> None:
    """It leads the partition now."""

    async def test(cluster: Fixture) -> None:
        check = cluster.check()
        await turns()
        cluster.of[3].take({}, [KEY])
        cluster.fetches(cluster.of[2], cluster.of[3])
        await turns()
        assert not check.done()
        cluster.replica.role = None
        cluster.checks.look_again()
        with pytest.raises(NotLeaderError):
            await check

    run(test)


def test_calls_during_a_check_share_the_next_one() -> None:
    async def test(cluster: Fixture) -> None:
        first = cluster.check()
        await turns()
        cluster.fetches(cluster.of[2])
        later = [cluster.check() for _ in range(3)]
        await turns()
        cluster.fetches(cluster.of[3])
        await first
        await turns()
        assert not any(each.done() for each in later)
        assert len(cluster.woken) == 2
        cluster.fetches(cluster.of[2], cluster.of[3])
        await asyncio.gather(*later)
        assert len(cluster.woken) == 2

    run(test)


def test_a_replica_that_leaves_the_isr_is_not_waited_for() -> None:
    async def test(cluster: Fixture) -> None:
        check = cluster.check()
        await turns()
        cluster.fetches(cluster.of[2])
        await turns()
        assert not check.done()
        cluster.leader.decided(replace(DECISION, partition_epoch=8, isr=(1, 2)), 0, 0)
        cluster.checks.look_again()
        await check

    run(test)


def test_a_cancelled_caller_disturbs_no_other() -> None:
    async def test(cluster: Fixture) -> None:
        gone, stays = cluster.check(), cluster.check()
        await turns()
        gone.cancel()
        await turns()
        cluster.fetches(cluster.of[2], cluster.of[3])
        await stays
        assert gone.cancelled()

    run(test)


def test_a_leader_alone_in_sync_asks_nobody() -> None:
    async def test(cluster: Fixture) -> None:
        await cluster.check()
        assert not cluster.woken

    run(test, lambda: Fixture(replace(DECISION, isr=(1,))))


def test_checks_end_when_the_broker_stops() -> None:
    async def test(cluster: Fixture) -> None:
        first = cluster.check()
        await turns()
        second = cluster.check()
        await turns()
        cluster.checks.close()
        for check in (first, second):
            with pytest.raises(NotLeaderError):
                await check

    run(test)
