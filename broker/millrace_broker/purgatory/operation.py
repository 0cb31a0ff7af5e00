"""Delayed operation, completed once, by its condition or by its timeout.

Source: Kafka's ``DelayedOperation``. In Kafka, threads race to complete an operation. Here everything runs in the event
loop's thread. Only reentrant calls remain: a completion may make the condition of the same operation true.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

from millrace_broker.purgatory.timing_wheel import TimerEntry


class DelayedOperation(ABC):
    """Base class of delayed operations. ``on_complete`` is called exactly once."""

    def __init__(self, delay_ms: int) -> None:
        """Create an operation that waits at most ``delay_ms``."""
        self.delay_ms = delay_ms
        self._is_completed = False
        self._timer: TimerEntry | None = None
        self._forget: Callable[[], None] | None = None

    @abstractmethod
    def try_complete(self) -> bool:
        """Call ``force_complete`` and return its result if the condition holds; else return False."""

    @abstractmethod
    def on_complete(self) -> None:
        """Answer the waiting caller, whether the condition holds or the timeout has passed."""

    def on_expiration(self) -> None:  # noqa: B027  most operations do nothing here
        """React to the timeout, after ``on_complete``."""

    @property
    @final
    def is_completed(self) -> bool:
        """True if the operation is completed."""
        return self._is_completed

    @final
    def force_complete(self) -> bool:
        """Complete the operation whatever its condition. Return False if it was completed before."""
        if self._is_completed:
            return False
        self._is_completed = True
        # Both refer to the operation. Without these references it is freed at once, and not by a garbage collection.
        timer, self._timer = self._timer, None
        forget, self._forget = self._forget, None
        if timer is not None:
            timer.cancel()
        if forget is not None:
            forget()
        self.on_complete()
        return True

    @final
    def expire(self) -> None:
        """Complete the operation because its timeout has passed."""
        if self.force_complete():
            self.on_expiration()

    @final
    def waits(self, timer: TimerEntry | None, forget: Callable[[], None]) -> None:
        """Enter the purgatory: ``timer`` expires the operation, and its completion calls ``forget``."""
        self._timer, self._forget = timer, forget
