"""Clients that ask for partitions of other brokers again and again, for the log.

An advertised address that leads to another broker, such as a forwarded port, makes a client do that. The client cannot
notice it, because Kafka's protocol names no broker.
"""

from __future__ import annotations

import logging
from typing import Final

_logger = logging.getLogger(__name__)

REQUESTS_MAX: Final = 100
"""Requests of one host within ``PERIOD_S`` that are still normal: leaders move, and clients learn of it later."""
PERIOD_S: Final = 60.0
_HOSTS_MAX: Final = 1000


class MisdirectedClients:
    """Counts of such requests by the client's host, set to zero after each period."""

    def __init__(self) -> None:
        self._counts: Final[dict[str, int]] = {}
        self._since = 0.0

    def note(self, host: str, client_id: str, now: float) -> None:
        """Count a request, and log its client once a period if there are too many."""
        if now - self._since >= PERIOD_S:
            self._counts.clear()
            self._since = now
        if host not in self._counts and len(self._counts) >= _HOSTS_MAX:
            return
        count = self._counts[host] = self._counts.get(host, 0) + 1
        if count == REQUESTS_MAX + 1:
            _logger.warning(
                "client %r of %s asks this broker again and again for partitions of other brokers: check that each "
                "address in advertised.listeners, and each forwarded port, leads to its own broker",
                client_id,
                host,
            )
