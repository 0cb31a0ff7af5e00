"""The event loop of a broker's process: after a request it looks for the next one for a moment before it sleeps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Final

from millrace.spinning import Spinning

_SPIN_S: Final = 0.0003
"""A client that sends one record after another needs less from an answer to its next request."""

_Events = list[tuple[selectors.SelectorKey, int]]


class _SpinningSelector(selectors.EpollSelector):
    """Waits as ``Spinning`` does."""

    def __init__(self) -> None:
        super().__init__()
        self._spinning = Spinning(_SPIN_S)
        self._poll: Callable[[float | None], _Events] = lambda timeout_ms: super(_SpinningSelector, self).select(
            None if timeout_ms is None else timeout_ms / 1000
        )

    def select(self, timeout: float | None = None) -> _Events:
        """The events that are there within ``timeout`` seconds, if any."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        return self._spinning.wait(self._poll, timeout)


def spinning_loop() -> asyncio.AbstractEventLoop:
    """A new loop, for a process in which nothing else computes: its looking would keep other threads waiting."""
    return asyncio.SelectorEventLoop(_SpinningSelector())
