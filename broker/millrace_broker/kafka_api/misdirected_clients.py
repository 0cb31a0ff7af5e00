"""Warnings about clients that repeatedly ask for partitions of other brokers.

The cause is an advertised address that leads to another broker, such as a forwarded port. The client cannot notice the
wrong broker, because Kafka's requests name no broker.
"""

from __future__ import annotations

import logging
from typing import Final

_logger = logging.getLogger(__name__)

REQUESTS_MAX: Final = 100
"""Requests of one host within ``PERIOD_S`` that are normal, because clients learn later that a leader has moved."""
PERIOD_S: Final = 60.0
_HOSTS_MAX: Final = 1000


class MisdirectedClients:
    """Counts of misdirected requests by the client's host.

    The counts are set to zero after each period.
    """

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
