"""Tests of arrivals.

An arrival wakes the fetches that wait for records. Cancelled fetches are forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace_broker.purgatory import Arrivals, Timer
from millrace_broker.runtime.clock import SystemClock

from ....integration.waiting import AN_HOUR_MS

AN_HOUR_S = AN_HOUR_MS / 1000

ORDERS = ("orders", 0)


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def running(test: Callable[[Arrivals], Awaitable[None]]) -> Callable[[], None]:
    """Run the test in an event loop, with arrivals on a timer of that loop."""

    async def work() -> None:
        timer = Timer(SystemClock())
        timer.start(asyncio.get_running_loop())
        await test(Arrivals("test", timer))
        assert len(timer) == 0
        timer.close()

    return lambda: asyncio.run(work())


@running
async def test_a_waiter_is_woken_when_enough_arrived_in_its_partitions(arrivals: Arrivals) -> None:
    watch = arrivals.watch([ORDERS, ("orders", 1)])
    waiting = asyncio.create_task(watch.wait(wanted_bytes=10, timeout_s=AN_HOUR_S))
    await _settle()
    arrivals.arrived(ORDERS, 6)
    arrivals.arrived(("other", 0), 100)
    await _settle()
    assert not waiting.done()
    arrivals.arrived(("orders", 1), 4)
    assert await waiting


@running
async def test_an_arrival_between_watch_and_wait_counts(arrivals: Arrivals) -> None:
    arrivals.arrived(ORDERS, 100)
    watch = arrivals.watch([ORDERS])
    assert not watch.has(1)
    arrivals.arrived(ORDERS, 1)
    assert await watch.wait(wanted_bytes=1, timeout_s=AN_HOUR_S)


@running
async def test_a_wait_ends_at_its_time(arrivals: Arrivals) -> None:
    assert not await arrivals.watch([ORDERS]).wait(wanted_bytes=1, timeout_s=0.01)
    assert arrivals.statistics().expired == 1


@running
async def test_a_changed_partition_wakes_every_fetch_of_it(arrivals: Arrivals) -> None:
    arrivals.arrived(ORDERS, 100)
    watch = arrivals.watch([ORDERS])
    waiting = asyncio.create_task(arrivals.watch([ORDERS]).wait(wanted_bytes=2**30, timeout_s=AN_HOUR_S))
    await _settle()
    arrivals.changed(ORDERS)
    assert await waiting
    assert await watch.wait(wanted_bytes=2**30, timeout_s=AN_HOUR_S)


@running
async def test_a_wake_ends_the_waits_for_its_partition_whatever_they_want(arrivals: Arrivals) -> None:
    waiting = asyncio.create_task(arrivals.watch([ORDERS]).wait(wanted_bytes=2**30, timeout_s=AN_HOUR_S))
    await _settle()
    arrivals.wake(("other", 0))
    await _settle()
    assert not waiting.done()
    arrivals.wake(ORDERS)
    assert await waiting


@running
async def test_no_fetch_waits_after_the_close(arrivals: Arrivals) -> None:
    before = asyncio.create_task(arrivals.watch([ORDERS]).wait(wanted_bytes=1, timeout_s=AN_HOUR_S))
    await _settle()
    arrivals.close()
    assert not await before
    assert not await arrivals.watch([ORDERS]).wait(wanted_bytes=1, timeout_s=AN_HOUR_S)


@running
async def test_waiters_are_forgotten_however_they_end(arrivals: Arrivals) -> None:
    keys = [ORDERS, ("orders", 1)]
    tasks = [asyncio.create_task(arrivals.watch(keys).wait(wanted_bytes=1, timeout_s=AN_HOUR_S)) for _ in range(3)]
    await _settle()
    statistics = arrivals.statistics()
    assert (statistics.delayed, statistics.watched) == (3, 6)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert arrivals.statistics().delayed == 2
    arrivals.arrived(ORDERS, 1)
    await asyncio.gather(*tasks[1:])
    assert arrivals.statistics().watched == 0


@pytest.mark.parametrize(("arrived_bytes", "has_enough"), [(9, False), (10, True), (11, True)])
@pytest.mark.parametrize("before_bytes", [None, 0, 5])
def test_a_watch_has_what_arrived_since_it_was_taken(
    before_bytes: int | None, arrived_bytes: int, has_enough: bool
) -> None:
    @running
    async def check(arrivals: Arrivals) -> None:
        if before_bytes is not None:
            arrivals.arrived(ORDERS, before_bytes)
        watch = arrivals.watch([ORDERS, ("orders", 1)])
        arrivals.arrived(ORDERS, arrived_bytes)
        assert watch.has(10) is has_enough

    check()
