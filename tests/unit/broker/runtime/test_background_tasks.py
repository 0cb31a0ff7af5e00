"""Tests of tasks that run in the background."""

from __future__ import annotations

import asyncio

from millrace_broker.runtime import cancel_and_wait


def test_a_cancelled_task_finishes_its_clean_up_before_the_wait_ends() -> None:
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)
            raise ValueError("the error of a task that ends is dropped")

    async def run() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await cancel_and_wait(task)
        assert task.done()

    asyncio.run(run())
    assert cleaned


def test_a_task_that_was_not_started_or_has_ended_needs_no_wait() -> None:
    async def run() -> None:
        await cancel_and_wait(None)
        task = asyncio.create_task(asyncio.sleep(0))
        await task
        await cancel_and_wait(task)

    asyncio.run(run())
