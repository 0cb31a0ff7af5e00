"""An event loop on a clock of its own, whose callbacks belong to processes that can be paused and killed.

Time stands still while anything is to be done, and jumps to the next timer when nothing is: half a minute of a cluster
takes as long as its work. What is handed to threads is done in the loop, after a delay that the seed draws, so that
one thread does everything in an order that a seed repeats.

Invariants
* A process is a context (``Process.context``): what is started in it, and in turn from there, is the process's.
* Nothing of a dead process runs, in the middle of whatever it died. What it holds is kept until the end of the run:
  collected before, its coroutines would run their last lines.
* A paused process runs nothing; timers that come due meanwhile run when it goes on, late, as after SIGSTOP.
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
"""What the clock shows at first."""
_LANES: Final = 4
"""Threads of those who bring no pool of their own (``asyncio.to_thread``)."""

current: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """Whatever can be paused and killed as one: a broker from its start to its end, a client."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.is_dead = False
        self.is_paused = False
        self.context: Final = Context()
        self.kept: list[Any] = []
        self.context.run(current.set, self)


class StuckError(AssertionError):
    """Nothing is left to be done, and yet somebody waits."""


class _Idle(selectors.SelectSelector):
    """Asked by the loop to wait for sockets: moves the clock instead."""

    wait: Callable[[float | None], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        self.wait(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. ``on_quiet`` is called before the clock moves: everything that was due has been done."""

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
        if self._ready:  # what was found led to more
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
        """The process that a task is of."""
        return self._owners[task]

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def default_exception_handler(self, context: Mapping[str, Any]) -> None:
        """What the dead leave behind is no failure."""
        task = context.get("task") or context.get("future")
        process = self._owners.get(task) if isinstance(task, asyncio.Task) else None
        if process is None or not process.is_dead:
            super().default_exception_handler(dict(context))

    # --- processes -------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """Let nothing of it run any more, from this moment on."""
        process.is_dead, process.is_paused = True, False
        process.kept.extend(self._held.pop(process, ()))
        process.kept.extend(task for task, owner in self._owners.items() if owner is process)
        self._withdraw(process)
        for handle in self._ready:
            if handle._context.get(current) is process:
                process.kept.append((handle._callback, handle._args))
                handle.cancel()

    def pause(self, process: Process) -> None:
        """Let nothing of it run until ``resume``. To be called from ``on_quiet``: no callback is running then."""
        process.is_paused = True
        self._held[process] = [each for each in self._ready if each._context.get(current) is process]
        for handle in self._held[process]:
            self._ready.remove(handle)
        self._withdraw(process)

    def resume(self, process: Process) -> None:
        """Let it go on, if it has not died."""
        process.is_paused = False
        for handle in self._held.pop(process, ()):
            if isinstance(handle, events.TimerHandle):
                heapq.heappush(self._scheduled, handle)
                handle._scheduled = True
            else:
                self._ready.append(handle)

    def _withdraw(self, process: Process) -> None:
        """Take its timers out."""
        own = [each for each in self._scheduled if each._context.get(current) is process]
        for handle in own:
            handle._scheduled = False
        self._scheduled[:] = [each for each in self._scheduled if each._scheduled]
        heapq.heapify(self._scheduled)
        (process.kept if process.is_dead else self._held[process]).extend(own)

    # --- threads ---------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Do it a moment later, in the order in which so many threads would come to it."""
        future = self.create_future()
        threads = executor._max_workers if isinstance(executor, ThreadPoolExecutor) else _LANES
        self._pools.append(executor)  # so that no other takes its number
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
