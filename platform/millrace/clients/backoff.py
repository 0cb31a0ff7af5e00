"""Exponential waits before retries and before reconnects (KIP-144, KIP-580)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Final

from millrace.config.client import ClientConfig

_DOUBLINGS_MAX: Final = 30


def exponential(first: float, longest: float, attempt: int) -> float:
    """Return the wait after ``attempt`` earlier waits, in the unit of ``first``. It doubles up to ``longest``."""
    return min(first * (1 << min(attempt, _DOUBLINGS_MAX)), longest)


def jitter() -> float:
    """Return a random factor of 0.8 to 1.2, which prevents synchronized retries of many clients."""
    return random.uniform(0.8, 1.2)


def backoff_s(config: ClientConfig, attempt: int) -> float:
    """Return the wait before retry number ``attempt`` (from 0), with jitter, in seconds."""
    return exponential(config.retry_backoff_ms, config.retry_backoff_max_ms, attempt) / 1000 * jitter()


class ReconnectBackoff:
    """Waits between attempts to connect to one broker: Kafka's ``ClusterConnectionStates``. Thread safe."""

    def __init__(self, config: ClientConfig, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._first_ms = config.reconnect_backoff_ms
        self._longest_ms = config.reconnect_backoff_longest_ms
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failures = 0
        self._failed_at = float("-inf")
        self._next_at = float("-inf")

    @property
    def wait_s(self) -> float:
        """Seconds until the next attempt, or 0."""
        return max(0.0, self._next_at - self._monotonic())

    def failed(self, begun: float) -> None:
        """Note the failure of an attempt that began at this time. Attempts at the same time count once."""
        with self._lock:
            if begun < self._failed_at:
                return
            self._failed_at = self._monotonic()
            wait_ms = exponential(self._first_ms, self._longest_ms, self._failures) * jitter()
            self._failures += 1
            self._next_at = self._failed_at + max(wait_ms, 0) / 1000

    def connected(self) -> None:
        """Note that the broker was reached: the next attempt does not wait."""
        if self._failures:
            with self._lock:
                self._failures = 0
                self._next_at = float("-inf")
