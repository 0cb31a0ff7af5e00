"""Wait of a consumer's caller, and the check for a single caller.

Invariants:

- A caller that reads ``serial`` before its checks and waits with it misses no later notification.
- A wake-up ends one wait: the current one, or else the next (Kafka's ``KafkaConsumer.wakeup``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.clients.connections import forked_client_error
from millrace.clients.transport import Helper
from millrace.errors import ConcurrentUseError, WakeupError


class Signal:
    """Notification from other threads, and guard of the consumer against concurrent use."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._serial = 0
        self._is_woken = False
        self._owner: int | None = None
        self._depth = 0
        self._is_deaf = False
        self._helper: Helper | None = None
        self._is_abandoned = False

    def help_with(self, helper: Helper) -> None:
        """Let waiting threads receive responses."""
        self._helper = helper

    def abandon(self) -> None:
        """Refuse every later use, in a forked process, where the consumer does not belong."""
        self._is_abandoned = True

    @property
    def serial(self) -> int:
        """Number of notifications; read it before checking for data."""
        return self._serial

    def ring(self) -> None:
        """Notify the caller of new data."""
        with self._lock:
            self._serial += 1
            self._condition.notify_all()
        if self._helper is not None:
            self._helper.wake()

    def wakeup(self) -> None:
        """End the caller's wait with ``WakeupError``, now or at the next wait."""
        with self._lock:
            self._is_woken = True
            self._condition.notify_all()
        if self._helper is not None:
            self._helper.wake()

    def forget_wakeup(self) -> None:
        """Cancel a wake-up that has not taken effect."""
        with self._lock:
            self._is_woken = False

    def ignore_wakeups(self) -> None:
        """Ignore wake-ups while the consumer is being closed."""
        self._is_deaf = True

    def check(self) -> None:
        """Raise ``WakeupError`` once after a wake-up."""
        with self._lock:
            self._raise_if_woken()

    def _raise_if_woken(self) -> None:
        if self._is_woken and not self._is_deaf:
            self._is_woken = False
            raise WakeupError("wakeup() ended the poll: the position is unchanged, poll again")

    def wait(self, serial: int, timeout_s: float) -> None:
        """Wait for a notification since ``serial``, or for ``timeout_s``. Raises ``WakeupError``."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._raise_if_woken()
                left = deadline - time.monotonic()
                if self._serial != serial or left <= 0:
                    return
            if self._helper is not None and self._helper.help(lambda: self._is_over(serial), left):
                continue
            with self._lock:
                if not self._is_over(serial):
                    self._condition.wait(min(left, threading.TIMEOUT_MAX))

    def _is_over(self, serial: int) -> bool:
        return self._serial != serial or (self._is_woken and not self._is_deaf)

    @property
    def is_mine(self) -> bool:
        """True if the current thread is using the consumer."""
        return self._owner == threading.get_ident()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the consumer. Raises the errors of ``enter``."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Begin to use the consumer; nested use from within a listener is allowed.

        Raises ``ConcurrentUseError`` while another thread uses it, ``UsageError`` in a forked process.
        """
        if self._is_abandoned:
            raise forked_client_error()
        me = threading.get_ident()
        with self._lock:
            if self._owner is not None and self._owner != me:
                raise ConcurrentUseError(
                    "the consumer is in use in another thread: give each thread its own, or call wakeup() from here"
                )
            self._owner = me
            self._depth += 1

    def leave(self) -> None:
        """End the use that ``enter`` began."""
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._owner = None
