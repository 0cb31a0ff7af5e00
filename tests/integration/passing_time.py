"""Time that passes for a broker when a test says so.

A test of a long timeout lets the time pass at once. A busy machine then cannot reach the timeout before the test does.
"""

from __future__ import annotations

import asyncio
import time

from millrace_broker.groups.classic_group import ClassicGroup
from millrace_broker.groups.effects import TimerKey, TimerKind
from millrace_broker.runtime import monotonic_ms
from millrace_broker.testing import EmbeddedBroker

from .waiting import STALL_S, eventually


def pass_time(broker: EmbeddedBroker, seconds: float) -> None:
    """Move the clock of a broker's timers and coordinators forward, and run the timers that are then due."""
    coordinator = broker.server.broker.transactions
    clock, timer = coordinator._clock, coordinator._timer
    ahead_s = clock.monotonic() - time.monotonic() + seconds

    async def move() -> None:
        vars(clock)["monotonic"] = lambda: time.monotonic() + ahead_s
        vars(clock)["now_ms"] = lambda: time.time_ns() // 1_000_000 + int(ahead_s * 1000)
        timer.turn()

    asyncio.run_coroutine_threadsafe(move(), broker._loop).result(STALL_S)


def expire_member(broker: EmbeddedBroker, group_id: str, client_id: str) -> None:
    """End the session of a classic group's member that sends no more heartbeats."""
    coordinator = broker.server.broker.groups

    async def is_removed() -> bool:
        shard, entry = coordinator.shard_of(group_id), coordinator.find(group_id)
        assert entry is not None
        assert isinstance(entry.group, ClassicGroup)
        found = [each for each in entry.group.members if each.client_id == client_id]
        for member in found:  # it stays while a call of it is open
            member.deadline_ms = 0
            with shard._event(entry):
                entry.group.timer_fired(TimerKey(TimerKind.SESSION, member.member_id), monotonic_ms(shard._clock))
        return not found

    eventually(
        lambda: asyncio.run_coroutine_threadsafe(is_removed(), broker._loop).result(STALL_S), "the end of the session"
    )
