"""Tests of the timer.

The event loop runs a task soon after its deadline and never before.
"""

import asyncio
import logging

from millrace_broker.purgatory import Timer
from millrace_broker.runtime.clock import SystemClock

from ....integration.waiting import STALL_S


class ManualClock:
    def __init__(self):
        self.seconds = 5.0

    def now_ms(self):
        return int(self.seconds * 1000)

    def monotonic(self):
        return self.seconds


def test_expired_tasks_run_in_order():
    clock, ran = ManualClock(), []
    timer = Timer(clock)
    for delay in (30, 10, 20):
        timer.schedule(delay, lambda delay=delay: ran.append(delay))
    timer.schedule(15, lambda: ran.append("never")).cancel()
    assert (timer.turn(), len(timer)) == (0, 3)
    clock.seconds += 0.02
    assert (timer.turn(), ran) == (2, [10, 20])
    clock.seconds += 1
    assert (timer.turn(), ran, len(timer)) == (1, [10, 20, 30], 0)


def test_an_action_may_start_and_cancel_timers():
    clock, ran = ManualClock(), []
    timer = Timer(clock)
    last = timer.schedule(10, lambda: ran.append("last"))

    def first():
        ran.append("first")
        last.cancel()
        timer.schedule(0, lambda: ran.append("after"))

    timer.schedule(5, first)
    # Both tasks expire in the same turn of the loop.
    clock.seconds += 0.01
    timer.turn()
    assert ran == ["first"]
    clock.seconds += 0.001
    timer.turn()
    assert ran == ["first", "after"]


def test_a_failing_task_is_logged_and_the_others_run(caplog):
    clock, ran = ManualClock(), []
    timer = Timer(clock)
    timer.schedule(1, lambda: 1 / 0)
    timer.schedule(2, lambda: ran.append("ran"))
    clock.seconds += 1
    with caplog.at_level(logging.ERROR):
        assert timer.turn() == 2
    assert ran == ["ran"]
    assert "ZeroDivisionError" in caplog.text


def test_a_running_event_loop_runs_tasks_after_their_deadlines():
    async def run():
        loop, clock = asyncio.get_running_loop(), SystemClock()
        timer, done, late = Timer(clock), asyncio.Event(), []
        for delay in (40, 5, 300_000, 20):
            due = clock.monotonic() + delay / 1000
            timer.schedule(delay, lambda due=due: late.append(clock.monotonic() - due))
        timer.start(loop)
        timer.schedule(60, done.set)
        await asyncio.wait_for(done.wait(), STALL_S)
        assert len(late) == 3
        # The wheel's resolution is a millisecond.
        assert min(late) > -0.0011
        assert len(timer) == 1
        timer.close()
        timer.schedule(0, done.clear)
        await asyncio.sleep(0)
        assert done.is_set()

    asyncio.run(run())
