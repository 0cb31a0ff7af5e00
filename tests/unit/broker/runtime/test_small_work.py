"""Tests of small work in the event loop and of eager work.

Small work runs in the loop unless the loop was blocked lately. Eager work behaves as a task does.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from typing import Any

import pytest

from millrace_broker.runtime.small_work import (
    SLOW_FOR_S,
    SLOW_S,
    SMALL_BYTES,
    WATCHED_S,
    SmallWork,
    begun,
    first_step,
    rest,
)

from ....integration.waiting import STALL_S


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> float:
        self.now_s += seconds
        return self.now_s


def test_only_what_is_small_is_done_at_once() -> None:
    work = SmallWork(_Clock())
    assert work.includes(SMALL_BYTES)
    assert not work.includes(SMALL_BYTES + 1)


def test_after_a_slow_one_nothing_is_done_at_once_for_a_while() -> None:
    clock, waits = _Clock(), itertools.count()
    work = SmallWork(clock, waits=lambda: next(waits))
    assert work.do(clock.pass_by, SLOW_S / 2) == clock.now_s
    assert work.includes(1)
    work.do(clock.pass_by, SLOW_S * 2)
    assert work.includes(1), "it may have been preempted"
    work.do(clock.pass_by, SLOW_S * 2)
    assert not work.includes(1)
    clock.now_s += SLOW_FOR_S
    assert work.includes(1)


def test_waits_are_counted_only_for_a_while_after_slow_work() -> None:
    clock, counts = _Clock(), itertools.count()
    work = SmallWork(clock, waits=lambda: next(counts))
    work.do(clock.pass_by, SLOW_S / 2)
    work.do(clock.pass_by, SLOW_S * 2)
    assert next(counts) == 0
    clock.now_s += WATCHED_S
    work.do(clock.pass_by, SLOW_S / 2)
    assert next(counts) == 1
    work.do(clock.pass_by, SLOW_S * 2)
    work.do(clock.pass_by, SLOW_S / 2)
    assert next(counts) == 3


def test_work_that_was_preempted_and_did_not_wait_is_not_slow() -> None:
    clock = _Clock()
    work = SmallWork(clock, waits=lambda: 7)
    for _ in range(3):
        work.do(clock.pass_by, SLOW_S * 2)
        assert work.includes(1)


def test_work_that_waits_for_long_is_slow_by_the_count_of_the_kernel() -> None:
    work = SmallWork(time.monotonic)
    for _ in range(2):
        work.do(threading.Event().wait, SLOW_S * 2)
    assert not work.includes(1)


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


def test_a_failure_of_an_awaited_future_can_be_caught() -> None:
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


def test_the_rest_continues_when_the_caller_is_cancelled_and_can_be_cancelled_itself() -> None:
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


async def _impatient(seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()
    except TimeoutError:
        return "too late"
    return "in time"


async def _divided() -> list[int]:
    async def part(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(part(number)) for number in range(3)]
    return [each.result() for each in parts]


def test_code_that_needs_a_current_task_works_in_the_first_step() -> None:
    async def run() -> None:
        started: list[asyncio.Task[Any]] = []
        assert await begun(_impatient(0.01), _starting(started)) == "too late"
        assert await begun(_divided(), _starting(started)) == [0, 1, 2]
        assert len(started) == 2
        async with asyncio.timeout(STALL_S):  # the caller's own task is unchanged
            assert await begun(_impatient(0.01), _starting(started)) == "too late"

    asyncio.run(run())


def test_work_is_begun_where_there_is_no_task_at_all() -> None:
    # A protocol's callback has no task. The stand-in is the current task meanwhile, and there is none afterwards.
    outcomes: list[Any] = []

    def callback(done: asyncio.Event) -> None:
        assert asyncio.current_task() is None
        work = _impatient(0.01)
        stand_in = first_step(work)
        assert asyncio.current_task() is None
        task = asyncio.get_running_loop().create_task(rest(stand_in))

        def note(task: asyncio.Task[str]) -> None:
            outcomes.append(task.result())
            done.set()

        task.add_done_callback(note)

    async def run() -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().call_soon(callback, done)
        await done.wait()

    asyncio.run(run())
    assert outcomes == ["too late"]


def test_a_stand_in_answers_for_the_task_once_there_is_one() -> None:
    async def run() -> None:
        stand_in = first_step(asyncio.Event().wait())
        task = asyncio.create_task(rest(stand_in))
        await asyncio.sleep(0)
        assert (stand_in.cancelling(), stand_in.uncancel()) == (0, 0)
        assert stand_in.cancel()
        assert (stand_in.cancelling(), stand_in.uncancel()) == (1, 0)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_work_that_is_cancelled_before_its_task_begins_is_told_so() -> None:
    told: list[int] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append(asyncio.current_task().cancelling())  # type: ignore[union-attr]
            raise

    async def run(*, is_withdrawn: bool) -> None:
        stand_in = first_step(work())
        task = asyncio.create_task(rest(stand_in))
        assert stand_in.cancel()
        assert stand_in.cancelling() == 1
        if is_withdrawn:
            assert stand_in.uncancel() == 0
            await asyncio.sleep(0)
            assert not told
            stand_in.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for is_withdrawn in (False, True):
        told.clear()
        asyncio.run(run(is_withdrawn=is_withdrawn))
        assert told == [1]


def test_a_timeout_that_has_passed_before_the_task_begins_ends_the_work() -> None:
    async def run() -> None:
        started: list[asyncio.Task[Any]] = []
        assert await begun(_impatient(0), _starting(started)) == "too late"

    asyncio.run(run())
