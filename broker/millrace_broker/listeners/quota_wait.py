"""Wait of one connection for the quotas of its client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from millrace_broker.network.sockets import has_hung_up

_LOOKED_AGAIN_S: Final = 1.0
"""Interval in which a wait looks whether it is over, because a raised quota shortens the wait."""


class QuotaWait:
    """At most one wait at a time. All of it runs in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport, left_s: Callable[[], float], go_on: Callable[[], None]) -> None:
        """Call ``go_on`` once ``left_s`` returns no more seconds. Abort the transport if its peer does not wait."""
        self._timer = None
        wait_s = left_s()
        if has_hung_up(transport.get_extra_info("socket")):  # the transport does not read, and so cannot see it
            transport.abort()
        elif wait_s > 0:
            self._timer = self._loop.call_later(min(wait_s, _LOOKED_AGAIN_S), self.start, transport, left_s, go_on)
        else:
            go_on()

    def cancel(self) -> None:
        """End the wait, because its connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
