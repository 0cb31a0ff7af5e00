"""Threads of a broker, and the small work of its event loop.

Invariants

- Functions that may wait for a disk run in a pool (``run_io``), never in the event loop.
- Functions that decode records, which may take seconds, run in their own pool (``run_decoding``). No I/O waits for it.
- Functions that change metadata run one at a time, in the order of the calls, in one thread (``administer``).
- Work started with ``to_the_end`` runs to its end even if its caller is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from millrace_broker.runtime.background_tasks import BackgroundTasks
from millrace_broker.runtime.resizable_pool import ResizableThreadPool
from millrace_broker.runtime.small_work import SmallWork, begun, first_step, rest
from millrace_broker.runtime.turns import ITEMS

_DECODING_THREADS: Final = 2
"""Threads of ``run_decoding``. More of them would only wait for each other, because most work is the interpreter's."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class RunBlocking(Protocol):
    """A runner of blocking functions in a thread, such as ``Executors.administer``."""

    async def __call__(self, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
        """Return or raise the result of the function."""
        ...


class Executors:
    """Threads of one broker. Its methods, except ``on_loop``, are for the event loop's thread."""

    def __init__(self, io_threads: int, monotonic: Callable[[], float]) -> None:
        """Bind to the running event loop. ``io_threads`` is ``num.io.threads``."""
        self.small_work: Final = SmallWork(monotonic)
        self._loop: Final = asyncio.get_running_loop()
        self._io: Final = ResizableThreadPool(io_threads, "millrace-io")
        self._decoding: Final = ThreadPoolExecutor(_DECODING_THREADS, thread_name_prefix="millrace-decoding")
        self._administration: Final = ThreadPoolExecutor(1, thread_name_prefix="millrace-administration")
        self._tasks: Final = BackgroundTasks()

    async def run_io(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function that accesses logs on disk, outside the event loop."""
        return await self._io.run(lambda: function(*args, **kwargs))

    async def run_decoding(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function that decodes the records of a producer, and that accesses no log."""
        return await asyncio.get_running_loop().run_in_executor(self._decoding, lambda: function(*args, **kwargs))

    def resize_io(self, threads: int) -> None:
        """Set the number of I/O threads. The old threads finish the functions they have."""
        self._io.resize(threads)

    async def run_sized(self, size_bytes: int, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function on ``size_bytes`` in memory, inside the event loop if they are few."""
        if self.small_work.includes(size_bytes):
            return self.small_work.do(function, *args, **kwargs)
        return await self.run_io(function, *args, **kwargs)

    async def administer(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function that accesses metadata. It runs alone, and to its end even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._administration, lambda: function(*args, **kwargs))

    def on_loop(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function in the event loop, from any thread."""
        self._loop.call_soon_threadsafe(function, *args)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start ``work`` that nobody waits for, after what the event loop does now."""
        self._tasks.start(work)

    def to_the_end(self, work: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        """Return the wait for ``work``. If the waiting caller is cancelled, ``work`` continues."""
        return begun(work, self._tasks.start)

    async def all_to_the_end(self, works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
        """Wait for all of ``works``, which begin in their order, and return their results in this order.

        Only work that must wait gets a task. If the caller is cancelled, the works continue. Many works begin in turns
        with other work of the event loop.
        """
        if len(works) > ITEMS:
            return await self.to_the_end(self._in_turns(works))
        results: dict[int, _T] = {}
        waiting: dict[int, asyncio.Task[_T]] = {}
        for place, work in enumerate(works):
            try:
                stand_in = first_step(work)
            except StopIteration as done:
                results[place] = done.value
            else:
                waiting[place] = self._tasks.start(rest(stand_in))
        if waiting:
            results.update(zip(waiting, await asyncio.shield(asyncio.gather(*waiting.values())), strict=True))
        return [results[place] for place in range(len(works))]

    async def _in_turns(self, works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
        """Begin ``ITEMS`` works at a time, and wait for all. All begin, because ``to_the_end`` protects this."""
        parts = []
        for place in range(0, len(works), ITEMS):
            parts.append(self._tasks.start(self.all_to_the_end(works[place : place + ITEMS])))
            await asyncio.sleep(0)
        return [result for part in await asyncio.gather(*parts) for result in part]

    async def finish_tasks(self) -> None:
        """Wait for work of ``begin``, and for work of ``to_the_end`` whose callers were cancelled."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """End the threads after they finish the functions they have."""
        self._io.close()
        self._decoding.shutdown()
        self._administration.shutdown()
