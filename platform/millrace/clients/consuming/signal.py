"""Where a consumer's caller waits, for whatever comes first; and the rule that there is one caller at a time.

Invariants:

- A caller that took ``serial`` before it looked at things, and waits with it, misses nothing that came since.
- A wake-up ends one wait: the present one, or else the next (Kafka's ``KafkaConsumer.wakeup``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.clients.transport import Helper
from millrace.errors import ConcurrentUseError, WakeupError


class Signal:
    """A bell that other threads ring, and the turnstile before the consumer."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._serial = 0
        self._is_woken = False
        self._owner: int | None = None
        self._depth = 0
        self._is_deaf = False
        self._helper: Helper | None = None

    def help_with(self, helper: Helper) -> None:
        """Have whoever waits do something useful."""
        self._helper = helper

    @property
    def serial(self) -> int:
        """How often the bell has rung; take it before looking whether there is anything to wait for."""
        return self._serial

    def ring(self) -> None:
        """Something has come: let the caller look."""
        with self._lock:
            self._serial += 1
            self._condition.notify_all()
        if self._helper is not None:
            self._helper.wake()

    def wakeup(self) -> None:
        """End the caller's wait with ``WakeupError``, now or as soon as it waits."""
        with self._lock:
            self._is_woken = True
            self._condition.notify_all()
        if self._helper is not None:
            self._helper.wake()

    def forget_wakeup(self) -> None:
        """Take back a wake-up that nobody has noticed yet."""
        with self._lock:
            self._is_woken = False

    def ignore_wakeups(self) -> None:
        """The consumer is being closed: let it finish."""
        self._is_deaf = True

    def check(self) -> None:
        """Raise ``WakeupError`` if there was a wake-up, once."""
        with self._lock:
            self._raise_if_woken()

    def _raise_if_woken(self) -> None:
        if self._is_woken and not self._is_deaf:
            self._is_woken = False
            raise WakeupError("the consumer was woken up: its position is unchanged, and it can be polled again")

    def wait(self, serial: int, timeout_s: float) -> None:
        """Wait until the bell has rung since ``serial``, or ``timeout_s``. Raises ``WakeupError``."""
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
        """Whether the present thread is the one that uses the consumer."""
        return self._owner == threading.get_ident()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the consumer. Raises ``ConcurrentUseError`` while another thread does."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        """Begin to use the consumer; again, from within a listener, is right."""
        me = threading.get_ident()
        with self._lock:
            if self._owner is not None and self._owner != me:
                raise ConcurrentUseError(
                    "the consumer is in use in another thread: give each thread its own, or call wakeup() from here"
                )
            self._owner = me
            self._depth += 1

    def leave(self) -> None:
        """End what ``enter`` began."""
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._owner = None
