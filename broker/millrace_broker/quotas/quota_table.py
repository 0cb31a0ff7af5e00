"""Configured quotas, and Kafka's precedence between them.

Kafka's class is ``DefaultQuotaCallback``. For each key, the most specific entity with a value for it wins:

1. a user with a client id
2. a user with the default client id
3. a user
4. the default user with a client id
5. the default user with the default client id
6. the default user
7. a client id
8. the default client id

The winning entity names a user, a client id, or both. All connections with the same values of these share the quota. A
quota of the default user is therefore a quota of each user alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from millrace.quotas import CLIENT_ID, CONNECTION_CREATION_RATE, IP, USER, QuotaEntity

Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""Values of keys by entities."""


class Limit(NamedTuple):
    """A rate, with the user and the client id that share it. An empty name stands for all names."""

    rate: float
    user: str
    client_id: str


class QuotaTable:
    """All configured quotas. It does not change."""

    def __init__(self, quotas: Quotas) -> None:
        self._by_parts = {entity.parts: values for entity, values in quotas.items() if values}
        self.has_clients = any(parts[0][0] != IP for parts in self._by_parts)
        """True if any user or client id has a quota."""
        self.has_ips = any(parts[0][0] == IP for parts in self._by_parts)
        """True if any address has a quota."""

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the limit of a client for a key; None if there is none."""
        for parts, sharing_user, sharing_client in _candidates(user, client_id):
            rate = self._by_parts.get(parts, {}).get(key)
            if rate is not None:
                return Limit(rate, sharing_user, sharing_client)
        return None

    def connection_rate(self, host: str) -> float | None:
        """Return the connections a second that an address may open; None if there is no limit."""
        for name in (host, None):
            rate = self._by_parts.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
            if rate is not None:
                return rate
        return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[tuple[tuple[str, str | None], ...], str, str]]:
    """Yield entities in the order of precedence, each with the user and client id that share its quota."""
    for name in (user, None):
        for client in (client_id, None):
            yield ((USER, name), (CLIENT_ID, client)), user, client_id
        yield ((USER, name),), user, ""
    for client in (client_id, None):
        yield ((CLIENT_ID, client),), "", client_id
