"""What is so small that the event loop does it itself, for handing it to a thread and back would cost more than it.

A hop to a thread and back takes a tenth of a millisecond of CPU time and two changes of threads, which wait for the
interpreter's lock; checking or writing a few KiB takes less. What may take long stays in threads: large batches, those
that must be decompressed, anything that syncs, or reads what may not be in memory (docs/design/0014).

Invariants

- The loop does nothing of unknown size. Where what it did was slow all the same (the kernel makes those wait who write
  more than the disk takes), all work goes to threads for a while.
- Doing something here or in a thread makes no difference but in time.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, ParamSpec, TypeVar

SMALL_BYTES: Final = 1024 * 1024
"""Records up to this size are checked and appended in the event loop: that takes 0.05 to 0.4 ms."""
SLOW_S: Final = 0.02
"""What took longer was waiting for something."""
SLOW_FOR_S: Final = 1.0
"""How long nothing is done in the event loop after that."""

# Not in the stubs, though documented for those who write tasks of their own.
_enter_task: Final[Callable[[Any, Any], None]] = getattr(asyncio.tasks, "_enter_task")  # noqa: B009
_leave_task: Final[Callable[[Any, Any], None]] = getattr(asyncio.tasks, "_leave_task")  # noqa: B009

_P = ParamSpec("_P")
_T = TypeVar("_T")


class SmallWork:
    """Decides what is done in the event loop, and watches how long that takes."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic: Final = monotonic
        self._threads_until = float("-inf")

    def includes(self, size_bytes: int) -> bool:
        """Whether work on so many bytes, all in memory, is to be done at once."""
        return size_bytes <= SMALL_BYTES and self._monotonic() >= self._threads_until

    def do(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Do it, in the event loop."""
        started = self._monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            ended = self._monotonic()
            if ended - started > SLOW_S:
                self._threads_until = ended + SLOW_FOR_S


class StandIn:
    """The current task of work that is being done without one, until it must wait and a ``task`` goes on with it.

    What asks for the current task (``asyncio.timeout``, ``asyncio.TaskGroup``) keeps it and cancels it later: so it
    answers for the task as soon as there is one. See "Extending" in asyncio's documentation.
    """

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None

    def cancel(self, msg: Any = None) -> bool:
        """Cancel what goes on; nothing is done for work that has not waited yet."""
        return self.task is not None and self.task.cancel(msg)

    def cancelling(self) -> int:
        """How often it was asked to end."""
        return 0 if self.task is None else self.task.cancelling()

    def uncancel(self) -> int:
        """Take one of these back."""
        return 0 if self.task is None else self.task.uncancel()


def first_step(work: Coroutine[Any, Any, Any]) -> tuple[StandIn, Any]:
    """Run ``work`` in the event loop, without a task, up to its first wait; it goes on with ``rest``.

    Raises ``StopIteration`` with the result where it never waits, and what the work raises.
    """
    loop = asyncio.get_running_loop()
    stand_in = StandIn()
    caller: Any = asyncio.current_task()
    if caller is not None:
        _leave_task(loop, caller)
    _enter_task(loop, stand_in)
    try:
        return stand_in, work.send(None)
    finally:
        _leave_task(loop, stand_in)
        if caller is not None:
            _enter_task(loop, caller)


async def begun(work: Coroutine[Any, Any, _T], start: Callable[[Coroutine[Any, Any, _T]], asyncio.Task[_T]]) -> _T:
    """Run ``work`` as far as it comes without waiting, and only if it must wait ``start`` a task for the rest.

    The task is not cancelled with the caller. (What Python 3.12 calls an eager task: most work on small things never
    waits, and is done without a task and the turns of the loop that it would wait for.)
    """
    try:
        stand_in, waits_for = first_step(work)
    except StopIteration as done:
        result: _T = done.value
        return result
    stand_in.task = start(rest(work, waits_for))
    return await asyncio.shield(stand_in.task)


async def rest(work: Coroutine[Any, Any, _T], waits_for: Any) -> _T:
    """What is left of ``work`` after its ``first_step``: for a task, which is to be the stand-in's."""
    return await _resumed(work, waits_for)


@types.coroutine
def _resumed(work: Coroutine[Any, Any, _T], waits_for: Any) -> Generator[Any, Any, _T]:
    """Wait for what ``work`` waits for already, and go on with it from there.

    Nothing here outlives its turn: errors would keep the frames alive that met with them, and the files in those.
    """
    while True:
        failure: BaseException | None = None
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - it is for the work to deal with
            failure = error
        try:
            waits_for = None
            waits_for = work.send(None) if failure is None else work.throw(failure)
        except StopIteration as done:
            result: _T = done.value
            return result
        finally:
            del failure
