"""Limit on the open connections of each address (``max.connections.per.ip``).

Kafka's class is ``ConnectionQuotas``. This code runs in the event loop's thread.

Invariant: an address has an entry while it has an open connection.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from millrace.config.broker import BrokerConfig
from millrace_broker.security.acl_index import canonical_host


class AddressConnections:
    """Open connections of each address, at all listeners that see their connections."""

    def __init__(self, config: BrokerConfig) -> None:
        self._counts: Final[Counter[str]] = Counter()
        self.take_config(config)

    def take_config(self, config: BrokerConfig) -> None:
        """Apply the limits. A lower limit closes no connection."""
        self._max = config.max_connections_per_ip
        overrides = config.connections_max_by_address
        self._overrides = {canonical_host(host): maximum for host, maximum in overrides.items()}

    def opened(self, host: str) -> bool:
        """Count a new connection. Return whether its address may have it; the caller closes it otherwise."""
        host = canonical_host(host)
        self._counts[host] += 1
        return self._counts[host] <= self._overrides.get(host, self._max)

    def closed(self, host: str) -> None:
        """Forget a connection that ``opened`` has counted."""
        host = canonical_host(host)
        self._counts[host] -= 1
        assert self._counts[host] >= 0, "a connection is closed once"
        if not self._counts[host]:
            del self._counts[host]
