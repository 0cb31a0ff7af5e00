"""An event loop on a virtual clock, whose callbacks belong to processes.

Processes can be paused and killed. Time stands still while a callback is due, and otherwise jumps to the next timer. So
half a minute of a cluster takes as long as its work. The loop itself runs functions that are given to threads, after a
delay that the seed draws. One thread therefore does everything in an order that a seed repeats.

Invariants:

* A process is a context (``Process.context``). Everything that is started in it, directly or indirectly, belongs to it.
* Nothing of a dead process runs, whatever it was doing. Its objects are kept until the end of the run, because the
  collection of its coroutines would run their last lines.
* A paused process runs nothing. Timers that expire meanwhile run late, when it continues, as after SIGSTOP.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
from asyncio import events
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

START_S: Final = 1_000.0
"""The first time of the clock."""
_LANES: Final = 4
"""The number of threads for callers without a pool of their own (``asyncio.to_thread``)."""

current: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """A unit that can be paused and killed.

    The unit is one run of a broker, or a client.
    """

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.is_dead = False
        self.is_paused = False
        self.context: Final = Context()
        self.kept: list[Any] = []
        self.context.run(current.set, self)


class StuckError(AssertionError):
    """An error that reports a waiting coroutine although no event is left."""


class _Idle(selectors.SelectSelector):
    """A selector that advances the clock when the loop waits for sockets."""

    wait: Callable[[float | None], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        self.wait(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop of this module. It calls ``on_quiet`` before the clock advances, when no callback is due."""

    def __init__(self, choose: random.Random) -> None:
        self._virtual_s = START_S
        selector = _Idle()
        selector.wait = self._wait
        super().__init__(selector)
        self._clock_resolution = 1e-9
        self._choose: Final = choose
        self._free_at: Final[dict[tuple[int, int], float]] = {}
        self._pools: Final[list[Any]] = []
        self._held: Final[dict[Process, list[Any]]] = {}
        self._owners: Final[WeakKeyDictionary[asyncio.Task[Any], Process]] = WeakKeyDictionary()
        self.on_quiet: Callable[[], None] = lambda: None
        self.turns = 0

    # --- time ------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._virtual_s

    def _wait(self, timeout: float | None) -> None:
        if timeout is not None and timeout <= 0:
            return
        self.turns += 1
        self.on_quiet()
        if self._ready:  # the found events led to more
            return
        if not self._scheduled:
            raise StuckError("nothing is left to be done, and somebody waits")
        self._virtual_s = max(self._virtual_s, self._scheduled[0]._when)

    # --- callbacks -------------------------------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        process = current.get() if context is None else context.get(current)
        if process is None or not (process.is_dead or process.is_paused):
            return super().call_soon(callback, *args, context=context)
        handle = events.Handle(callback, args, self, context)
        if process.is_dead:
            process.kept.append(handle)
        else:
            self._held[process].append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = super().call_at(when, callback, *args, context=context)
        process = current.get() if context is None else context.get(current)
        if process is not None and (process.is_dead or process.is_paused):
            self._withdraw(process)
        return handle

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        task = super().create_task(coro, name=name, context=context)
        process = current.get() if context is None else context.get(current)
        if process is not None:
            self._owners[task] = process
        return task

    def owner(self, task: asyncio.Task[Any]) -> Process:
        """Return the process of a task."""
        return self._owners[task]

    def _write_to_self(self) -> None:
        """Do nothing, because the loop never sleeps."""

    def default_exception_handler(self, context: Mapping[str, Any]) -> None:
        """Ignore errors that dead processes leave behind."""
        task = context.get("task") or context.get("future")
        process = self._owners.get(task) if isinstance(task, asyncio.Task) else None
        if process is None or not process.is_dead:
            super().default_exception_handler(dict(context))

    # --- processes -------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Let no callback of the process run from this moment on."""
        process.is_dead, process.is_paused = True, False
        process.kept.extend(self._held.pop(process, ()))
        process.kept.extend(task for task, owner in self._owners.items() if owner is process)
        self._withdraw(process)
        for handle in self._ready:
            if handle._context.get(current) is process:
                process.kept.append((handle._callback, handle._args))
                handle.cancel()

    def pause(self, process: Process) -> None:
        """Let no callback of the process run until ``resume``.

        Call it from ``on_quiet``, when no callback is running.
        """
        process.is_paused = True
        self._held[process] = [each for each in self._ready if each._context.get(current) is process]
        for handle in self._held[process]:
            self._ready.remove(handle)
        self._withdraw(process)

    def resume(self, process: Process) -> None:
        """Let the process continue, if it is not dead."""
        process.is_paused = False
        for handle in self._held.pop(process, ()):
            if isinstance(handle, events.TimerHandle):
                heapq.heappush(self._scheduled, handle)
                handle._scheduled = True
            else:
                self._ready.append(handle)

    def _withdraw(self, process: Process) -> None:
        """Remove the timers of a process."""
        own = [each for each in self._scheduled if each._context.get(current) is process]
        for handle in own:
            handle._scheduled = False
        self._scheduled[:] = [each for each in self._scheduled if each._scheduled]
        heapq.heapify(self._scheduled)
        (process.kept if process.is_dead else self._held[process]).extend(own)

    # --- threads ---------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Run the function a moment later, in the order in which that many threads would run it."""
        future = self.create_future()
        threads = executor._max_workers if isinstance(executor, ThreadPoolExecutor) else _LANES
        self._pools.append(executor)  # so that no other process takes its number
        process = current.get()
        lane = (id(process) if executor is None else id(executor), self._choose.randrange(threads))
        begins = max(self._free_at.get(lane, 0.0), self._virtual_s) + self._choose.uniform(0.00001, 0.0004)
        self._free_at[lane] = begins
        self.call_at(begins, self._do, future, func, args)
        return future

    def _do(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            result, error = func(*args), None
        except Exception as raised:  # noqa: BLE001 - it is for the one who asked
            result, error = None, raised
        self.call_later(self._choose.uniform(0.00001, 0.0002), _settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
