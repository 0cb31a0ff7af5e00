"""Token bucket, whose time is an argument.

Invariants

- A bucket holds at most ``rate * burst_s`` tokens. It is full when it is made.
- Tokens may be taken into debt, because the cost of a call is known only after it. The debt is paid at ``rate``.
- With ``debt_s_max``, a longer debt is forgotten at each taking.
- If each taking waits for the debt before it, at most ``rate * (b - a + burst_s)`` tokens and one taking are taken from
  ``a`` to ``b``. A forgotten debt is added to that.

Kafka's classes are ``TokenBucket`` (KIP-599) and, for bytes and times, ``Rate``. A bucket has no windows, so a client
is not let through at once when a window ends.
"""

from __future__ import annotations

import math


class TokenBucket:
    """Tokens that are filled up at a rate. Times are in seconds of any monotonic clock."""

    __slots__ = ("_at", "_tokens", "burst_s", "debt_s_max", "rate")

    def __init__(self, rate: float, burst_s: float, now: float, debt_s_max: float = math.inf) -> None:
        self.rate = rate
        self.burst_s = burst_s
        self.debt_s_max = debt_s_max
        self._tokens = rate * burst_s
        self._at = now

    def take(self, tokens: float, now: float) -> float:
        """Take tokens, into debt if there are too few. Return the seconds until the debt is paid."""
        self._fill(now)
        self._tokens = max(self._tokens - tokens, -self.rate * self.debt_s_max)
        return self._debt_s

    def debt_s(self, now: float) -> float:
        """Return the seconds until the debt is paid; 0 if there is none."""
        self._fill(now)
        return self._debt_s

    def is_full(self, now: float) -> bool:
        """Return whether the bucket is as full as a new one."""
        self._fill(now)
        return self._tokens >= self.rate * self.burst_s

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate. A debt stays, and is paid at the new rate."""
        self._fill(now)
        self.rate = rate
        self._tokens = min(self._tokens, rate * self.burst_s)

    def forgive(self) -> None:
        """Fill the bucket, because its quota was removed. No client has to wait for its debt any more."""
        self._tokens = self.rate * self.burst_s

    @property
    def _debt_s(self) -> float:
        return -self._tokens / self.rate if self._tokens < 0 else 0.0

    def _fill(self, now: float) -> None:
        self._tokens = min(self._tokens + (now - self._at) * self.rate, self.rate * self.burst_s)
        self._at = now
