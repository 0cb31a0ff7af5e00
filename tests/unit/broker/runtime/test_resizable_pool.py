"""Tests of pools whose number of threads changes while functions run."""

from __future__ import annotations

import asyncio
import threading

from millrace_broker.runtime import ResizableThreadPool

from ....integration.waiting import pause


def test_fewer_threads_run_fewer_functions_at_once_and_interrupt_none() -> None:
    async def run() -> None:
        pool = ResizableThreadPool(2, "pool")
        gate, started = threading.Event(), threading.Barrier(3)

        def wait() -> bool:
            started.wait()
            return gate.wait()

        running = [pool.run(wait) for _ in range(2)]
        await asyncio.to_thread(started.wait)  # both threads have a function
        pool.resize(1)
        names = [await pool.run(lambda: threading.current_thread().name) for _ in range(4)]
        assert len(set(names)) == pool.threads == 1
        gate.set()
        assert await asyncio.gather(*running) == [True, True]
        pool.close()

    asyncio.run(run())


def test_closing_waits_for_functions_of_replaced_threads() -> None:
    async def run() -> None:
        pool = ResizableThreadPool(1, "pool-closed")
        running, closing, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            running.set()
            closing.wait()
            pause(0.02)  # a close that does not wait ends before
            ended.set()

        waiting = pool.run(work)
        await asyncio.to_thread(running.wait)
        pool.resize(2)
        closing.set()
        await asyncio.to_thread(pool.close)
        assert ended.is_set()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("pool-closed")]
        await waiting

    asyncio.run(run())


def test_the_same_number_of_threads_changes_nothing() -> None:
    async def run() -> None:
        pool = ResizableThreadPool(1, "pool")
        before = await pool.run(threading.get_ident)
        pool.resize(1)
        assert await pool.run(threading.get_ident) == before
        pool.close()

    asyncio.run(run())
