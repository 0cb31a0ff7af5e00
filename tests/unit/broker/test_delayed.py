from __future__ import annotations

import asyncio

import pytest

from millrace_broker.delayed import Arrivals

ORDERS = ("orders", 0)


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_waiter_is_woken_when_enough_arrived_in_its_partitions() -> None:
    async def work() -> None:
        arrivals = Arrivals()
        with arrivals.watch([ORDERS, ("orders", 1)]) as waiter:
            waiting = asyncio.create_task(waiter.wait(wanted_bytes=10, timeout_s=60))
            await _settle()
            arrivals.arrived(ORDERS, 6)
            arrivals.arrived(("other", 0), 100)
            await _settle()
            assert not waiting.done()
            arrivals.arrived(("orders", 1), 4)
            assert await waiting

    asyncio.run(work())


def test_what_arrived_before_the_wait_but_after_the_watch_counts() -> None:
    async def work() -> None:
        arrivals = Arrivals()
        with arrivals.watch([ORDERS]) as waiter:
            arrivals.arrived(ORDERS, 1)
            assert await waiter.wait(wanted_bytes=1, timeout_s=60)

    asyncio.run(work())


def test_a_wait_ends_at_its_time() -> None:
    async def work() -> None:
        with Arrivals().watch([ORDERS]) as waiter:
            assert not await waiter.wait(wanted_bytes=1, timeout_s=0.01)

    asyncio.run(work())


def test_a_changed_partition_wakes_whatever_was_wanted() -> None:
    async def work() -> None:
        arrivals = Arrivals()
        with arrivals.watch([ORDERS]) as waiter:
            arrivals.changed(ORDERS)
            assert await waiter.wait(wanted_bytes=2**30, timeout_s=60)

    asyncio.run(work())


def test_nobody_waits_once_it_is_closed() -> None:
    async def work() -> None:
        arrivals = Arrivals()
        with arrivals.watch([ORDERS]) as before:
            arrivals.close()
            assert await before.wait(wanted_bytes=1, timeout_s=60)
        with arrivals.watch([ORDERS]) as after:
            assert await after.wait(wanted_bytes=1, timeout_s=60)

    asyncio.run(work())


def test_waiters_are_forgotten_however_they_end() -> None:
    async def work() -> None:
        arrivals = Arrivals()

        async def wait() -> None:
            with arrivals.watch([ORDERS, ("orders", 1)]) as waiter:
                await waiter.wait(wanted_bytes=1, timeout_s=60)

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await _settle()
        statistics = arrivals.statistics()
        assert (statistics.waiters, statistics.partitions) == (3, 2)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert arrivals.statistics().waiters == 2
        arrivals.arrived(ORDERS, 1)
        await asyncio.gather(*tasks[1:])
        assert arrivals.statistics().partitions == 0

    asyncio.run(work())
