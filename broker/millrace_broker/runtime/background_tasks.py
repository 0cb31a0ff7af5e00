"""Tasks that no caller awaits, referenced until they end.

The event loop itself holds only weak references to tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

_T = TypeVar("_T")


async def cancel_and_wait(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and wait for its end. Its error is dropped."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class BackgroundTasks:
    """Tasks in progress, in the order of their start.

    The order of a set would depend on the tasks' memory addresses. When all tasks are cancelled, the order of their
    reactions would then vary, and no simulated run could be repeated.
    """

    def __init__(self) -> None:
        self._tasks: Final[dict[asyncio.Task[Any], None]] = {}

    def start(self, work: Coroutine[Any, Any, _T], *, name: str | None = None) -> asyncio.Task[_T]:
        """Start ``work`` and hold it until it ends."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        """Iterate over the tasks in progress now."""
        return iter(list(self._tasks))
