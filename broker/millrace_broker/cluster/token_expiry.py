"""Removal of expired delegation tokens from the metadata.

Kafka's controller does it (``delete-expired-tokens``). Here each broker does, because a removal of a token that is gone
changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from millrace.errors import MillraceError
from millrace_broker.runtime import Executors, cancel_and_wait
from millrace_broker.security import DelegationTokens

_logger: Final = logging.getLogger(__name__)


class TokenExpiry:
    """Removal of expired tokens every ``delegation.token.expiry.check.interval.ms``. For the event loop's thread."""

    def __init__(self, tokens: DelegationTokens, executors: Executors, interval_ms: int) -> None:
        self._tokens: Final = tokens
        self._executors: Final = executors
        self._interval_ms: Final = interval_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the removals, if the broker has delegation tokens."""
        if self._tokens.is_enabled:
            self._task = asyncio.create_task(self._run(), name="millrace-token-expiry")

    async def close(self) -> None:
        """Stop the removals. The administration thread finishes one that has begun."""
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                removed = await self._executors.administer(self._tokens.remove_expired)
            except MillraceError as error:
                _logger.warning("expired delegation tokens could not be removed: %s", error.message)
            except Exception:
                _logger.exception("expired delegation tokens could not be removed")
            else:
                if removed:
                    _logger.info("%d delegation tokens have expired and are removed", removed)
