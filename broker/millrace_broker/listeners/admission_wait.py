"""Wait of a connection for the place and memory of its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from millrace.errors import MillraceError


class AdmissionWait:
    """The wait of one connection, in the event loop. At most one wait is in progress."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_cancel: Callable[[], None]) -> None:
        """``on_cancel`` is called when a wait ends without the call of its ``go_on``."""
        self._loop: Final = loop
        self._on_cancel: Final = on_cancel
        self._go_on: Callable[[MillraceError | None], None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_active(self) -> bool:
        """True if the connection waits."""
        return self._task is not None

    def start(self, wait: Coroutine[Any, Any, None], go_on: Callable[[MillraceError | None], None]) -> None:
        """Begin a wait. Its end calls ``go_on``, with the error if the request is not admitted."""
        assert self._task is None, "one wait at a time"
        self._go_on = go_on
        self._task = self._loop.create_task(wait)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """End the wait, because the connection is lost."""
        if self._task is not None:
            self._go_on = None
            self._task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        go_on, self._go_on, self._task = self._go_on, None, None
        failure = None if task.cancelled() else task.exception()
        if task.cancelled() or go_on is None:
            self._on_cancel()
        elif failure is None or isinstance(failure, MillraceError):
            go_on(failure)
        else:
            self._on_cancel()
            raise failure
