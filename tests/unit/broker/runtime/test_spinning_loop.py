"""Tests of an event loop that polls before it sleeps.

The loop does everything that an ordinary event loop does, in time.
"""

import asyncio
import threading
import time

import pytest

from millrace_broker.runtime.spinning_loop import spinning_loop

from ....integration.waiting import STALL_S


@pytest.fixture
def run():
    with asyncio.Runner(loop_factory=spinning_loop) as runner:
        yield lambda awaitable: runner.run(asyncio.wait_for(awaitable, STALL_S))


async def answer(reader, writer):
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


def test_requests_that_follow_each_other_at_once_or_late_are_answered(run):
    async def ask():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            for number in range(200):
                writer.write(b"%5d" % number)
                assert await reader.readexactly(5) == b"%5d" % number
                if number % 50 == 0:
                    await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()

    run(ask())


def test_timers_end_neither_early_nor_never(run):
    async def measure():
        for seconds in (0.0, 0.0001, 0.0002, 0.001, 0.02):
            started = time.monotonic()
            await asyncio.sleep(seconds)
            assert time.monotonic() - started >= seconds * 0.9

    run(measure())


def test_other_threads_wake_the_event_loop(run):
    async def wait():
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        for pause_s in (0.0, 0.0001, 0.01):
            woken.clear()
            threading.Timer(pause_s, loop.call_soon_threadsafe, (woken.set,)).start()
            await woken.wait()

    run(wait())


def test_an_idle_loop_sleeps(run):
    async def idle():
        before = time.thread_time()
        await asyncio.sleep(1.0)
        return time.thread_time() - before

    async def busy():
        before, end = time.thread_time(), asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0)
        return time.thread_time() - before

    assert run(idle()) < run(busy()) / 2
