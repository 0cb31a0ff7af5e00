"""Removal of expired delegation tokens from the metadata.

Kafka's controller does it (``delete-expired-tokens``). Here each broker does, because a removal of a token that is gone
changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Self

from millrace.config.broker import BrokerConfig
from millrace.errors import MillraceError
from millrace_broker.purgatory import Timer
from millrace_broker.purgatory.timing_wheel import TimerEntry
from millrace_broker.runtime import Executors
from millrace_broker.security import DelegationTokens

_logger: Final = logging.getLogger(__name__)


class TokenExpiry:
    """Removal of expired tokens every ``delegation.token.expiry.check.interval.ms``. For the event loop's thread."""

    def __init__(self, tokens: DelegationTokens, executors: Executors, timer: Timer, interval_ms: int) -> None:
        self._tokens: Final = tokens
        self._executors: Final = executors
        self._timer: Final = timer
        self._interval_ms: Final = interval_ms
        self._next: TimerEntry | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, config: BrokerConfig, tokens: DelegationTokens, executors: Executors, timer: Timer) -> Self:
        """Return the removals of a broker with this configuration."""
        return cls(tokens, executors, timer, config.delegation_token_expiry_check_interval_ms)

    def start(self) -> None:
        """Start the removals, if the broker has delegation tokens."""
        if self._tokens.is_enabled:
            self._next = self._timer.schedule(self._interval_ms, self._begin)

    async def close(self) -> None:
        """Stop the removals. A removal in progress ends first."""
        if self._next is not None:
            self._next.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._remove(), name="millrace-token-expiry")

    async def _remove(self) -> None:
        try:
            removed = await self._executors.administer(self._tokens.remove_expired)
            if removed:
                _logger.info("%d delegation tokens have expired and are removed", removed)
        except MillraceError as error:
            _logger.warning("expired delegation tokens could not be removed: %s", error.message)
        finally:
            self._next = self._timer.schedule(self._interval_ms, self._begin)
