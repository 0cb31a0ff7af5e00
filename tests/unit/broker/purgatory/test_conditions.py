"""Tests of calls that wait for a condition.

A call ends when the condition holds, when its time is up or when the broker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from millrace_broker.purgatory import Timer
from millrace_broker.purgatory.conditions import Conditions
from millrace_broker.runtime.clock import SystemClock


def running(test: Callable[[Conditions[str]], Awaitable[None]]) -> Callable[[], None]:
    """Run the test in an event loop, with conditions on a timer of that loop. No call waits at its end."""

    async def work() -> None:
        timer = Timer(SystemClock())
        timer.start(asyncio.get_running_loop())
        conditions: Conditions[str] = Conditions("test", timer)
        await test(conditions)
        assert len(timer) == 0
        assert conditions.statistics().watched == 0
        timer.close()

    return lambda: asyncio.run(work())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@running
async def test_a_condition_that_holds_is_not_waited_for(conditions: Conditions[str]) -> None:
    assert await conditions.until("a", lambda: True, 0)


@running
async def test_a_call_continues_when_its_condition_holds_at_a_check_of_its_key(conditions: Conditions[str]) -> None:
    state: set[str] = set()
    waiting = asyncio.create_task(conditions.until("a", lambda: "done" in state, 600_000))
    await settle()
    conditions.check("a")
    await settle()
    assert not waiting.done()
    state.add("done")
    conditions.check("b")
    await settle()
    assert not waiting.done(), "another key was checked"
    conditions.check("a")
    assert await waiting


@running
async def test_a_call_ends_at_its_time_with_what_holds_then(conditions: Conditions[str]) -> None:
    assert not await conditions.until("a", lambda: False, 5)
    answers = iter([False, False, True])
    assert await conditions.until("a", lambda: next(answers, True), 5)


@running
async def test_a_call_that_is_cancelled_leaves_nothing(conditions: Conditions[str]) -> None:
    waiting = asyncio.create_task(conditions.until("a", lambda: False, 600_000))
    await settle()
    waiting.cancel()
    await settle()
    assert waiting.cancelled()
    conditions.check("a")


@running
async def test_no_call_waits_for_a_stopping_broker(conditions: Conditions[str]) -> None:
    waiting = asyncio.create_task(conditions.until("a", lambda: False, 600_000))
    await settle()
    conditions.close()
    assert not await waiting
    assert not await conditions.until("a", lambda: False, 600_000)
