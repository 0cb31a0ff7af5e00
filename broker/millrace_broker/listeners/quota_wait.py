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

    def start(
        self, left_s: Callable[[], float], go_on: Callable[[], None], watched: asyncio.Transport | None = None
    ) -> None:
        """Call ``go_on`` once ``left_s`` returns no more seconds. Abort ``watched`` if its peer does not wait.

        An abort loses the bytes that are unread. Pass no ``watched`` if they may be requests without a response.
        """
        self._timer = None
        wait_s = left_s()
        # A transport that does not read cannot see the end.
        if watched is not None and has_hung_up(watched.get_extra_info("socket")):
            watched.abort()
        elif wait_s > 0:
            self._timer = self._loop.call_later(min(wait_s, _LOOKED_AGAIN_S), self.start, left_s, go_on, watched)
        else:
            go_on()

    def cancel(self) -> None:
        """End the wait, because its connection is lost."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
