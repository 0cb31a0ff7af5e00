"""Tests of a broker's threads and of its background work."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from millrace.errors import StorageError
from millrace_broker.runtime import Executors
from millrace_broker.runtime.turns import ITEMS

from ....integration.waiting import STALL_S


@contextmanager
def made() -> Iterator[Executors]:
    executors = Executors(2, lambda: 0.0)
    try:
        yield executors
    finally:
        executors.close()


def test_changes_of_metadata_are_made_one_at_a_time_in_the_order_of_the_calls() -> None:
    async def scenario() -> None:
        done: list[int] = []
        with made() as executors:
            await asyncio.gather(*(executors.administer(done.append, number) for number in range(50)))
        assert done == list(range(50))

    asyncio.run(scenario())


def test_work_continues_when_its_caller_is_cancelled() -> None:
    async def scenario() -> None:
        go_on, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            await go_on.wait()
            ended.set()

        with made() as executors:
            caller = asyncio.create_task(executors.to_the_end(work()))
            await asyncio.sleep(0)
            caller.cancel()
            await asyncio.wait([caller])
            assert caller.cancelled()
            go_on.set()
            await executors.finish_tasks()
        assert ended.is_set()

    asyncio.run(scenario())


def test_several_works_wait_together_and_work_that_never_waits_needs_no_task() -> None:
    async def scenario() -> None:
        go_on, done, tasks = asyncio.Event(), list[int](), list[object]()

        async def work(number: int, *, waits: bool) -> int:
            tasks.append(asyncio.current_task())
            if waits:
                await go_on.wait()
            done.append(number)
            return number

        with made() as executors:
            before = len(asyncio.all_tasks())
            assert await executors.all_to_the_end([work(0, waits=False), work(1, waits=False)]) == [0, 1]
            assert done == [0, 1]
            assert len(asyncio.all_tasks()) == before
            works = [work(2, waits=True), work(3, waits=False), work(4, waits=True)]
            caller = asyncio.create_task(executors.all_to_the_end(works))
            await asyncio.sleep(0)
            assert done == [0, 1, 3]
            caller.cancel()
            await asyncio.wait([caller])
            assert caller.cancelled()
            go_on.set()
            await executors.finish_tasks()
            assert done == [0, 1, 3, 2, 4]
            assert len(set(tasks)) == 5
            go_on.clear()
            works = [work(5, waits=True), work(6, waits=False), work(7, waits=True)]
            caller = asyncio.create_task(executors.all_to_the_end(works))
            await asyncio.sleep(0)
            go_on.set()
            assert await caller == [5, 6, 7]

    asyncio.run(scenario())


def test_many_works_begin_in_turns_with_other_work_and_all_begin_although_their_caller_is_cancelled() -> None:
    async def scenario() -> None:
        begun: list[int] = []

        async def work(number: int) -> int:
            begun.append(number)
            return number

        count = 3 * ITEMS
        with made() as executors:
            caller = asyncio.create_task(executors.all_to_the_end([work(number) for number in range(count)]))
            while not begun:
                await asyncio.sleep(0)
            assert len(begun) < count
            assert await caller == begun == list(range(count))
            begun.clear()
            caller = asyncio.create_task(executors.all_to_the_end([work(number) for number in range(count)]))
            while not begun:
                await asyncio.sleep(0)
            assert len(begun) < count
            caller.cancel()
            await asyncio.wait([caller])
            assert caller.cancelled()
            await executors.finish_tasks()
            assert begun == list(range(count))

    asyncio.run(scenario())


def test_a_thread_has_something_called_on_the_event_loop() -> None:
    async def scenario() -> None:
        called: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def call() -> None:
            called.set_result(threading.get_ident())

        with made() as executors:
            await executors.run_io(executors.on_loop, call)
            assert await asyncio.wait_for(called, STALL_S) == threading.get_ident()

    asyncio.run(scenario())


def test_other_threads_finish_what_was_given_to_those_before() -> None:
    async def scenario() -> None:
        gate = threading.Event()
        with made() as executors:
            before = asyncio.create_task(executors.run_io(gate.wait, STALL_S))
            await asyncio.sleep(0)
            executors.resize_io(1)
            assert await executors.run_io(lambda: 7) == 7
            gate.set()
            assert await before

    asyncio.run(scenario())


def test_no_other_pool_waits_for_functions_that_decode() -> None:
    async def scenario() -> None:
        gate = threading.Event()
        with made() as executors:
            decoding = [asyncio.create_task(executors.run_decoding(gate.wait, STALL_S)) for _ in range(8)]
            await asyncio.sleep(0)
            assert await executors.run_io(lambda: 7) == 7
            assert await executors.administer(lambda: 8) == 8
            assert not any(each.done() for each in decoding)
            gate.set()
            assert all(await asyncio.gather(*decoding))

    asyncio.run(scenario())


@pytest.mark.parametrize(("error", "reported"), [(StorageError("the disk is full"), 0), (ValueError("a bug"), 1)])
def test_an_unexpected_error_of_work_without_a_caller_is_reported(error: Exception, reported: int) -> None:
    async def scenario() -> None:
        may_end = asyncio.Event()
        found: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context["exception"]))

        async def work() -> None:
            await may_end.wait()
            raise error

        with made() as executors:
            call = asyncio.create_task(executors.to_the_end(work()))
            await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            may_end.set()
            await executors.finish_tasks()
        gc.collect()  # a task reports an error that nobody has taken
        assert found == [error] * reported

    asyncio.run(scenario())
