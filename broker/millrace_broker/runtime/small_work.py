"""Small work that runs in the event loop instead of a thread.

A hop to a thread and back takes 0.1 ms of CPU time and two thread switches, which wait for the interpreter's lock.
Checking or writing a few KiB takes less. Work that may take long stays in threads. Such work is large batches,
compressed batches, fsyncs, and reads of data that may not be in memory (docs/design/0014).

Invariants

- The event loop does no work of unknown size. If small work waits for long nevertheless, twice within ``WATCHED_S``,
  all work goes to threads for ``SLOW_FOR_S``. The kernel, for example, blocks writers that exceed the disk's
  throughput. A loop that was only preempted by other processes has not waited, and a thread would be preempted as well.
- Running work here or in a thread differs only in time.
"""

from __future__ import annotations

import asyncio
import resource
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, ParamSpec, TypeVar

from millrace.errors import MillraceError

SMALL_BYTES: Final = 1024 * 1024
"""Records up to this size are checked and appended in the event loop, which takes 0.05 to 0.4 ms."""
SLOW_S: Final = 0.02
"""Work that takes longer and gave up the processor by itself counts as slow. It waited for the disk, for example."""
SLOW_FOR_S: Final = 1.0
"""Time for which all work goes to threads after slow work."""
WATCHED_S: Final = 10.0
"""Time for which waits are counted after work that took longer than ``SLOW_S``. To count them costs a system call."""

# The stubs lack them, but asyncio documents them for implementations of tasks.
_enter_task: Final[Callable[[Any, Any], None]] = getattr(asyncio.tasks, "_enter_task")  # noqa: B009
_leave_task: Final[Callable[[Any, Any], None]] = getattr(asyncio.tasks, "_leave_task")  # noqa: B009

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _waits() -> int:
    """Return the voluntary context switches of the current thread, which count its waits."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class SmallWork:
    """Choice between the event loop and a thread for work.

    ``do`` checks the duration of the work. After work that took long, it counts the waits of work for ``WATCHED_S``. If
    such work is slow again because it waits, ``includes`` chooses threads for ``SLOW_FOR_S``.
    """

    def __init__(self, monotonic: Callable[[], float], waits: Callable[[], int] = _waits) -> None:
        """Start with work in the event loop. ``waits`` returns how often the thread has waited."""
        self._monotonic: Final = monotonic
        self._waits: Final = waits
        self._threads_until = self._watched_until = float("-inf")

    def includes(self, size_bytes: int) -> bool:
        """Return whether work on ``size_bytes``, all in memory, should run in the event loop."""
        return size_bytes <= SMALL_BYTES and self._monotonic() >= self._threads_until

    def do(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a function in the event loop."""
        started = self._monotonic()
        waits = self._waits() if started < self._watched_until else None
        try:
            return function(*args, **kwargs)
        finally:
            ended = self._monotonic()
            if ended - started > SLOW_S:
                self._watched_until = ended + WATCHED_S
                if waits is not None and self._waits() != waits:
                    self._threads_until = ended + SLOW_FOR_S


class StandIn:
    """Stand-in for the task of work that has no task yet.

    asyncio takes it for the current task. ``rest`` continues the work in the real task, to which the stand-in then
    forwards. ``asyncio.timeout`` and ``asyncio.TaskGroup`` keep the current task and cancel it later. A request to
    cancel that comes before the real task begins reaches it then. A task that is cancelled before its first step would
    drop the work. See "Extending" in asyncio's documentation.
    """

    __slots__ = ("_requests", "_task", "waits_for", "work")

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work: Final = work
        self.waits_for: Any = None
        """The awaitable that the work waits for after its first step."""
        self._task: asyncio.Task[Any] | None = None
        self._requests = 0
        """Requests to cancel the work, before the task begins."""

    def begins(self) -> None:
        """Forward to the current task from now on."""
        task = self._task = asyncio.current_task()
        assert task is not None, "the rest of the work is for a task"
        for _ in range(self._requests):
            task.cancel()

    def cancel(self, msg: Any = None) -> bool:
        """Cancel the work at its present or next wait."""
        if self._task is not None:
            return self._task.cancel(msg)
        self._requests += 1
        return True

    def cancelling(self) -> int:
        """Return the number of pending cancellation requests."""
        return self._requests if self._task is None else self._task.cancelling()

    def uncancel(self) -> int:
        """Decrement the number of cancellation requests."""
        if self._task is not None:
            return self._task.uncancel()
        self._requests = max(0, self._requests - 1)
        return self._requests


def first_step(work: Coroutine[Any, Any, Any]) -> StandIn:
    """Run ``work`` in the event loop, without a task, up to its first wait. ``rest`` continues it.

    Raises ``StopIteration`` with the result if the work never waits, and the errors of the work.
    """
    loop = asyncio.get_running_loop()
    stand_in = StandIn(work)
    caller: Any = asyncio.current_task()
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, stand_in)
    try:
        stand_in.waits_for = work.send(None)
        return stand_in
    finally:
        _leave_task(loop, stand_in)
        if caller is not None:
            _enter_task(loop, caller)


async def begun(work: Coroutine[Any, Any, _T], start: Callable[[Coroutine[Any, Any, _T]], asyncio.Task[_T]]) -> _T:
    """Run ``work`` up to its first wait. Only if it must wait, ``start`` a task for the rest.

    The task is not cancelled with the caller. Python 3.12 calls this an eager task. Most work on small requests never
    waits. It then needs neither a task nor the loop iterations that a task waits for.
    """
    try:
        stand_in = first_step(work)
    except StopIteration as done:
        result: _T = done.value
        return result
    task = start(rest(stand_in))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_ended_without_caller)
        raise


def _ended_without_caller(task: asyncio.Task[Any]) -> None:
    """Report an error of work whose caller is gone, unless it is an expected one."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, MillraceError):
        task.get_loop().call_exception_handler(
            {"message": "work has failed after its caller was cancelled", "exception": error, "task": task}
        )


async def rest(stand_in: StandIn) -> Any:
    """Run the part of work after its ``first_step``, in a task of its own. Return the work's result."""
    stand_in.begins()
    return await _resumed(stand_in)


@types.coroutine
def _resumed(stand_in: StandIn) -> Generator[Any, Any, Any]:
    """Wait for the awaitable that the work already waits for, and continue the work from there.

    No local variable outlives its iteration, because an error would keep its frames alive, and the files in them.
    """
    work, waits_for, stand_in.waits_for = stand_in.work, stand_in.waits_for, None
    while True:
        failure: BaseException | None = None
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - the work handles it
            failure = error
        try:
            waits_for = None
            waits_for = work.send(None) if failure is None else work.throw(failure)
        except StopIteration as done:
            return done.value
        finally:
            del failure
