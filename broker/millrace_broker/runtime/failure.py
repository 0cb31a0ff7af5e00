"""The failure that a broker cannot go on from: a disk without replacement, a broker id that another broker has."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millrace.errors import MillraceError

_logger: Final = logging.getLogger(__name__)


class Failure:
    """Says once that the broker has to stop, and why. For the event loop's thread."""

    def __init__(self) -> None:
        self._occurred: Final = asyncio.Event()
        self.error: MillraceError | None = None
        """Why the broker has to stop; None while it can go on."""

    def fail(self, error: MillraceError) -> None:
        """Have the broker stopped."""
        _logger.critical("the broker stops: %s", error.message)
        self.error = error
        self._occurred.set()

    async def wait(self) -> MillraceError:
        """Wait until the broker cannot go on, and return why."""
        await self._occurred.wait()
        assert self.error is not None
        return self.error
