"""Event loop of a broker's process, which polls briefly before it sleeps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Final

from millrace.spinning import Spinning

_SPIN_S: Final = 0.0003
"""Spinning time, longer than a sequential client takes from an answer to its next request."""

_Events = list[tuple[selectors.SelectorKey, int]]


class _SpinningSelector(selectors.EpollSelector):
    """Selector that waits as ``Spinning`` does."""

    def __init__(self) -> None:
        super().__init__()
        self._spinning = Spinning(_SPIN_S)
        self._poll: Callable[[float | None], _Events] = lambda timeout_ms: super(_SpinningSelector, self).select(
            None if timeout_ms is None else timeout_ms / 1000
        )

    def select(self, timeout: float | None = None) -> _Events:
        """Return the events that arrive within ``timeout`` seconds."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        return self._spinning.wait(self._poll, timeout)


def spinning_loop() -> asyncio.AbstractEventLoop:
    """Create a loop for a process without other computation, because its spinning would delay other threads."""
    return asyncio.SelectorEventLoop(_SpinningSelector())
