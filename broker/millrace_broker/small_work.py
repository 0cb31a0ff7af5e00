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
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

SMALL_BYTES: Final = 16 * 1024
"""Records up to this size are checked and appended in the event loop: that takes about 0.2 ms."""
SLOW_S: Final = 0.02
"""What took longer was waiting for something."""
SLOW_FOR_S: Final = 1.0
"""How long nothing is done in the event loop after that."""

_T = TypeVar("_T")


class SmallWork:
    """Decides what is done in the event loop, and watches how long that takes."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic: Final = monotonic
        self._threads_until = float("-inf")

    def includes(self, size_bytes: int) -> bool:
        """Whether work on so many bytes, all in memory, is to be done at once."""
        return size_bytes <= SMALL_BYTES and self._monotonic() >= self._threads_until

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Do it, in the event loop."""
        started = self._monotonic()
        try:
            yield
        finally:
            ended = self._monotonic()
            if ended - started > SLOW_S:
                self._threads_until = ended + SLOW_FOR_S


async def begun(work: Coroutine[Any, Any, _T], start: Callable[[Coroutine[Any, Any, _T]], asyncio.Task[_T]]) -> _T:
    """Run ``work`` as far as it comes without waiting, and only if it must wait ``start`` a task for the rest.

    The task is not cancelled with the caller. (What Python 3.12 calls an eager task: most work on small things never
    waits, and is done without a task and the turns of the loop that it would wait for.)
    """
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    return await asyncio.shield(start(_rest(work, waits_for)))


async def _rest(work: Coroutine[Any, Any, _T], waits_for: Any) -> _T:
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
