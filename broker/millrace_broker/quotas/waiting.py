"""Marking of a call while it waits for others.

A call that waits for replicas, members or records is *parked*: it takes no place among the running requests. The
waiting code may be far from the listener, so the call is in a context variable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Final, Protocol


class Parkable(Protocol):
    """Call that can be parked."""

    def park(self, give_up: Callable[[], None] | None) -> None:
        """Begin a wait.

        ``give_up`` ends a wait early if that is allowed; it may be called before this method returns.
        """
        ...

    def resume(self) -> None:
        """End a wait."""
        ...


current_call: ContextVar[Parkable | None] = ContextVar("current_call", default=None)
"""The call that a task works for. The listener sets it; tasks started by a handler inherit it."""


class parked:  # noqa: N801 - used like a function
    """Context manager around a wait for others. Outside of a call it does nothing.

    ``give_up`` ends the wait of a poll, which is then answered empty. A wait without it never ends early.
    """

    __slots__ = ("_call", "_give_up")

    def __init__(self, give_up: Callable[[], None] | None = None) -> None:
        self._call: Final = current_call.get()
        self._give_up: Final = give_up

    def __enter__(self) -> None:
        if self._call is not None:
            self._call.park(self._give_up)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._call is not None:
            self._call.resume()


async def pause(seconds: float) -> None:
    """Wait for some time. A waiting call is parked."""
    with parked():
        await asyncio.sleep(seconds)


class Turn:
    """Lock for the event loop's thread, first come first served. A waiting call is parked."""

    __slots__ = ("_lock", "_wanted")

    def __init__(self) -> None:
        self._lock: Final = asyncio.Lock()
        self._wanted = 0
        """Tasks that hold the lock or wait for it."""

    async def __aenter__(self) -> None:
        self._wanted += 1
        try:
            if self._wanted == 1:
                await self._lock.acquire()
                return
            with parked():
                await self._lock.acquire()
        except BaseException:
            self._wanted -= 1
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wanted -= 1
        self._lock.release()
