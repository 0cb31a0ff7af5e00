"""Fatal failure that stops a broker.

Examples are a failed disk and a duplicate broker id.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millrace.errors import MillraceError

_logger: Final = logging.getLogger(__name__)


class Failure:
    """First fatal failure and its reason. For the event loop's thread."""

    def __init__(self) -> None:
        self._occurred: Final = asyncio.Event()
        self.error: MillraceError | None = None
        """The reason for the stop; None while the broker can continue."""

    def fail(self, error: MillraceError) -> None:
        """Report a fatal failure, which stops the broker."""
        _logger.critical("the broker stops: %s", error.message)
        self.error = error
        self._occurred.set()

    async def wait(self) -> MillraceError:
        """Wait for a fatal failure, and return it."""
        await self._occurred.wait()
        assert self.error is not None
        return self.error
