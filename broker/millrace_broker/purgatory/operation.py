"""One thing that waits: answered when its condition holds or when its time is up, and once in either case.

Source: Kafka's ``DelayedOperation``. There, threads race for the completion; here everything happens in the event
loop's thread, and what remains of the races is that one thing calls the next: a completion may bring about the
condition of the operation that is just being completed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

from millrace_broker.purgatory.timing_wheel import TimerEntry


class DelayedOperation(ABC):
    """Base of the operations. ``on_complete`` is called exactly once, whoever completes it and however often."""

    def __init__(self, delay_ms: int) -> None:
        """``delay_ms`` is how long it may wait."""
        self.delay_ms = delay_ms
        self._is_completed = False
        self._timer: TimerEntry | None = None
        self._forget: Callable[[], None] | None = None

    @abstractmethod
    def try_complete(self) -> bool:
        """Look whether the condition holds, and call ``force_complete`` (and return its answer) if it does."""

    @abstractmethod
    def on_complete(self) -> None:
        """Answer. The one way out for the caller that waits, whether the condition holds or the time is up."""

    def on_expiration(self) -> None:  # noqa: B027  most have nothing to do
        """The time was up; called after ``on_complete``."""

    @property
    @final
    def is_completed(self) -> bool:
        """Whether it has been answered."""
        return self._is_completed

    @final
    def force_complete(self) -> bool:
        """Complete it, whatever the condition; False when it was completed before."""
        if self._is_completed:
            return False
        self._is_completed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._forget is not None:
            self._forget()
        self.on_complete()
        return True

    @final
    def expire(self) -> None:
        """Its time is up."""
        if self.force_complete():
            self.on_expiration()

    @final
    def waits(self, timer: TimerEntry | None, forget: Callable[[], None]) -> None:
        """The purgatory keeps it from now on: ``timer`` ends it, and ``forget`` is called once it is completed."""
        self._timer, self._forget = timer, forget
