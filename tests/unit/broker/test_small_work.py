"""Small work is done in the event loop, unless the loop was kept waiting lately; eager work behaves as a task would."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millrace_broker.small_work import SLOW_FOR_S, SLOW_S, SMALL_BYTES, SmallWork, begun


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_only_what_is_small_is_done_at_once() -> None:
    work = SmallWork(_Clock())
    assert work.includes(SMALL_BYTES)
    assert not work.includes(SMALL_BYTES + 1)


def test_after_a_slow_one_nothing_is_done_at_once_for_a_while() -> None:
    clock = _Clock()
    work = SmallWork(clock)
    with work.watched():
        clock.now_s += SLOW_S / 2
    assert work.includes(1)
    with work.watched():
        clock.now_s += SLOW_S * 2
    assert not work.includes(1)
    clock.now_s += SLOW_FOR_S
    assert work.includes(1)


def _starting(started: list[asyncio.Task[Any]]) -> Any:
    def start(work: Any) -> Any:
        started.append(asyncio.create_task(work))
        return started[-1]

    return start


async def _value(steps: int, outcome: Exception | None = None) -> str:
    for _ in range(steps):
        await asyncio.sleep(0)
    if outcome is not None:
        raise outcome
    return "done"


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_task_is_made_only_for_what_must_wait(steps: int) -> None:
    async def run() -> None:
        started: list[asyncio.Task[Any]] = []
        assert await begun(_value(steps), _starting(started)) == "done"
        assert len(started) == min(steps, 1)
        with pytest.raises(ValueError, match="no"):
            await begun(_value(steps, ValueError("no")), _starting(started))

    asyncio.run(run())


def test_what_it_waits_for_may_fail_and_be_dealt_with() -> None:
    async def work(waited: asyncio.Future[None]) -> str:
        try:
            await waited
        except ValueError as error:
            await asyncio.sleep(0)
            return f"caught {error}"
        return "not caught"

    async def run() -> str:
        waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(waited.set_exception, ValueError("it"))
        return await begun(work(waited), _starting([]))

    assert asyncio.run(run()) == "caught it"


def test_the_rest_goes_on_when_the_caller_is_cancelled_and_can_be_cancelled_itself() -> None:
    async def run() -> None:
        started: list[asyncio.Task[Any]] = []
        caller = asyncio.create_task(begun(_value(10), _starting(started)))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await started[0] == "done"

        caller = asyncio.create_task(begun(_value(10), _starting(started)))
        await asyncio.sleep(0)
        started[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert started[1].cancelled()

    asyncio.run(run())
