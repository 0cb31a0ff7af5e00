"""Tasks that nobody waits for, held until they end: the event loop itself would let go of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

_T = TypeVar("_T")


class BackgroundTasks:
    """Tasks under way, in the order in which they began.

    A set's order would depend on where in memory tasks lie, and with it what happens first when all of them are
    cancelled: no simulated run could be repeated.
    """

    def __init__(self) -> None:
        self._tasks: Final[dict[asyncio.Task[Any], None]] = {}

    def start(self, work: Coroutine[Any, Any, _T], *, name: str | None = None) -> asyncio.Task[_T]:
        """Begin ``work``; it is let go of when it has ended."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """Those under way at this moment."""
        return iter(list(self._tasks))
