from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace_broker.quotas import ByteBudget, Lease, SizeEstimate

from ....integration.waiting import STALL_S


def _run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_request_for_more_bytes_than_are_left_waits() -> None:
    async def work() -> None:
        budget = ByteBudget(10)
        assert await budget.take(7) == 7
        waiting = asyncio.create_task(budget.take(5))
        late = asyncio.create_task(budget.take(1))
        await _settle()
        assert not waiting.done()
        assert not late.done(), "first come, first served"
        budget.give_back(7)
        assert (await waiting, await late) == (5, 1)
        assert (budget.in_use_bytes, budget.delayed) == (6, 2)

    _run(work())


def test_more_than_the_whole_budget_is_had_alone() -> None:
    async def work() -> None:
        budget = ByteBudget(10)
        first = await budget.take(1)
        big = asyncio.create_task(budget.take(100))
        await _settle()
        assert not big.done()
        budget.give_back(first)
        assert await big == 10

    _run(work())


def test_a_cancelled_wait_takes_nothing_and_lets_those_behind_pass() -> None:
    async def work() -> None:
        budget = ByteBudget(10)
        await budget.take(6)
        big, small = asyncio.create_task(budget.take(9)), asyncio.create_task(budget.take(2))
        await _settle()
        big.cancel()
        assert await small == 2
        assert budget.in_use_bytes == 8

    _run(work())


def test_a_wait_cancelled_in_the_moment_of_its_grant_gives_back() -> None:
    async def work() -> None:
        budget = ByteBudget(10)
        await budget.take(10)
        waiting = asyncio.create_task(budget.take(10))
        await _settle()
        budget.give_back(10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert budget.in_use_bytes == 0

    _run(work())


def test_a_lease_settles_on_what_was_needed_and_ends_at_nothing() -> None:
    async def work() -> None:
        budget = ByteBudget(10)
        lease = Lease(budget)
        await lease.take(8)
        lease.settle(3)
        assert budget.in_use_bytes == 3
        lease.settle(15)  # a request that is already in memory cannot wait
        assert budget.in_use_bytes == 15
        lease.release()
        lease.release()
        assert budget.in_use_bytes == 0

    _run(work())


def test_an_estimate_follows_large_bodies_at_once_and_small_ones_slowly() -> None:
    estimate = SizeEstimate(800)
    estimate.saw(8000)
    assert estimate.bytes == 8000
    estimate.saw(10)
    assert estimate.bytes == 7000
    for _ in range(1000):
        estimate.saw(10)
    assert 1 <= estimate.bytes <= 10


@given(st.lists(st.tuples(st.integers(0, 15), st.booleans()), max_size=30))
def test_everything_taken_is_given_back_in_the_end(takers: list[tuple[int, bool]]) -> None:
    async def taker(budget: ByteBudget, size: int) -> None:
        lease = Lease(budget)
        try:
            await lease.take(size)
            assert budget.in_use_bytes <= 10
            await asyncio.sleep(0)
        finally:
            lease.release()

    async def work() -> None:
        budget = ByteBudget(10)
        tasks = []
        for size, is_cancelled in takers:
            tasks.append(asyncio.create_task(taker(budget, size)))
            await asyncio.sleep(0)
            if is_cancelled:
                tasks[-1].cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), STALL_S)
        assert budget.in_use_bytes == 0

    _run(work())
