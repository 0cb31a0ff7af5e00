from __future__ import annotations

import asyncio
import threading

import pytest

from millrace.errors import ThrottledError
from millrace_broker.log.tiered.remote_reads import RemoteReaders


def test_too_many_reads_are_refused_at_once() -> None:
    async def run() -> None:
        readers = RemoteReaders(threads=1, pending_max=1)
        gate = threading.Event()
        waiting = [asyncio.create_task(readers.run(gate.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ThrottledError, match=r"remote\.log\.reader"):
            await readers.run(lambda: None)
        assert readers.statistics().refused == 1
        gate.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert await readers.run(lambda: 5) == 5
        assert (readers.statistics().pending, readers.statistics().done) == (0, 3)
        readers.close()

    asyncio.run(run())


def test_another_number_of_threads_serves_later_reads_and_interrupts_none() -> None:
    async def run() -> None:
        readers = RemoteReaders(threads=1, pending_max=0)
        gate = threading.Event()
        waiting = asyncio.create_task(readers.run(gate.wait))
        await asyncio.sleep(0)
        with pytest.raises(ThrottledError):
            await readers.run(lambda: None)
        readers.resize(2)
        assert await readers.run(lambda: 5) == 5, "the second thread is free"
        gate.set()
        assert await waiting
        readers.close()

    asyncio.run(run())
